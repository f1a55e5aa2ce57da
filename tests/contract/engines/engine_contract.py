"""What every engine is held to: real searches on real CPU devices, with a worker and without."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.traces.kept_spans import kept_spans
from tests.waiting import PATIENCE_S, until
from tirgemm.artifact import Signer, Trust, read
from tirgemm.detect import device as detect_device
from tirgemm.errors import Cancelled, DeviceUnavailable
from tirgemm.events import CandidateRecorded, Event
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.jobs.engine import Fleet
from tirgemm.service.jobs.worker import Worker
from tirgemm.status import ENDED
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.process import spans
from tirgemm.tuning_db import Database, Job, JobQueue, JobRequest, SqlStore

CPU = detect_device("cpu")
SIGNER = Signer.generate()


def request(text: str, trials: int = 2) -> JobRequest:
    return JobRequest(Gemm.parse(text), CPU, trials=trials, effort=Effort.QUICK)


class MeetingQueue(JobQueue):
    """Whose first two claims are of two runners: each begins its job when the other has one, however late its thread
    has a turn."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._both = threading.Barrier(2)

    def claim(self, *arguments: Any, **options: Any) -> Job | None:
        job = super().claim(*arguments, **options)
        if job is not None:
            self._both.wait(PATIENCE_S)
        return job


@contextmanager
def working(queue: JobQueue, store: SqlStore, fleet: Fleet) -> Iterator[Worker]:
    """A worker of the fleet, in a thread."""
    worker = Worker(queue, store, fleet, lease_s=600.0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def ended(queue: JobQueue, job_ids: list[str]) -> list[Job]:
    """The jobs, once all of them have ended."""
    until(lambda: all(progress.status in ENDED for progress in queue.progress(job_ids).values()))
    return [job for job in map(queue.job, job_ids) if job is not None]


class EngineContract:
    """Inherit it, and give the fixture ``fleet``: two engines of this machine's CPU, as if it were two, on the fixture
    ``store``, whose artifacts ``SIGNER`` signs."""

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
        with Database.embedded(tmp_path_factory.mktemp("data")) as database:
            yield SqlStore(database)

    def test_a_worker_brings_jobs_to_certified_signed_kernels(self, fleet: Fleet, store: SqlStore) -> None:
        queue = MeetingQueue(store.db)
        asked = [request(f"{m}x48x16:f32:nt") for m in (31, 33)]
        with working(queue, store, fleet) as worker:
            jobs = ended(queue, [queue.submit(one)[0].id for one in asked])
            until(lambda: sum(queue.live_workers(60)[0].measuring) > 0)
            assert [device.key for device in worker.devices] == [CPU.key] * 2
        assert [(job.status, job.error, job.attempts) for job in jobs] == [("done", None, 1)] * 2
        assert len({job.owner for job in jobs}) == 2, "each was tuned on a device of its own, side by side"
        for one, job in zip(asked, jobs, strict=True):
            kernel = store.kernel_by_id(str(job.kernel_id))
            assert kernel is not None
            manifest = read(store.get_blob(kernel.artifact_sha256), Trust.of(SIGNER.public)).manifest
            assert (manifest.gemm, manifest.role, manifest.certificate_fault) == (one.gemm, "tuned", "")
            candidates = store.candidates(one.gemm, CPU.key, one.regime)
            assert len(candidates) == len({candidate.config for candidate in candidates})
            assert {candidate.attempt for candidate in candidates} == {1}, "none was tried twice"

    def test_a_cancelled_search_ends_soon_and_the_next_one_works(self, fleet: Fleet, store: SqlStore) -> None:
        (engine, *_), cancel, one = fleet.engines(), threading.Event(), request("37x48x16:f32:nt", trials=50)

        def on_event(event: Event) -> None:
            if isinstance(event, CandidateRecorded):
                cancel.set()

        with pytest.raises(Cancelled):
            engine.tune(one, on_event, cancel, lambda: None)
        kept = store.candidates(one.gemm, CPU.key, one.regime)
        assert 0 < len(kept) < 8, "what was measured by then is kept, and no more was"
        kernel = engine.tune(request("37x48x16:f32:nt"), lambda _event: None, threading.Event(), lambda: None)
        assert kernel.role == "tuned"
        candidates = store.candidates(one.gemm, CPU.key, one.regime)
        assert {candidate.key for candidate in kept} <= {candidate.key for candidate in candidates}
        assert {candidate.attempt for candidate in candidates} == {1}, "what was interrupted does not count"

    def test_a_kernel_for_a_device_that_is_not_here_is_built_and_marked(self, fleet: Fleet, store: SqlStore) -> None:
        (engine, *_), one = fleet.engines(), request("64x64x64:f16:nt")
        absent = JobRequest(one.gemm, named_device("sm_80"), verify=False)
        kernel = engine.cross_compile(absent, lambda _event: None, threading.Event())
        assert (kernel.role, kernel.device.key, kernel.certificate) == ("unverified", absent.device.key, None)
        assert store.get_blob(kernel.artifact_sha256)
        with pytest.raises(DeviceUnavailable, match="not cuda"):
            engine.fallback(absent, threading.Event())

    def test_the_spans_of_building_and_measuring_processes_are_part_of_the_job_s_trace(self, fleet: Fleet) -> None:
        (engine, *_), one = fleet.engines(), request("39x48x16:f32:nt")
        absent = JobRequest(Gemm.parse("72x64x64:f16:nt"), named_device("sm_80"), verify=False)
        with kept_spans() as kept:
            with spans.span("job"):
                engine.tune(one, lambda _event: None, threading.Event(), lambda: None)
            with spans.span("absent"):
                engine.cross_compile(absent, lambda _event: None, threading.Event())
        recorded = kept.exporter.get_finished_spans()
        paths = {" < ".join(kept.path(span)) for span in recorded}
        assert {
            "instantiate < compile < build < batch < search < job",
            "verify < measure < candidate < search < job",
            "time < measure < candidate < search < job",
            "time < measure < race < job",
            "verify < measure < certify < job",
        } <= paths
        for part in ("instantiate", "lower", "nvrtc"):
            assert any(path.startswith(f"{part} < compile < build < ") and path.endswith("absent") for path in paths)
        assert len({span.context.trace_id for span in recorded if span.context}) == 2
        building, measuring = (
            {(span.attributes or {})["process.pid"] for span in recorded if span.name == name}
            for name in ("compile", "verify")
        )
        assert not building & measuring
        assert os.getpid() not in building | measuring
