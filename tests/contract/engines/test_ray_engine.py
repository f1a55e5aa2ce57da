"""The engine on a Ray cluster held to the contract, and nodes that come and go: real clusters of several nodes on this
machine.

Ray is in no lock and in no environment of ``make test``: `make ray-tests` makes one that has it and runs these there.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.contract.engines.engine_contract import CPU, SIGNER, EngineContract, ended, request, working
from tests.traces.kept_spans import kept_spans
from tests.waiting import PATIENCE_S, until
from tirgemm.config import Config
from tirgemm.errors import BuildFailed, DeviceUnavailable, InvalidRequest
from tirgemm.tuning.build.pool import BuildPool
from tirgemm.tuning.measure.requests import Open
from tirgemm.tuning.process import spans
from tirgemm.tuning.process.locks import DeviceLock
from tirgemm.tuning_db import Database, JobQueue, SqlStore
from verification.service.kills import survivors
from verification.service.processes import command
from verification.service.ray_cluster import add_nodes, kill_node, running_cluster

pytest.importorskip("ray", reason="Ray is not installed here: `make ray-tests` runs these")

import ray

from tirgemm.service.jobs import worker as worker_module
from tirgemm.service.jobs.ray_builds import RayBuilds
from tirgemm.service.jobs.ray_fleet import RayFleet
from tirgemm.service.jobs.ray_measuring import RemoteMeasuring


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("127.0.0.1:1", DeviceUnavailable, "no Ray cluster at 127.0.0.1:1: Connection refused"),
        ("auto", InvalidRequest, "'auto'; that of a Ray cluster is HOST:PORT"),
        ("localhost:99999", InvalidRequest, "HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there_is_named(tmp_path: Path, address: str, error: type[Exception], words: str) -> None:
    with Database.embedded(tmp_path) as database, pytest.raises(error, match=words):
        RayFleet(SqlStore(database), SIGNER, address, kinds=("cpu",))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that builds nothing and a node of one processor."""
    with pytest.MonkeyPatch.context() as patch:
        # Ray sets it where it connects, for good.
        patch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb._driver_set_trace")
        with running_cluster(1) as cluster:
            yield cluster


class TestRayEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def fleet(cls, cluster: Any, store: SqlStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayFleet]:
        fleet = RayFleet(store, SIGNER, cluster.address, kinds=("cpu",), lock_dir=tmp_path_factory.mktemp("locks"))
        yield fleet
        fleet.close()


def test_nodes_import_nothing_from_the_folder_that_the_worker_runs_in(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        Database.embedded(tmp_path / "data") as database,
        closing(RayFleet(SqlStore(database), SIGNER, cluster.address, kinds=(), lock_dir=tmp_path / "locks")),
    ):
        assert str(tmp_path) not in ray.get(ray.remote(lambda: sys.path).remote())


def test_a_warmed_engine_has_its_measuring_process_before_its_first_job(cluster: Any, tmp_path: Path) -> None:
    with Database.embedded(tmp_path / "data") as database:
        fleet = RayFleet(SqlStore(database), SIGNER, cluster.address, kinds=("cpu",), lock_dir=tmp_path / "locks")
        with closing(fleet):
            fleet.engines()
            engine, *_ = fleet.siblings()

            def measuring() -> bool:
                return bool(ray.get(engine.place._actor.__ray_call__.remote(lambda actor: actor._child is not None)))

            assert not measuring()
            engine.warm()
            until(measuring)


def test_what_a_node_s_device_waits_for_is_told(cluster: Any, tmp_path: Path) -> None:
    told, locks = list[str](), tmp_path / "locks"
    lock = DeviceLock(CPU.lock_key, locks)

    def on_wait(reason: str) -> None:
        told.append(reason)
        if reason:
            lock.release()

    with Database.embedded(tmp_path / "data") as database:
        fleet = RayFleet(SqlStore(database), SIGNER, cluster.address, kinds=("cpu",), lock_dir=locks)
        with closing(fleet):
            fleet.engines()
            engine, *_ = fleet.siblings()
            measuring = RemoteMeasuring(engine.place, locks)
            lock.acquire()
            answer = measuring.request(Open(CPU, locks), timeout_s=PATIENCE_S, on_wait=on_wait)
    assert answer == (None, None)
    assert f"pid {os.getpid()}" in told[0]
    assert [reason for reason in told[1:] if reason] == []


def test_a_build_that_fails_in_a_task_is_a_span_that_says_so_and_an_untraced_one_is_none(
    cluster: Any, tmp_path: Path
) -> None:
    with Database.embedded(tmp_path / "data") as database:
        fleet = RayFleet(SqlStore(database), SIGNER, cluster.address, kinds=(), lock_dir=tmp_path / "locks")
        with closing(fleet), closing(RayBuilds(tmp_path / "locks")) as builds, kept_spans() as kept:
            pool, gemm = BuildPool(CPU, builds), request("39x48x16:f32:nt").gemm
            for asking in (nullcontext(), spans.span("request")):
                with asking, pytest.raises(BuildFailed):
                    pool.submit(gemm, Config("unheard_of", ())).result(PATIENCE_S)
    built, compiled = kept.one("build"), kept.one("compile")
    assert kept.path(compiled) == ["compile", "build", "request"]
    assert (built.attributes or {})["error.type"] == "BuildFailed"
    assert (compiled.attributes or {})["error.type"] == "InvalidRequest"


def test_jobs_survive_the_loss_of_a_node_and_a_node_that_comes_is_used(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tirgemm.worker")
    monkeypatch.setattr(worker_module, "LOOK_SECONDS", 0.2)
    (kept,) = cluster.worker_nodes
    add_nodes(cluster, 2)
    (lost,) = cluster.worker_nodes - {kept}
    with Database.embedded(tmp_path / "data") as database:
        store, queue = SqlStore(database), JobQueue(database)
        fleet = RayFleet(store, SIGNER, cluster.address, kinds=("cpu",), lock_dir=tmp_path / "locks")
        asked = [request(f"{m}x48x16:f32:nt", trials=6) for m in (41, 43, 45)]

        def recorded() -> list[int]:
            return [len(store.candidates(one.gemm, CPU.key, one.regime)) for one in asked]

        with working(queue, store, fleet) as worker:
            assert len(worker.devices) == 3
            job_ids = [queue.submit(one)[0].id for one in asked]
            until(lambda: min(recorded()) > 0)
            assert all(progress.status == "running" for progress in queue.progress(job_ids).values())
            left = kill_node(cluster, lost)
            assert len(left) > 3, "what runs on a node, and what that started"
            assert survivors(left, "the node", PATIENCE_S) == []
            until(lambda: len(worker.devices) == 2)
            jobs = ended(queue, job_ids)
            add_nodes(cluster, 2)
            until(lambda: len(worker.devices) == 3)
        fleet.close()
        assert [(job.status, job.error, job.attempts) for job in jobs] == [("done", None, 1)] * 3
        assert "back in the queue, its device is lost" in caplog.text, "the job of the node that was lost"
        for one in asked:
            candidates = store.candidates(one.gemm, CPU.key, one.regime)
            assert {candidate.attempt for candidate in candidates} == {1}, "none was tried twice"


def test_a_gpu_that_the_driver_of_its_node_does_not_show_is_no_device(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    claimed = cluster.add_node(num_cpus=0, num_gpus=1)
    with Database.embedded(tmp_path / "data") as database:
        fleet = RayFleet(SqlStore(database), SIGNER, cluster.address, kinds=("cuda",))
        assert fleet.engines() == []
        fleet.close()
    cluster.remove_node(claimed)
    assert "shows no cuda device" in caplog.text


def test_the_worker_command_joins_a_cluster_and_leaves_it_in_good_order(cluster: Any, tmp_path: Path) -> None:
    options = ("--data", str(tmp_path), "--lock-dir", str(tmp_path / "locks"), "--engine", "ray", "--devices", "cpu")
    with Database.embedded(tmp_path) as database:
        queue = JobQueue(database)
        process = subprocess.Popen(command("worker", *options, "--address", cluster.address))
        try:
            (job,) = ended(queue, [queue.submit(request("47x48x16:f32:nt"))[0].id])
            assert (job.status, job.error) == ("done", None)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()
        assert queue.live_workers(60) == []
