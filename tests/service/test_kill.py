"""``kill -9`` in the middle of a job, as the proofs of the service do it: a few runs, and that they notice a loss."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from tests.contract.storage.databases import candidate, samples
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import Status
from verification.service.kills import VICTIMS, deployed, lost, measured_twice, one_run


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", VICTIMS)
def test_kills_at_random_moments_lose_no_record_and_measure_nothing_twice(kind: str) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    with deployed(kind) as deployment:
        for number, victim in enumerate(rng.sample(VICTIMS[kind], 2)):
            assert one_run(deployment, victim, Gemm(35 + 2 * number, 27, 29, dtype="f32", layout="nn"), rng) == []


def test_what_is_lost_changed_or_measured_again_is_told() -> None:
    before = {"a": candidate(1), "b": candidate(2)}
    raced = replace(before["b"], sample_sets=(*before["b"].sample_sets, samples(9.0, "selection")))
    assert lost(before, {"a": before["a"], "b": raced, "c": candidate(3)}) == []
    assert lost(before, {"a": before["a"]}) == ["candidate b is lost"]
    for changed in (
        replace(before["b"], status=Status.CRASHED),
        replace(before["b"], sample_sets=()),
        replace(before["b"], sample_sets=(*before["b"].sample_sets, samples(9.0))),
    ):
        assert lost(before, {"a": before["a"], "b": changed}) == ["candidate b was changed"]
    again = replace(before["b"], sample_sets=(samples(1.0), samples(2.0)))
    assert measured_twice(before) == []
    assert measured_twice({"b": again}) == ["candidate b was measured again"]
