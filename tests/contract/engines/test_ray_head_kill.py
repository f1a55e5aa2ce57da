"""The kill of a whole Ray cluster, its head too, in the middle of a job."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.contract.engines.ray_cluster_process import ClusterProcess
from tests.waiting import PATIENCE_S, until
from tirgemm.gemm import Gemm
from tirgemm.status import LIVE
from tirgemm.tuning_db import Database
from verification.service.kills import JOB_SECONDS, LEASE_SECONDS, Records, lost, measured_twice, survivors
from verification.service.processes import Serve, eventually

pytest.importorskip("ray", reason="Ray is not installed here: `make ray-tests` runs these")

GEMM = Gemm(35, 27, 29, dtype="f32", layout="nn")
# After so long without a head Ray ends the process that has joined its cluster: a minute, where this is not set.
RAY_PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("back", ["at once", "once a worker has missed it"])
def test_a_job_goes_on_when_a_killed_cluster_is_there_again(tmp_path: Path, back: str) -> None:
    with closing(ClusterProcess(free_port(), 1)) as cluster:
        options = ("--engine", "ray", "--address", cluster.address, "--lease-seconds", f"{LEASE_SECONDS:g}")
        environment = {} if back == "at once" else RAY_PATIENCE
        with (
            Serve(tmp_path, *options, "--devices", "cpu", environment=environment) as server,
            Database.embedded(tmp_path) as database,
        ):
            body = {"gemm": str(GEMM), "budget": {"trials": 8, "seconds": 120}}
            answer = httpx.post(f"{server.url}/v1/kernels", json=body, headers={"Prefer": "wait=0"}, timeout=PATIENCE_S)
            records, worker = Records(database, answer.json()["job"]["id"], GEMM), server.worker_pid()
            until(lambda: len(records.candidates()) >= 2)
            job = records.job()
            killed = cluster.kill()
            assert survivors(killed, "the cluster", PATIENCE_S) == []
            before, events = records.candidates(), records.events()
            assert job.status == "running"
            assert records.job().status in LIVE, "it was killed in the middle of the job"
            if back != "at once":
                until(lambda: "there is no Ray cluster at" in server.log.read_text())
            cluster.start()
            assert eventually(lambda: records.job().status == "done", JOB_SECONDS, 0.1), server.log.read_text()
            ended, after = records.job(), records.candidates()
            assert records.certified()
            assert server.worker_pid() != worker
            assert records.events()[: len(events)] == events
    assert ended.error is None
    assert ended.owner != job.owner
    assert len(after) > len(before), "the search went on"
    assert lost(before, after) + measured_twice(after) == []
