"""The kill of a Ray node in the middle of a job, as the proofs of the service do it."""

from __future__ import annotations

import random
import time

import pytest

from tirgemm.gemm import Gemm
from verification.service.kills import RAY_NODE, RAY_NODES, deployed, one_run

pytest.importorskip("ray", reason="Ray is not installed here: `make ray-tests` runs these")


@pytest.mark.timeout(1800)
def test_a_job_ends_on_the_nodes_that_are_left_and_nothing_is_lost() -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    with deployed("sqlite", on_ray=True) as deployment:
        for size in (35, 37):
            assert one_run(deployment, RAY_NODE, Gemm(size, 27, 29, dtype="f32", layout="nn"), rng) == []
            assert len(deployment.cluster.worker_nodes) == RAY_NODES - 1, "one was killed"
