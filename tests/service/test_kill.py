"""``kill -9`` in the middle of a job, as the proofs of the service do it: a few runs, and that they notice a loss."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.storage.databases import candidate, samples
from tirgemm.bench.results import load
from tirgemm.detect import device as detect_device
from tirgemm.errors import InvalidRequest
from tirgemm.events import BuildsCounted, SearchStarted
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import Status
from tirgemm.tuning_db import Database, JobQueue, JobRequest
from verification.service import kills
from verification.service.kills import (
    RAY_NODE,
    VICTIMS,
    Records,
    deployed,
    lost,
    main,
    measured_twice,
    one_run,
    sessions,
    survivors,
)


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


def test_the_events_of_a_job_are_those_that_stay_when_it_ends(tmp_path: Path) -> None:
    gemm = Gemm(35, 27, 29, dtype="f32", layout="nn")
    with Database.embedded(tmp_path) as database:
        queue = JobQueue(database)
        job, _ = queue.submit(JobRequest(gemm, detect_device("cpu")))
        records = Records(database, job.id, gemm)
        queue.claim("worker", [job.request.device.key], 60.0)
        queue.add_event(job.id, BuildsCounted(building=1, built=2), "worker")
        assert records.events() == []
        queue.add_event(job.id, SearchStarted(gemm=str(gemm)), "worker")
        before = records.events()
        queue.finish(job.id, "worker", "failed", error="x")
        assert [event.kind for event in before] == [SearchStarted.KIND]
        assert records.events() == before


def test_a_process_that_outlives_its_victim_is_told() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        (sentence,) = survivors([child.pid], "the worker", 0)
        assert str(child.pid) in sentence
        assert sentence.endswith("outlives the worker")
        child.kill()
        assert survivors([child.pid], "the worker") == []


def test_runs_are_shared_out_to_both_databases() -> None:
    planned = sessions(25, 10, 1, on_ray=False)
    assert [(one.kind, one.runs, one.victims) for one in planned] == [
        (kind, runs, VICTIMS[kind]) for kind, runs in (("sqlite", 10), ("postgresql", 10), ("sqlite", 5))
    ]
    assert len({one.seed for one in planned}) == 3
    assert planned == sessions(25, 10, 1, on_ray=False), "the seed decides"
    assert [(one.kind, one.victims) for one in sessions(2, 1, 1, on_ray=True)] == [
        (kind, (RAY_NODE,)) for kind in VICTIMS
    ]


def test_deployments_side_by_side_count_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def run(*_: Any) -> list[str]:
        both.wait(30)
        return []

    monkeypatch.setattr(kills, "deployed", lambda *_, **__: nullcontext())
    monkeypatch.setattr(kills, "one_run", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    options = ["--runs", "12", "--session", "3", "--deployments", "2", "--out", str(tmp_path / "proofs.json")]
    assert main([*options, "--commit", "c"]) == 0
    assert sum(row["runs"] for row in load(tmp_path / "proofs.json")["rows"]) == 12


def test_ray_clusters_side_by_side_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="must be 1"):
        main(["--engine", "ray", "--deployments", "2", "--out", str(tmp_path / "proofs.json")])


@pytest.mark.parametrize("runs", ["0", "199"])
def test_a_session_has_as_many_runs_as_there_are_problems(runs: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"--session is {runs}; a deployment has 1 to 198 runs"):
        kills.main(["--session", runs, "--out", str(tmp_path / "proofs.json")])
