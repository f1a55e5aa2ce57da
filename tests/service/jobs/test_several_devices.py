"""A worker of several devices: each works on a job of its own, at the same time as the others."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench
from tests.service.support import CPU, ODD, ScriptedEngine
from tests.tuning.build.heard_builds import HeardBuilds
from tests.waiting import PATIENCE_S, until
from tirgemm.artifact import Signer
from tirgemm.config import Config
from tirgemm.detect import devices
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, DeviceUnavailable, InvalidDevice
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.jobs import job_runner
from tirgemm.service.jobs.engine import FALLBACKS_AHEAD, TunerImports, TuningEngine
from tirgemm.service.jobs.fleets import chosen_devices
from tirgemm.service.jobs.job_runner import JobRunner
from tirgemm.service.jobs.worker import Worker
from tirgemm.tuning.build.prepared import PreparedBuilds
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning_db import Database, Job, JobQueue, JobRequest, SqlStore

OTHER = CPU.with_(model="another model", uuid="cpu-another")


class ScriptedFleet:
    """Engines that the test drives, each of one device."""

    def __init__(self, *engines: ScriptedEngine) -> None:
        self._engines = engines

    def engines(self) -> tuple[ScriptedEngine, ...]:
        return self._engines

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


def engine_of(database: Database, device: Device) -> ScriptedEngine:
    engine = ScriptedEngine(SqlStore(database), [device])
    engine.fallback_gate.set()
    return engine


def submit(queue: JobQueue, gemm: str, device: Device = CPU) -> str:
    return queue.submit(JobRequest(Gemm.parse(gemm), device))[0].id


def job_of(queue: JobQueue, job_id: str) -> Job:
    job = queue.job(job_id)
    assert job is not None
    return job


def test_every_device_works_on_a_job_of_its_own(database: Database, queue: JobQueue) -> None:
    engines = [engine_of(database, device) for device in (CPU, CPU, OTHER)]
    worker = Worker(queue, SqlStore(database), ScriptedFleet(*engines), lease_s=60.0)
    thread = threading.Thread(target=worker.run)
    alike = [submit(queue, f"{m}x67x31") for m in (129, 131, 133)]
    other = submit(queue, ODD, OTHER)
    thread.start()
    until(lambda: all("tune" in dict(engine.calls) for engine in engines))
    begun = [job_id for job_id in (*alike, other) if job_of(queue, job_id).status == "running"]
    (waiting,) = set(alike) - set(begun)  # for a device of its kind
    assert other in begun
    owners = {job_of(queue, job_id).owner for job_id in begun}
    assert len(owners) == 3
    assert all(str(owner).startswith(worker.name) for owner in owners)
    assert [call for call in engines[2].calls if call[0] == "tune"] == [("tune", ODD)]
    assert [record.devices for record in queue.live_workers(60)] == [(CPU, CPU, OTHER)], "it is one worker"
    until(lambda: job_of(queue, waiting).fallback_id is not None)
    worker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert {job_of(queue, job_id).status for job_id in (*alike, other)} == {"queued"}, "all of them are handed back"
    assert {job_of(queue, job_id).attempts for job_id in (*alike, other)} == {0}


def test_what_no_engine_may_do_ends_the_worker_with_all_jobs_handed_back(
    database: Database, queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, broken = engine_of(database, CPU), engine_of(database, OTHER)
    worker = Worker(queue, good.store, ScriptedFleet(good, broken), lease_s=60.0)
    job_id = submit(queue, ODD)

    def warm() -> None:
        until(lambda: job_of(queue, job_id).status == "running")
        raise ZeroDivisionError("the engine is broken")

    monkeypatch.setattr(job_runner, "WARM_SECONDS", 0)
    monkeypatch.setattr(broken, "warm", warm)
    with pytest.raises(ZeroDivisionError, match="broken"):
        worker.run()
    assert job_of(queue, job_id).status == "queued"
    assert queue.live_workers(60) == []


@pytest.mark.parametrize("error", [DeviceUnavailable("the node is lost"), RuntimeError("a build was cancelled")])
def test_a_job_whose_device_is_lost_goes_back_to_the_queue(
    database: Database, queue: JobQueue, error: Exception
) -> None:
    engine = engine_of(database, CPU)
    engine.gate.set()
    engine.fail_with = error
    job_id = submit(queue, ODD)
    runner = JobRunner(queue, engine.store, engine, "one")
    engine.devices_here = []
    assert runner.run_one()
    assert (job_of(queue, job_id).status, job_of(queue, job_id).attempts) == ("queued", 0)


class Measuring(ScriptedEngine):
    """An engine that has measured for some seconds."""

    def measuring_seconds(self) -> list[float]:
        return [4.5]


def test_a_worker_tells_for_how_long_it_has_measured_on_each_device(database: Database, queue: JobQueue) -> None:
    engines = [engine_of(database, CPU), Measuring(SqlStore(database), [OTHER])]
    worker = Worker(queue, SqlStore(database), ScriptedFleet(*engines), lease_s=60.0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: [record.measuring for record in queue.live_workers(60)] == [(0.0, 4.5)])
    worker.stop()
    thread.join(PATIENCE_S)


def test_a_search_may_use_idle_devices_of_its_kind() -> None:
    benches: dict[str, FakeBench] = {}

    def open_bench(device: Device) -> FakeBench:
        bench = benches[device.uuid] = FakeBench()
        bench.device = device
        return bench

    imports = TunerImports()
    alike, another = CPU.with_(uuid="cpu-alike"), OTHER
    engines: list[TuningEngine] = []
    engines += [TuningEngine(device, open_bench, imports, lambda: engines) for device in (CPU, alike, another)]
    engines[0].warm()
    bench = benches[CPU.uuid]
    assert bench.helpers() == [], "nothing is started for it"
    for engine in engines[1:]:
        engine.warm()
    assert bench.helpers() == [benches["cpu-alike"].measurer]
    seen: list[object] = []
    engines[1].tune(
        JobRequest(Gemm.parse(ODD), CPU, trials=2),
        lambda _event: seen.append(bench.helpers()),
        threading.Event(),
        lambda: None,
    )
    assert seen
    assert not any(seen), "it is not lent while it works"
    assert bench.helpers() == [benches["cpu-alike"].measurer]


def test_engines_of_one_kind_prepare_a_job_for_each_of_them() -> None:
    gpus = [named_device("sm_90a").with_(uuid=f"GPU-{index}", index=index) for index in range(2)]

    signer = Signer.generate()

    def open_bench(device: Device) -> FakeBench:
        bench = FakeBench()
        bench.device, bench.signer = device, signer
        return bench

    builders, imports = HeardBuilds(), TunerImports()
    prepared = PreparedBuilds(gpus[0], builders)
    engines: list[TuningEngine] = []
    engines += [TuningEngine(gpu, open_bench, imports, lambda: engines, prepared) for gpu in gpus]
    waiting = [
        JobRequest(Gemm(m, 512, 512), gpus[0], effort=effort)
        for m, effort in ((500, Effort.QUICK), (501, Effort.NONE), (502, Effort.QUICK), (503, Effort.QUICK))
    ]
    engines[0].prepare(waiting, waiting)
    assert builders.asked == [], "before its first job it has nothing to build with"
    for engine in engines:
        engine.warm()
        engine.prepare([JobRequest(Gemm(9, 9, 9), CPU), *waiting], [])
    first = Tuning(waiting[0].gemm, open_bench(gpus[0]), budget=waiting[0].budget).openings()
    assert len(first) >= Effort.QUICK.first
    assert builders.asked == [(waiting[0].gemm, config) for config in first], "of two, one builds but its default"
    with engines[1].holding(waiting[0]):
        engines[0].prepare(waiting[1:], [])
        assert not any(build.future.cancelled() for build in builders.builds[: len(first)]), "its job runs elsewhere"
        engines[1].tune(waiting[0], lambda _event: None, threading.Event(), lambda: None)
    assert all(build.future.cancelled() for build in builders.builds[: len(first)]), "what is left is given up"
    engines[1].prepare(waiting[1:], waiting[2:])
    asked = [build for build in builders.asked if build[0] != waiting[0].gemm]
    assert {gemm for gemm, _ in asked} == {waiting[2].gemm, waiting[3].gemm}
    default = Tuning(waiting[3].gemm, open_bench(gpus[0])).default()[1]
    assert [config for gemm, config in asked if gemm == waiting[3].gemm] == [default], "that is two jobs away"


def test_fallbacks_are_built_ahead_for_what_all_devices_make_meanwhile_and_no_further() -> None:
    gpus = [named_device("sm_90a").with_(uuid=f"GPU-{index}", index=index) for index in range(2)]

    def open_bench(device: Device) -> FakeBench:
        bench = FakeBench()
        bench.device = device
        return bench

    builders, engines = HeardBuilds(), list[TuningEngine]()
    prepared, imports = PreparedBuilds(gpus[0], builders), TunerImports()
    engines += [TuningEngine(gpu, open_bench, imports, lambda: engines, prepared) for gpu in gpus]
    waiting = [JobRequest(Gemm(500 + m, 512, 512), gpus[0], effort=Effort.NONE) for m in range(40)]
    ahead = len(gpus) * FALLBACKS_AHEAD
    assert engines[0].prepare(waiting, waiting) == waiting, "where nothing is begun ahead none is worth waiting for"
    for engine in engines:
        engine.warm()
        assert engine.prepare(waiting, waiting) == []
    assert [gemm for gemm, _ in builders.asked] == [request.gemm for request in waiting[:ahead]]
    for number in (3, 5, ahead - 1):
        builders.builds[number].future.set_exception(BuildFailed("ptxas: too many registers"))
    assert engines[1].prepare(waiting, waiting) == [waiting[number] for number in (3, 5, ahead - 1)]
    assert engines[0].prepare(waiting[4:], waiting[4:]) == [waiting[5], waiting[ahead - 1]]
    assert [gemm for gemm, _ in builders.asked] == [request.gemm for request in waiting[: ahead + 4]]


def test_what_a_job_needs_is_not_given_up_between_its_claim_and_its_hold(
    database: Database, queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    gemm, config = Gemm.parse(ODD), Config("planted", (("what", "one"),))
    builders = HeardBuilds()
    prepared = PreparedBuilds(named_device("sm_90a"), builders)
    prepared.prepare({(gemm, "opening"): lambda: [config]})
    (build,) = builders.builds
    alike = TuningEngine(CPU, lambda _: FakeBench(), TunerImports(), prepared=prepared)
    engine = engine_of(database, CPU)
    monkeypatch.setattr(engine, "claiming", alike.claiming)
    monkeypatch.setattr(engine, "holding", alike.holding)
    claim, given_up = queue.claim, list[bool]()

    def claim_while_another_prepares(*arguments: Any, **options: Any) -> Job | None:
        job = claim(*arguments, **options)
        prepared.prepare({})  # of a runner that finds no job waiting
        given_up.append(build.future.cancelled())
        return job

    monkeypatch.setattr(queue, "claim", claim_while_another_prepares)
    queue.submit(JobRequest(gemm, CPU))
    engine.gate.set()
    engine.fallback_gate.set()
    assert JobRunner(queue, engine.store, engine, "one").run_one()
    assert given_up == [False]
    assert build.future.cancelled(), "behind the job"


def test_a_worker_serves_the_devices_that_are_named() -> None:
    assert chosen_devices("all") == devices()
    assert chosen_devices("cpu") == [CPU]


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        ("cpu, cpu", InvalidDevice, "'cpu, cpu' has cpu twice"),
        ("cpu,sm_80", InvalidDevice, "only named"),
        ("cuda:99", DeviceUnavailable, "cuda:99 is not on this machine"),
        ("", InvalidDevice, "unknown"),
        ("cpu,,", InvalidDevice, "unknown"),
    ],
)
def test_a_device_that_cannot_be_served_is_refused(names: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        chosen_devices(names)
