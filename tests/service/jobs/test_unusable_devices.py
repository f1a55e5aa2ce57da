"""A device that cannot be opened: its job goes to another, it is tried again, and the service says why."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench
from tests.service.support import CPU, ODD, ScriptedEngine, Service
from tests.waiting import PATIENCE_S, until
from tirgemm.device import Device
from tirgemm.errors import BuildersUnusable, Cancelled, DeviceUnavailable, MeasurementFailed
from tirgemm.events import CandidateRecorded, PhaseEntered
from tirgemm.gemm import Gemm
from tirgemm.service.jobs import job_runner
from tirgemm.service.jobs.engine import TunerImports, TuningEngine
from tirgemm.service.jobs.job_runner import JobRunner
from tirgemm.service.jobs.worker import Worker
from tirgemm.status import Status
from tirgemm.tuning_db import Database, Job, JobQueue, JobRequest, SqlStore

BROKEN = DeviceUnavailable("GPU GPU-1 cannot be opened: cuInit: CUDA_ERROR_SYSTEM_NOT_READY")
NO_LINKER = BuildersUnusable("c++ -shared failed: cannot find ld")
LONG_S = 1e6


@pytest.fixture
def broken(database: Database) -> ScriptedEngine:
    """An engine whose device cannot be opened."""
    engine = engine_of(database)
    engine.fail_with = engine.unusable = BROKEN
    return engine


def engine_of(database: Database) -> ScriptedEngine:
    engine = ScriptedEngine(SqlStore(database))
    engine.gate.set()
    engine.fallback_gate.set()
    return engine


def submit(queue: JobQueue, gemm: str = ODD) -> str:
    return queue.submit(JobRequest(Gemm.parse(gemm), CPU))[0].id


def job_of(queue: JobQueue, job_id: str) -> Job:
    job = queue.job(job_id)
    assert job is not None
    return job


class Running:
    """A runner at work in a thread."""

    def __init__(self, queue: JobQueue, engine: ScriptedEngine, name: str) -> None:
        self.runner = JobRunner(queue, engine.store, engine, name, lease_s=60.0)
        self._thread = threading.Thread(target=self.runner.run)

    def __enter__(self) -> JobRunner:
        self._thread.start()
        return self.runner

    def __exit__(self, *_: object) -> None:
        self.runner.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def test_its_job_is_back_in_the_queue_with_the_reason_and_no_attempt(queue: JobQueue, broken: ScriptedEngine) -> None:
    job_id = submit(queue)
    runner = JobRunner(queue, broken.store, broken, "one")
    assert runner.run_one()
    job = job_of(queue, job_id)
    assert (job.status, job.attempts, job.owner, job.error) == ("queued", 0, None, None)
    assert runner.fault == str(BROKEN)
    events = [event for event in queue.events(job_id) if event.kind == PhaseEntered.KIND]
    assert events[-1].data["phase"] == "waiting"
    assert str(BROKEN) in events[-1].data["detail"]


@pytest.mark.parametrize("fault", [BROKEN, NO_LINKER], ids=["device", "builds"])
def test_another_worker_takes_the_job_while_one_cannot_use_its_device_or_build(
    queue: JobQueue,
    database: Database,
    broken: ScriptedEngine,
    monkeypatch: pytest.MonkeyPatch,
    fault: DeviceUnavailable | BuildersUnusable,
) -> None:
    broken.fail_with = fault
    monkeypatch.setattr(job_runner, "FIRST_PAUSE_SECONDS", LONG_S)
    job_id = submit(queue)
    with Running(queue, broken, "broken") as runner:
        until(lambda: bool(runner.fault) and job_of(queue, job_id).status == "queued")
        with Running(queue, engine_of(database), "sound"):
            until(lambda: job_of(queue, job_id).status == "done")
        assert [call for call in broken.calls if call[0] == "tune"] == [("tune", ODD)]


def test_the_device_is_tried_again_and_then_works_on(
    queue: JobQueue, broken: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(job_runner, "LONGEST_PAUSE_SECONDS", 0.0)
    job_id = submit(queue)
    with Running(queue, broken, "one") as runner:
        until(lambda: broken.calls.count(("open", "")) >= 3)
        assert broken.calls.count(("tune", ODD)) == 1, "no job is claimed for a device that cannot be opened"
        broken.fail_with = broken.unusable = None
        until(lambda: job_of(queue, job_id).status == "done")
        assert runner.fault == ""
    assert job_of(queue, job_id).attempts == 1


@pytest.mark.parametrize("answer", [MeasurementFailed("another process measures on it"), Cancelled("stopped")])
def test_only_a_device_that_cannot_be_opened_is_not_usable(
    queue: JobQueue, broken: ScriptedEngine, answer: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "FIRST_PAUSE_SECONDS", 0.0)
    submit(queue)
    runner = JobRunner(queue, broken.store, broken, "one")
    assert runner.run_one()
    broken.unusable = answer
    assert runner._is_usable() is not isinstance(answer, Cancelled)


@pytest.mark.parametrize(
    ("fault", "what"),
    [(BROKEN, "device_unavailable: the device"), (NO_LINKER, "build_failed: the machine")],
    ids=["device", "builds"],
)
def test_a_job_that_the_device_or_the_machine_fails_each_time_is_failed(
    queue: JobQueue, broken: ScriptedEngine, fault: DeviceUnavailable | BuildersUnusable, what: str
) -> None:
    broken.candidates, broken.fail_with = 0, fault
    job_id = submit(queue)
    runner = JobRunner(queue, broken.store, broken, "one")
    for _ in range(job_runner.MAX_DEVICE_FAILURES):
        assert job_of(queue, job_id).status == "queued"
        assert runner.run_one()
    job = job_of(queue, job_id)
    assert job.status == "failed"
    assert job.error == f"{what} failed 3 times in a row, without a measurement between: {fault}"


def test_a_measurement_forgets_how_often_the_device_failed_a_job(queue: JobQueue, broken: ScriptedEngine) -> None:
    broken.candidates = 1
    job_id = submit(queue)
    runner = JobRunner(queue, broken.store, broken, "one")
    for _ in range(2 * job_runner.MAX_DEVICE_FAILURES):
        assert runner.run_one()
    assert job_of(queue, job_id).status == "queued"
    kinds = [e.data["status"] for e in queue.events(job_id) if e.kind == CandidateRecorded.KIND]
    assert set(kinds) == {str(Status.MEASURED)}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_jobs_fail_where_no_worker_has_had_a_usable_device_for_long(
    queue: JobQueue, broken: ScriptedEngine, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(job_runner, "UNUSABLE_SECONDS", 0.0)
    queue.register_worker("this", [CPU], faults=[str(BROKEN)])
    if elsewhere:
        queue.register_worker("another", [CPU])
    jobs = [submit(queue), submit(queue, "131x67x31")]
    runner = JobRunner(queue, broken.store, broken, "one")
    assert runner.run_one()
    assert not runner._is_usable()
    assert {job_of(queue, job_id).status for job_id in jobs} == ({"queued"} if elsewhere else {"failed"})
    if not elsewhere:
        words = f"device_unavailable: no worker has had a usable device {CPU.key} for 0 s: {BROKEN}"
        assert {job_of(queue, job_id).error for job_id in jobs} == {words}


def test_a_waiting_job_s_fallback_is_tried_again_where_the_device_was_not_usable(
    queue: JobQueue, broken: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, waiting = submit(queue), submit(queue, "131x67x31")
    fallback, failing = broken.fallback, ["131x67x31:f16:nt"]

    def fallback_of(request: JobRequest, cancel: threading.Event, _on_event: object = None) -> object:
        if str(request.gemm) in failing:
            raise BROKEN
        return fallback(request, cancel)

    monkeypatch.setattr(broken, "fallback", fallback_of)
    broken.fail_with, broken.candidates = None, 1
    runner = JobRunner(queue, broken.store, broken, "one")
    assert runner.run_one()
    assert {job_of(queue, job_id).status for job_id in (running, waiting)} == {"queued"}
    failing.clear()
    assert runner.run_one()
    assert job_of(queue, running).status == "done"
    assert job_of(queue, waiting).fallback_id is not None


@pytest.mark.parametrize("candidates", [0, 1])
@pytest.mark.parametrize("fault", [BROKEN, NO_LINKER], ids=["device", "builds"])
def test_a_waiting_job_whose_fallback_breaks_the_device_does_not_fail_the_running_one(
    queue: JobQueue,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    candidates: int,
    fault: DeviceUnavailable | BuildersUnusable,
) -> None:
    engine = engine_of(database)
    engine.candidates = candidates
    engine.gate.clear()
    running, breaking = submit(queue), submit(queue, "131x67x31")
    fallback = engine.fallback

    def fallback_of(request: JobRequest, cancel: threading.Event, _on_event: object = None) -> object:
        if request.gemm.m == 131:
            raise fault
        return fallback(request, cancel)

    monkeypatch.setattr(engine, "fallback", fallback_of)
    runner = JobRunner(queue, engine.store, engine, "one")
    for _ in range(job_runner.MAX_DEVICE_FAILURES):
        assert runner.run_one()
        assert {job_of(queue, job_id).status for job_id in (running, breaking)} == {"queued"}
    engine.gate.set()
    assert runner.run_one()
    assert job_of(queue, running).status == "done"
    assert runner.run_one()
    assert job_of(queue, breaking).status == "failed"


def test_a_job_that_is_put_back_counts_its_device_s_failures_from_none(queue: JobQueue, broken: ScriptedEngine) -> None:
    broken.candidates = 0
    job_id = submit(queue)
    runner = JobRunner(queue, broken.store, broken, "one")
    for _ in range(job_runner.MAX_DEVICE_FAILURES):
        assert runner.run_one()
    queue.retry(job_id)
    assert runner.run_one()
    assert job_of(queue, job_id).status == "queued"


def test_jobs_wait_where_another_worker_had_a_usable_device_lately(
    queue: JobQueue, broken: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(job_runner, "time", SimpleNamespace(monotonic=lambda: now[0]))
    queue.register_worker("another", [CPU])
    job_id = submit(queue)
    runner = JobRunner(queue, broken.store, broken, "one", lease_s=60.0)
    assert runner.run_one()

    def status_at(seconds: float) -> str:
        now[0] = seconds
        assert not runner._is_usable()
        return job_of(queue, job_id).status

    assert status_at(job_runner.UNUSABLE_SECONDS - 5) == "queued"
    queue.remove_worker("another")  # which is started anew, say
    assert status_at(job_runner.UNUSABLE_SECONDS + 60) == "queued"
    assert status_at(2 * job_runner.UNUSABLE_SECONDS) == "failed"


def test_a_stop_is_heard_while_waiting_jobs_are_failed(
    queue: JobQueue, broken: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(job_runner, "UNUSABLE_SECONDS", 0.0)
    jobs = [submit(queue, f"{m}x67x31") for m in (129, 131)]
    runner = JobRunner(queue, broken.store, broken, "one")
    assert runner.run_one()
    finish = queue.finish

    def finish_and_stop(*arguments: Any, **options: Any) -> bool:
        runner.stop()
        return finish(*arguments, **options)

    monkeypatch.setattr(queue, "finish", finish_and_stop)
    assert not runner._is_usable()
    assert [job_of(queue, job_id).status for job_id in jobs] == ["failed", "queued"]


def test_a_worker_tells_which_of_its_devices_cannot_be_used(
    queue: JobQueue, broken: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "FIRST_PAUSE_SECONDS", LONG_S)
    submit(queue)

    class Fleet:
        def engines(self) -> list[ScriptedEngine]:
            return [broken]

        def close(self) -> None: ...

    worker = Worker(queue, broken.store, Fleet(), lease_s=0.5)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: any(record.unusable for record in queue.live_workers(60)))
    (record,) = queue.live_workers(60)
    assert record.unusable == [(CPU, str(BROKEN))]
    assert record.devices == (CPU,)
    assert record.usable_keys == set()
    worker.stop()
    thread.join(PATIENCE_S)


def test_an_engine_opens_its_device_in_the_measuring_process(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, cancel, asked = FakeBench(), threading.Event(), list[object]()

    def require_usable(flag: threading.Event) -> None:
        asked.append(flag)
        raise BROKEN

    monkeypatch.setattr(bench.fake, "require_usable", require_usable, raising=False)
    with pytest.raises(DeviceUnavailable, match="GPU-1 cannot be opened"):
        TuningEngine(CPU, lambda _: bench, TunerImports()).require_usable(cancel)
    assert asked == [cancel]


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> list[TuningEngine]:
    """Engines of two devices of a kind, with warm workbenches."""
    benches = [FakeBench(), FakeBench()]
    for bench in benches:
        monkeypatch.setattr(bench.fake, "require_usable", lambda _flag: None, raising=False)
    engines: list[TuningEngine] = []
    engines += [TuningEngine(CPU, partial(_given, bench), TunerImports(), lambda: engines) for bench in benches]
    for engine in engines:
        engine.require_usable(threading.Event())
    return engines


def _given(bench: FakeBench, _device: Device) -> FakeBench:
    return bench


def test_a_device_that_could_not_be_opened_is_not_lent(alike: list[TuningEngine]) -> None:
    one, another = alike
    measurer = one.lent()
    assert measurer is not None
    assert another._helpers() == [measurer]
    measurer.unusable = True
    assert one.lent() is None
    assert another._helpers() == []


def test_devices_that_helped_are_warmed_with_the_engine_s_own(
    alike: list[TuningEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TunerImports, "start", lambda _self: None)
    benches: list[Any] = [engine._bench() for engine in alike]
    for bench in benches:
        bench.begun.clear()
    alike[0].warm()
    assert [bench.begun for bench in benches] == [["builds", "measuring"], ["measuring"]]


def test_a_service_says_which_devices_cannot_be_used(service: Service) -> None:
    another = CPU.with_(model="another model", uuid="cpu-another")
    service.queue.register_worker("worker:1:0", [CPU, another], faults=["", str(BROKEN)])
    unusable = [{"key": another.key, "name": another.name, "worker": "worker:1:0", "reason": str(BROKEN)}]
    ready = service.http.get("/readyz")
    assert ready.status_code == 200
    assert [each for each in ready.json()["unusable"] if each["worker"] == "worker:1:0"] == unusable
    (told,) = [w for w in service.http.get("/v1/meta").json()["workers"] if w["name"] == "worker:1:0"]
    assert told["unusable"] == unusable
    page = service.http.get("/fleet", headers={"Accept": "text/html"})
    assert str(BROKEN) in page.text
