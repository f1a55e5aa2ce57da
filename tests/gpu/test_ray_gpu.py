"""The engine on a Ray cluster whose nodes have a GPU: jobs, a GPU that one actor owns, a cancelled search, a node that
is lost while it measures.

Ray is in no environment of ``make test``: where there is a GPU and Ray, `python -m pytest tests/gpu/test_ray_gpu.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.contract.engines.engine_contract import CPU, SIGNER, ended, working
from tests.traces.kept_spans import kept_spans
from tests.waiting import PATIENCE_S, until
from tirgemm.artifact import Trust, read
from tirgemm.detect import devices
from tirgemm.device import Device
from tirgemm.errors import Cancelled
from tirgemm.events import CandidateRecorded, Event
from tirgemm.gemm import Gemm
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.process import spans
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore
from verification.service.kills import survivors
from verification.service.ray_cluster import kill_node, running_cluster

pytest.importorskip("ray", reason="Ray is not installed here")

import ray

from tirgemm.service.jobs import worker as worker_module
from tirgemm.service.jobs.ray_fleet import RayFleet

GPUS = [device for device in devices() if device.kind == "cuda"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU")]

CORES = 8


def request(text: str, trials: int = 3, device: Device | None = None) -> JobRequest:
    return JobRequest(Gemm.parse(text), device or GPUS[0], trials=trials, effort=Effort.QUICK)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that builds nothing and a node with one GPU."""
    with pytest.MonkeyPatch.context() as patch:
        # Ray sets it where it connects, for good.
        patch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb._driver_set_trace")
        with running_cluster(0) as cluster:
            cluster.add_node(num_cpus=CORES, num_gpus=1)
            yield cluster


def test_one_worker_s_jobs_for_a_node_s_gpu_and_for_its_cpu_end_as_certified_kernels(
    cluster: Any, tmp_path: Path
) -> None:
    asked = [request("512x512x512:f16:nt"), request("512x768x256:bf16:nn"), request("31x48x16:f32:nt", device=CPU)]
    with Database.embedded(tmp_path / "data") as database:
        store, queue = SqlStore(database), JobQueue(database)
        fleet = RayFleet(store, SIGNER, cluster.address, kinds=("cuda", "cpu"), lock_dir=tmp_path / "locks")
        with closing(fleet), working(queue, store, fleet) as worker:
            assert {device.key for device in worker.devices} == {GPUS[0].key, CPU.key}
            jobs = ended(queue, [queue.submit(one)[0].id for one in asked])
        assert [(job.status, job.error, job.attempts) for job in jobs] == [("done", None, 1)] * 3
        for one, job in zip(asked, jobs, strict=True):
            kernel = store.kernel_by_id(str(job.kernel_id))
            assert kernel is not None
            assert kernel.device.key == one.device.key
            manifest = read(store.get_blob(kernel.artifact_sha256), Trust.of(SIGNER.public)).manifest
            assert (manifest.gemm, manifest.role, manifest.certificate_fault) == (one.gemm, "tuned", "")
            candidates = store.candidates(one.gemm, one.device.key, one.regime)
            assert {candidate.attempt for candidate in candidates} == {1}
            assert "measured" in {candidate.status for candidate in candidates}


def test_an_actor_owns_its_gpu_and_spans_of_what_it_measures_come_back(cluster: Any, tmp_path: Path) -> None:
    with Database.embedded(tmp_path / "data") as database:
        fleet = RayFleet(SqlStore(database), SIGNER, cluster.address, kinds=("cuda",), lock_dir=tmp_path / "locks")
        with closing(fleet), kept_spans() as kept:
            (engine,) = fleet.engines()
            until(lambda: ray.available_resources().get("GPU", 0) == 0)
            with spans.span("job"):
                engine.tune(request("512x512x320:f16:nt"), lambda _event: None, threading.Event(), lambda: None)
        until(lambda: ray.is_initialized() is False)
    paths = {" < ".join(kept.path(span)) for span in kept.exporter.get_finished_spans()}
    assert any(path.startswith("nvrtc < compile < build < ") and path.endswith(" < job") for path in paths)
    assert {
        "verify < measure < candidate < search < job",
        "time < measure < candidate < search < job",
        "time < measure < race < job",
    } <= paths


def test_a_cancelled_search_ends_while_the_gpu_measures_and_the_next_one_works(cluster: Any, tmp_path: Path) -> None:
    one, cancel = request("1024x512x512:f16:nt", trials=40), threading.Event()
    with Database.embedded(tmp_path / "data") as database:
        store = SqlStore(database)
        fleet = RayFleet(store, SIGNER, cluster.address, kinds=("cuda",), lock_dir=tmp_path / "locks")

        def on_event(event: Event) -> None:
            if isinstance(event, CandidateRecorded):
                cancel.set()

        with closing(fleet):
            (engine,) = fleet.engines()
            with pytest.raises(Cancelled):
                engine.tune(one, on_event, cancel, lambda: None)
            kept = store.candidates(one.gemm, GPUS[0].key, one.regime)
            kernel = engine.tune(request("1024x512x512:f16:nt"), lambda _event: None, threading.Event(), lambda: None)
        assert len(kept) < 20
        assert kernel.role == "tuned"
        candidates = store.candidates(one.gemm, GPUS[0].key, one.regime)
        assert {candidate.attempt for candidate in candidates} == {1}, "what was interrupted does not count"


def test_a_job_goes_on_with_the_gpu_of_a_node_that_comes_when_its_own_is_lost(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LOOK_SECONDS", 0.2)
    one = request("768x768x512:f16:nt", trials=24)
    (lost,) = cluster.worker_nodes
    with Database.embedded(tmp_path / "data") as database:
        store, queue = SqlStore(database), JobQueue(database)
        fleet = RayFleet(store, SIGNER, cluster.address, kinds=("cuda",), lock_dir=tmp_path / "locks")
        with closing(fleet), working(queue, store, fleet) as worker:
            job_id = queue.submit(one)[0].id
            until(lambda: bool(store.candidates(one.gemm, GPUS[0].key, one.regime)))
            left = kill_node(cluster, lost)
            assert survivors(left, "the node", PATIENCE_S) == []
            until(lambda: not worker.devices)
            cluster.add_node(num_cpus=CORES, num_gpus=1)
            (job,) = ended(queue, [job_id])
        assert (job.status, job.error, job.attempts) == ("done", None, 1)
        candidates = store.candidates(one.gemm, GPUS[0].key, one.regime)
        assert {candidate.attempt for candidate in candidates} == {1}, "none was tried twice"
