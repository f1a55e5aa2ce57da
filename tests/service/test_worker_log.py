"""What a worker's log and a job's followers are told while the job runs."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.service.support import ODD, ScriptedEngine, read_events, serving
from tests.waiting import PATIENCE_S, until
from tirgemm.errors import BuildFailed
from tirgemm.events import (
    CandidateRecorded,
    Event,
    EventHandler,
    KernelSelected,
    Phase,
    PhaseEntered,
    SearchStarted,
    Standing,
)
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import JobRequest

LOGGER = "tirgemm.worker"


class TellingEngine(ScriptedEngine):
    """Tells what the tuner tells."""

    def fallback(
        self, request: JobRequest, cancel: threading.Event, on_event: EventHandler | None = None
    ) -> KernelRecord:
        if on_event is not None:
            on_event(PhaseEntered(phase=Phase.WAITING, detail="another process measures on it, pid 7"))
            on_event(PhaseEntered(phase=Phase.DEFAULT))
        return super().fallback(request, cancel)

    def tune(self, request: JobRequest, on_event: EventHandler, *rest: Any) -> KernelRecord:
        def tell(event: Event) -> None:
            match event:
                case SearchStarted():
                    standing = Standing(tried=1, best_us=12.0, default_us=12.0)
                    event = replace(event, budget={"trials": 3, "seconds": 9}, standing=standing)
                case CandidateRecorded():
                    on_event(PhaseEntered(phase=Phase.MEASURING, seconds_left=8.0))
                    event = replace(event, of=3, standing=Standing(best_us=6.0, best="x86(a=1)", default_us=12.0))
                case KernelSelected():
                    on_event(PhaseEntered(phase=Phase.CERTIFYING))
            on_event(event)

        return super().tune(request, tell, *rest)


@pytest.fixture(autouse=True)
def told_of_changes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line says again what is done because it takes long."""
    monkeypatch.setattr("tirgemm.service.jobs.job_runner.LOG_SECONDS", 10 * PATIENCE_S)


def log_of(data: Path, caplog: pytest.LogCaptureFixture, **options: Any) -> tuple[str, list[str], list[str]]:
    """A job's id, its log lines without that id, and the kinds of its events."""
    with caplog.at_level(logging.INFO, LOGGER), serving(data) as service:
        service.engine = TellingEngine(service.store, candidates=2, **options)
        service.engine.fallback_gate.set()
        service.engine.gate.set()
        with service.worker():
            job_id = str(service.post(headers={"Prefer": "wait=0"}).json()["job"]["id"])
            kinds = [kind for _, kind, _ in read_events(service.http, job_id)]
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert all(line.startswith(f"job {job_id}: ") for line in lines), lines
    return job_id, [line.partition(": ")[2] for line in lines], kinds


def test_the_log_says_which_job_what_is_done_the_best_so_far_and_how_it_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, lines, kinds = log_of(tmp_path, caplog)
    first, last = lines[0], lines[-1]
    assert first.startswith(f"tuning {ODD} on cpu:")
    assert lines[1:-1] == [
        "waiting for the device (another process measures on it, pid 7)",
        "building the default kernel",
        "starting, best 12.00 us (1.00 x the default)",
        "measuring 1 of 3, best 12.00 us (1.00 x the default), at most 8 s left",
        "certifying, best 6.00 us (2.00 x the default)",
    ]
    assert last.startswith("done, kernel ")
    assert last.endswith(", best 6.00 us (2.00 x the default)")
    assert kinds[:2] == ["phase", "phase"], "a job's followers are told, too"
    assert kinds[-1] == "done"
    text = " ".join(lines).lower()
    assert "fallback" not in text
    assert "batch" not in text


def test_the_log_says_why_a_job_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, lines, _ = log_of(tmp_path, caplog, fail_with=BuildFailed("ptxas: too many registers"))
    assert lines[-1] == "failed: build_failed: ptxas: too many registers"


def test_the_log_says_why_a_job_was_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER), serving(tmp_path) as service:
        service.engine.fallback_gate.set()
        with service.worker():
            job_id = service.post().json()["job"]["id"]
            service.wait_for(job_id, "running")
            service.http.delete(f"/v1/jobs/{job_id}")
            until(lambda: f"job {job_id}: cancelled" in caplog.messages)
