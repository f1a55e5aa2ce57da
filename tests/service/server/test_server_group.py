"""``serve --server-processes``: several processes on one port that keep the promises of one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.service.support import AUTHORITIES, CPU, ODD, kernel_record
from tests.waiting import PATIENCE_S, until
from tirgemm._client.own_service import own_service_keys
from tirgemm.gemm import Gemm
from tirgemm.service.access.access_control import CACHE_SECONDS
from tirgemm.service.http.kernel_cache.snapshot_cache import MAX_AGE_SECONDS
from tirgemm.tuning_db import Database, JobRequest, SqlStore
from tirgemm.tuning_db.access.api_keys import KeyTable, Quotas
from verification.service.processes import Serve, alive, children, command_line, descendants

REQUEST = JobRequest(Gemm.parse(ODD), CPU)
BODY = {"gemm": ODD, "device": CPU.key}


def members(server: Serve) -> list[int]:
    return [pid for pid in children(server.process.pid) if b"group_member" in command_line(pid)]


@contextmanager
def asking(server: Serve, member: int) -> Iterator[httpx.Client]:
    """A client whose connections this process alone accepts: the others are stopped meanwhile."""
    others = [pid for pid in members(server) if pid != member]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S, verify=AUTHORITIES) as http:
            assert http.get("/healthz").status_code == 200
            yield http
    finally:
        for pid in filter(alive, others):
            os.kill(pid, signal.SIGCONT)


def posted(http: httpx.Client) -> int:
    """How many requests for kernels have been answered, as a process tells it."""
    samples = (
        sample for family in text_string_to_metric_families(http.get("/metrics").text) for sample in family.samples
    )
    name, of_kernels = "tirgemm_requests_total", {"method": "POST", "route": "/v1/kernels"}
    return round(sum(one.value for one in samples if one.name == name and of_kernels.items() <= one.labels.items()))


def test_what_one_process_changes_counts_or_refuses_holds_in_the_others(tmp_path: Path) -> None:
    with Database.embedded(tmp_path) as database:
        old = kernel_record(SqlStore(database), REQUEST, salt="old", search={"effort": "standard"}).id
    with Serve(tmp_path, "--no-worker", "--server-processes", "2") as server, Database.embedded(tmp_path) as database:
        one, other = members(server)
        assert own_service_keys(server.url), "this user's own, by the lock and the port of one process"

        def answered(member: int) -> str:
            with asking(server, member) as http:
                answer = http.post("/v1/kernels", json=BODY)
                assert answer.status_code == 200
                return str(answer.json()["id"])

        assert answered(one) == answered(other) == answered(one) == answered(other) == old
        new = kernel_record(SqlStore(database), REQUEST, salt="new", search={"effort": "standard"}).id
        time.sleep(MAX_AGE_SECONDS)
        assert answered(one) == answered(other) == new
        with asking(server, one) as http:
            assert http.put(f"/v1/kernels/{old}/pin").status_code == 200
        assert answered(other) == old, "at once"
        for member in (one, other):
            with asking(server, member) as http:
                assert posted(http) == 7
        keys = KeyTable(database)
        admin, secret = keys.create("admin", "admin")
        _, slow = keys.create("slow", "tune", quotas=Quotas(requests_per_second=0.001))
        time.sleep(CACHE_SECONDS)

        def statuses(key: str) -> list[int]:
            codes = []
            for member in (one, other):
                with asking(server, member) as http:
                    codes.append(http.get("/v1/meta", headers={"Authorization": f"Bearer {key}"}).status_code)
            return codes

        assert statuses("tirgemm_wrong") == [401, 401]
        assert statuses(slow) == [200, 429], "the rate is that of all processes together"
        assert statuses(secret) == [200, 200]
        assert keys.revoke(admin.id)
        time.sleep(CACHE_SECONDS)
        assert statuses(secret) == [401, 401]
        mine = descendants(server.process.pid)
        server.process.kill()
        server.process.wait(PATIENCE_S)
        until(lambda: not any(map(alive, mine)))


def test_a_process_that_dies_is_replaced_and_the_others_lose_no_request(tmp_path: Path) -> None:
    with Database.embedded(tmp_path) as database:
        kernel_record(SqlStore(database), REQUEST, search={"effort": "standard"})
    with Serve(tmp_path, "--server-processes", "2") as server:
        first, second = members(server)
        with asking(server, first) as http:
            assert http.post("/v1/kernels", json=BODY).status_code == 200
        done, codes = threading.Event(), list[int]()
        with asking(server, second) as http:
            assert http.get("/readyz").json()["workers"] == 1

            def ask() -> None:
                while not done.is_set():
                    codes.append(http.post("/v1/kernels", json=BODY).status_code)

            asker = threading.Thread(target=ask)
            asker.start()
            os.kill(first, signal.SIGKILL)
            until(lambda: not alive(first) and len(members(server)) == 2)
            (third,) = set(members(server)) - {second}
            with httpx.Client(base_url=server.url, timeout=PATIENCE_S, verify=AUTHORITIES) as fresh:
                assert fresh.post("/v1/kernels", json=BODY).status_code == 200, "nobody waits for the new process"
            done.set()
            asker.join()
        assert set(codes) == {200}
        with asking(server, third) as http:
            assert http.post("/v1/kernels", json=BODY).status_code == 200
            assert posted(http) == len(codes) + 3
        mine = descendants(server.process.pid)
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - begun < 10
        assert not any(map(alive, mine))
        assert not list(tmp_path.glob("server.json"))
