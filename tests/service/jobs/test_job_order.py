"""Priority, window and retries over HTTP: what a request may say, which key may say it, and what is audited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.support import CPU, ODD, Service, queueing, serving
from tests.waiting import PATIENCE_S
from tirgemm.client import Client
from tirgemm.tuning_db.access.api_keys import ApiKey
from tirgemm.tuning_db.access.audit import StoredEntry


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with queueing(Path(tmp_path_factory.mktemp("order"))) as service:
        yield service


@pytest.fixture
def service(shared: Service) -> Iterator[Service]:
    yield shared
    for job in shared.queue.jobs():
        shared.queue.cancel(job.id)


def asked(service: Service, gemm: str = ODD, **queue: object) -> httpx.Response:
    return service.post(gemm, headers={"Prefer": "wait=0"}, queue=queue)


def test_a_request_says_how_its_job_waits(service: Service) -> None:
    job = asked(service, priority=7, window="22:00-06:00").json()["job"]
    assert (job["priority"], job["window"], job["retries"], job["batch"]) == (7, "22:00-06:00", 0, None)
    assert asked(service, "7x5x3", priority=2.0).json()["job"]["priority"] == 2, "JSON has one kind of number"
    assert asked(service, "7x5x3", priority=2.5).status_code == 422
    joined = asked(service, priority=-3).json()["job"]
    assert (joined["id"], joined["priority"], joined["window"]) == (job["id"], 7, None)


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ({"priority": 101}, "queue.priority"),
        ({"priority": "high"}, "queue.priority"),
        ({"window": "at night"}, "queue.window"),
        ({"window": "06:00-06:00"}, "window is"),
        ({"when": 3}, "queue.when: no such member; there are priority, window"),
    ],
)
def test_what_cannot_be_is_refused_with_the_member(service: Service, queue: dict[str, Any], words: str) -> None:
    answer = asked(service, **queue)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert service.queue.jobs(status="queued") == []


def test_the_client_reorders_and_retries(service: Service) -> None:
    with Client(service.url, trust="ed25519:" + "A" * 43 + "=", patience=PATIENCE_S) as client:
        first = client.submit(ODD, queue={"priority": 2}, device=CPU.key).job_id
        second = client.submit("131x67x31", device=CPU.key).job_id
        assert client.job(first)["priority"] == 2
        assert client.prioritise(second, 3)["priority"] == 3
        claimed = service.queue.claim("worker", [CPU.key], 60.0)
        assert claimed is not None
        assert claimed.id == second
        answer = service.http.patch(f"/v1/jobs/{second}", json={"priority": 1})
        assert (answer.status_code, answer.json()["code"]) == (409, "job_finished")
        assert service.queue.finish(second, "worker", "failed", error="storage_full: no space")
        again = client.retry(second, "emptied")
        assert (again["status"], again["retries"], again["retry_reason"]) == ("queued", 1, "emptied")
    answer = service.http.post(f"/v1/jobs/{second}/retry", json={})
    assert (answer.status_code, answer.json()["code"]) == (409, "job_not_retried")
    assert service.http.post(f"/v1/jobs/{'0' * 16}/retry", json={}).status_code == 404
    assert service.http.post(f"/v1/jobs/{second}/retry", content="{}").status_code == 415


def test_which_key_may_do_what_and_what_is_audited(tmp_path: Path) -> None:
    with serving(tmp_path, worker=False, key_priority=5) as service:
        service.queue.register_worker("elsewhere:1:0", [CPU])
        keys = {name: service.state.access.table.create(name, name if name != "other" else "tune") for name in KEYS}
        service.state.access.read()

        def send(name: str, method: str, path: str, body: object) -> httpx.Response:
            headers = {"Authorization": f"Bearer {keys[name][1]}", "Prefer": "wait=0"}
            return service.http.request(method, path, json=body, headers=headers)

        def refused(answer: httpx.Response) -> str:
            assert answer.status_code == 403, answer.text
            return str(answer.json()["code"])

        assert (
            refused(send("tune", "POST", "/v1/kernels", {"gemm": ODD, "queue": {"priority": 6}})) == "priority_refused"
        )
        assert service.queue.jobs() == []
        path = send("tune", "POST", "/v1/kernels", {"gemm": ODD, "queue": {"priority": 5}}).headers["location"]
        assert refused(send("tune", "PATCH", path, {"priority": 6})) == "priority_refused"
        assert refused(send("other", "PATCH", path, {"priority": 1})) == "not_your_job"
        assert refused(send("read", "PATCH", path, {"priority": 1})) == "insufficient_scope"
        assert send("tune", "PATCH", path, {"priority": -100}).json()["priority"] == -100
        assert send("admin", "PATCH", path, {"priority": 100}).json()["priority"] == 100
        service.queue.cancel(path.rpartition("/")[2])
        assert refused(send("other", "POST", f"{path}/retry", {})) == "not_your_job"
        assert refused(send("read", "POST", f"{path}/retry", {})) == "insufficient_scope"
        assert send("tune", "POST", f"{path}/retry", {}).json()["status"] == "queued"
        service.state.access.flush()
        log = [(stored.entry.key_id, stored.entry.action, stored.entry.object) for stored in _newest(service, 3)]
    ids: dict[str, ApiKey] = {name: key for name, (key, _) in keys.items()}
    assert log[0] == (ids["tune"].id, "POST", f"{path}/retry")
    assert (ids["read"].id, "POST", f"{path}/retry") in log


KEYS = ("read", "tune", "other", "admin")


def _newest(service: Service, count: int) -> list[StoredEntry]:
    return service.state.access.audit.entries(count)
