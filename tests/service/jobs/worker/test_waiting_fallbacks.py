"""Fallbacks of waiting jobs, built beside the running one: when, how many, and what one costs that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.service.jobs.worker.running_worker import Running, job_of, submit
from tests.service.support import ODD, ScriptedEngine, kernel_record
from tests.waiting import PATIENCE_S, until
from tirgemm.errors import BuildFailed
from tirgemm.service.jobs import job_runner, new_job_watcher
from tirgemm.service.jobs.job_runner import JobRunner
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import JobQueue, JobRequest


def test_fallbacks_of_waiting_jobs_are_built_between_the_batches_of_the_running_one(
    queue: JobQueue, engine: ScriptedEngine
) -> None:
    engine.fallback_gate.set()
    with Running(queue, engine):
        first = submit(queue)
        until(lambda: ("tune", ODD) in engine.calls)
        second = submit(queue, "131x67x31")
        until(lambda: job_of(queue, second).fallback_id is not None)
        assert job_of(queue, second).status == "queued"
        assert job_of(queue, first).status == "running"
        engine.gate.set()
        until(lambda: job_of(queue, second).status == "done")
    assert [event.kind for event in queue.events(second)].count("fallback") == 1
    assert engine.calls.count(("fallback", "131x67x31:f16:nt")) == 1


def test_an_idle_worker_hears_of_a_job_before_it_would_look_for_what_was_put_back(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_job_watcher, "POLL_SECONDS", 10 * PATIENCE_S)
    engine.fallback_gate.set()
    looked = threading.Event()
    newest = JobQueue.newest

    def seen(asked: JobQueue) -> Any:
        looked.set()
        return newest(asked)

    monkeypatch.setattr(JobQueue, "newest", seen)
    with Running(queue, engine):
        assert looked.wait(PATIENCE_S), "it waits"
        submit(queue)
        until(lambda: ("tune", ODD) in engine.calls)
        engine.gate.set()


def test_an_engine_is_told_of_the_jobs_that_wait_in_their_order(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.fallback_gate.set()
    monkeypatch.setattr(job_runner, "FALLBACK_SLICE_SECONDS", 0.0)
    told: list[tuple[list[str], list[str]]] = []

    def tune(
        request: JobRequest, _on_event: object, _cancel: object, between_batches: Callable[[], None]
    ) -> KernelRecord:
        submit(queue, "131x67x31")
        last = submit(queue, "133x67x31", priority=1)
        for _ in range(2):
            between_batches()
            told.append((engine.prepared, engine.bare))
        queue.cancel(last)
        between_batches()
        told.append((engine.prepared, engine.bare))
        return kernel_record(engine.store, request, "tuned")

    monkeypatch.setattr(engine, "tune", tune)
    submit(queue)
    assert JobRunner(queue, engine.store, engine, "one").run_one()
    first, second = "133x67x31:f16:nt", "131x67x31:f16:nt"
    assert told == [([first, second], [first, second]), ([first, second], [second]), ([second], [])]


def test_an_engine_is_warmed_once_and_not_where_a_job_comes_first(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "WARM_SECONDS", 0.3)
    busy = ScriptedEngine(engine.store)
    for each in (engine, busy):
        each.gate.set()
        each.fallback_gate.set()
    first = submit(queue)
    with Running(queue, busy):
        until(lambda: job_of(queue, first).status == "done")
        time.sleep(0.5)
    assert ("warm", "") not in busy.calls
    with Running(queue, engine):
        until(lambda: ("warm", "") in engine.calls)
        time.sleep(0.3)
    assert engine.calls == [("warm", "")]


def test_the_engine_is_warmed_behind_a_job_that_was_cancelled(queue: JobQueue, engine: ScriptedEngine) -> None:
    engine.fallback_gate.set()
    cancelled = submit(queue)
    with Running(queue, engine):
        until(lambda: ("tune", ODD) in engine.calls)
        queue.cancel(cancelled)
        until(lambda: engine.calls[-1] == ("warm", ""))


def test_a_job_that_shipped_records_answer_ends_without_a_search(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shipped(request: JobRequest, _cancel: threading.Event, _on_event: object) -> object:
        return kernel_record(engine.store, replace(request, trials=32), "tuned", search={"ended": "shipped"})

    monkeypatch.setattr(engine, "fallback", shipped)
    with Running(queue, engine):
        answered = submit(queue)
        until(lambda: job_of(queue, answered).status == "done")
        assert job_of(queue, answered).kernel_id == job_of(queue, answered).fallback_id
        larger = submit(queue, "131x67x31", trials=1000)
        until(lambda: ("tune", "131x67x31:f16:nt") in engine.calls)
        waiting = submit(queue, "133x67x31")
        until(lambda: job_of(queue, waiting).fallback_id is not None)
        engine.gate.set()
        until(lambda: job_of(queue, waiting).status == "done")
        assert job_of(queue, larger).kernel_id != job_of(queue, larger).fallback_id
        assert job_of(queue, waiting).kernel_id == job_of(queue, waiting).fallback_id
    assert [call for call in engine.calls if call[0] == "tune"] == [("tune", "131x67x31:f16:nt")]


@pytest.mark.parametrize("built", [(), (105,), (103, 105, 107)])
def test_the_device_waits_for_the_build_of_one_fallback_at_most_between_two_batches(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, built: Sequence[int]
) -> None:
    engine.fallback_gate.set()
    told: list[list[int | Any]] = []
    made: list[list[int]] = []

    def prepare(_waiting: object, bare: Sequence[JobRequest]) -> list[JobRequest]:
        told.append([request.gemm.m for request in bare])
        return [request for request in bare if request.gemm.m in built]

    def tune(
        request: JobRequest, _on_event: object, _cancel: object, between_batches: Callable[[], None]
    ) -> KernelRecord:
        for m in (101, 103, 105, 107):
            submit(queue, f"{m}x67x31")
        for _ in range(2):
            told.clear()
            before = len(engine.calls)
            between_batches()
            made.append([int(gemm.split("x")[0]) for _, gemm in engine.calls[before:]])
        return kernel_record(engine.store, request, "tuned")

    monkeypatch.setattr(engine, "prepare", prepare)
    monkeypatch.setattr(engine, "tune", tune)
    submit(queue)
    assert JobRunner(queue, engine.store, engine, "one").run_one()
    left = [m for m in (101, 103, 105, 107) if m not in (built or (101,))]
    assert made == [list(built) or [101], left[:1]], "what is built, or else the first alone"
    assert told == [left, left[1:]], "the engine is told of what comes next before each"


@pytest.mark.parametrize("waits", [True, False])
def test_a_job_without_a_fallback_is_prepared_beside_it_where_others_wait(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    told: list[list[str]] = []

    def prepare(waiting: Sequence[JobRequest], bare: Sequence[JobRequest]) -> list[JobRequest]:
        told.extend([str(one.gemm) for one in requests] for requests in (waiting, bare))
        return []

    monkeypatch.setattr(engine, "prepare", prepare)
    submit(queue)
    if waits:
        submit(queue, "131x67x31")
    assert JobRunner(queue, engine.store, engine, "one").run_one()
    assert told[0] == told[1] == ([ODD, "131x67x31:f16:nt"] if waits else []), "its own comes first"


@pytest.mark.parametrize("broken", ["prepare", "fallback"])
def test_what_no_engine_may_do_with_a_job_that_waits_costs_the_running_one_nothing(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    fallback = engine.fallback

    def prepare(_waiting: object, bare: Sequence[JobRequest]) -> list[JobRequest]:
        if broken == "prepare":
            raise ZeroDivisionError("of a job that waits")
        engine.bare = [str(request.gemm) for request in bare]
        return []

    def fallback_of(request: JobRequest, cancel: threading.Event, _on_event: object = None) -> KernelRecord:
        if broken == "fallback" and request.gemm.m == 131:
            raise ZeroDivisionError("of a job that waits")
        return fallback(request, cancel)

    monkeypatch.setattr(engine, "prepare", prepare)
    monkeypatch.setattr(engine, "fallback", fallback_of)
    running, waiting = submit(queue), submit(queue, "131x67x31")
    assert JobRunner(queue, engine.store, engine, "one").run_one()
    assert job_of(queue, running).status == "done"
    assert (job_of(queue, waiting).status, job_of(queue, waiting).owner) == ("queued", None)
    assert engine.bare == [], "what cannot be built is not prepared either"
    assert engine.held == []


def test_a_fallback_that_cannot_be_built_is_tried_once_and_stops_nobody_else(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.fallback_gate.set()
    tried: list[str] = []
    real = engine.fallback

    def fallback(request: JobRequest, cancel: threading.Event, _on_event: object) -> object:
        tried.append(str(request.gemm))
        if request.gemm.m == 131:
            raise BuildFailed("no default of this problem builds")
        return real(request, cancel)

    monkeypatch.setattr(engine, "fallback", fallback)
    with Running(queue, engine):
        submit(queue)
        until(lambda: ("tune", ODD) in engine.calls)
        bad, good = submit(queue, "131x67x31"), submit(queue, "133x67x31")
        until(lambda: job_of(queue, good).fallback_id is not None)
        assert tried.count("131x67x31:f16:nt") == 1
        engine.gate.set()
        until(lambda: job_of(queue, good).status == "done")
        assert job_of(queue, bad).status == "failed"
        assert job_of(queue, bad).error == "build_failed: no default of this problem builds"


def test_a_fallback_that_could_not_be_built_is_tried_again_where_its_job_was_put_back(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    real, broken = engine.fallback, [True]

    def fallback(request: JobRequest, cancel: threading.Event, _on_event: object) -> object:
        if request.gemm.m == 131 and broken:
            raise BuildFailed("no default of this problem builds")
        return real(request, cancel)

    monkeypatch.setattr(engine, "fallback", fallback)
    runner = JobRunner(queue, engine.store, engine, "one")
    submit(queue)
    bad = submit(queue, "131x67x31")
    for _ in range(2):
        assert runner.run_one()
    assert job_of(queue, bad).status == "failed"
    broken.clear()
    queue.retry(bad)
    submit(queue, "133x67x31", priority=1)
    assert runner.run_one()
    assert (job_of(queue, bad).status, job_of(queue, bad).fallback_id is None) == ("queued", False)


def test_a_burst_of_requests_takes_a_slice_of_each_batch_and_no_more(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tirgemm.service.jobs.job_runner.FALLBACK_SLICE_SECONDS", 0.0)
    engine.fallback_gate.set()
    batches: list[int] = []

    def tune(
        request: JobRequest, _on_event: object, cancel: threading.Event, between_batches: Callable[[], None]
    ) -> KernelRecord:
        for _ in range(4):
            before = len(engine.calls)
            between_batches()
            batches.append(len(engine.calls) - before)
        assert not cancel.is_set()
        return kernel_record(engine.store, request, "tuned")

    monkeypatch.setattr(engine, "tune", tune)
    ids = [submit(queue, f"{m}x67x31") for m in range(101, 121)]
    with Running(queue, engine):
        until(lambda: job_of(queue, ids[-1]).status == "done")
    assert set(batches) == {0, 1}, "one fallback a batch, where one takes the whole slice"
    assert all(engine.calls.count(("fallback", f"{m}x67x31:f16:nt")) == 1 for m in range(101, 121))


@pytest.mark.parametrize("which", ["running", "waiting"])
def test_a_cancel_is_heard_while_the_fallback_of_a_waiting_job_is_built(
    queue: JobQueue, engine: ScriptedEngine, which: str
) -> None:
    engine.fallback_gate.set()
    with Running(queue, engine):
        running = submit(queue)
        until(lambda: ("tune", ODD) in engine.calls)
        engine.fallback_gate.clear()
        waiting = submit(queue, "131x67x31")
        until(lambda: job_of(queue, waiting).owner is not None)
        assert job_of(queue, waiting).status == "queued"
        queue.cancel(running if which == "running" else waiting)
        if which == "running":
            until(lambda: job_of(queue, waiting).status == "running")
            assert job_of(queue, waiting).attempts == 1
        else:
            later = submit(queue, "133x67x31")
            until(lambda: job_of(queue, later).owner is not None)
            engine.fallback_gate.set()
            until(lambda: job_of(queue, later).fallback_id is not None)
            assert job_of(queue, running).status == "running"
        assert job_of(queue, waiting).fallback_id is None


def test_two_workers_never_build_one_fallback_twice(queue: JobQueue, engine: ScriptedEngine) -> None:
    engine.fallback_gate.set()
    with Running(queue, engine, "one"), Running(queue, engine, "two"):
        first, second = submit(queue), submit(queue, "131x67x31")
        until(lambda: {job_of(queue, first).status, job_of(queue, second).status} == {"running"})
        waiting = [submit(queue, f"{m}x67x31") for m in range(133, 145)]
        until(lambda: all(job_of(queue, job_id).fallback_id for job_id in waiting))
        engine.gate.set()
        until(lambda: all(job_of(queue, job_id).status == "done" for job_id in waiting))
    built = [call for call in engine.calls if call[0] == "fallback"]
    assert len(built) == len(set(built)) == 14
