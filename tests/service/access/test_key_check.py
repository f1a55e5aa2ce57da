"""API keys over HTTP: who is let in, who is refused how, what is counted, and what the OpenAPI document says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.support import CPU, ODD, kernel_record, serving
from tirgemm.errors import InvalidRequest, StoreUnavailable
from tirgemm.gemm import Gemm
from tirgemm.service.access import access_control
from tirgemm.service.access.access_control import MAX_REFUSALS
from tirgemm.service.access.scopes import OPEN_PATHS, required_scope
from tirgemm.service.http.state import ServiceState
from tirgemm.service.server.process import require_keys
from tirgemm.service.settings import Settings
from tirgemm.tuning_db import JobRequest
from tirgemm.tuning_db.access.api_keys import ApiKey, Quotas
from tirgemm.tuning_db.access.audit import AuditEntry

WRONG = "tirgemm_" + "A" * 43


@dataclass
class Guarded:
    """A server in this process, and the tables behind it."""

    state: ServiceState
    http: httpx.Client

    def key(self, scope: str = "tune", **options: Any) -> tuple[ApiKey, str]:
        made = self.state.access.table.create("team", scope, **options)
        self.state.access.read()
        return made

    def ask(self, method: str, path: str, secret: str | None = None, **options: Any) -> httpx.Response:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        return self.http.request(method, path, headers=headers, **options)

    def post(self, secret: str | None, gemm: str = ODD, **body: Any) -> httpx.Response:
        headers = {"Prefer": "wait=0"} | ({} if secret is None else {"Authorization": f"Bearer {secret}"})
        return self.http.post("/v1/kernels", json={"gemm": gemm, **body}, headers=headers)

    def log(self) -> list[AuditEntry]:
        self.state.access.flush()
        return [stored.entry for stored in self.state.access.audit.entries()]


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    """A service without a key yet, whose keys are read again only where the test says so."""
    monkeypatch.setattr(access_control, "CACHE_SECONDS", 1e9)
    with serving(tmp_path, worker=False) as service:
        service.queue.register_worker("elsewhere:1:0", [CPU])
        yield Guarded(service.state, service.http)


def refused(answer: httpx.Response, status: int, code: str) -> str:
    """The detail of the problem that an answer must be."""
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["detail"])


def test_without_any_key_everybody_on_loopback_may_ask(guarded: Guarded) -> None:
    assert guarded.ask("GET", "/v1/kernels").status_code == 200
    assert guarded.ask("GET", "/v1/kernels", WRONG).status_code == 200
    assert guarded.post(None).status_code == 202
    (job,) = guarded.state.queue.jobs()
    assert job.key_id is None
    assert guarded.ask("DELETE", f"/v1/jobs/{job.id}").status_code == 200
    assert [(entry.key_id, entry.action, entry.outcome) for entry in guarded.log()] == [
        (None, "DELETE", 200),
        (None, "POST", 202),
    ]


def test_once_there_is_a_key_it_is_required_on_loopback_too(guarded: Guarded) -> None:
    key, secret = guarded.key("read")
    for path in ("/v1/kernels", "/v1/jobs", "/v1/meta", "/v1/keys", "/openapi.json", "/nothing"):
        answer = guarded.ask("GET", path)
        assert "Authorization: Bearer" in refused(answer, 401, "key_required")
        assert answer.headers["www-authenticate"] == 'Bearer realm="tirgemm"'
    assert guarded.ask("GET", "/v1/kernels", secret).status_code == 200
    assert guarded.ask("HEAD", "/v1/kernels", secret).status_code == 200
    for path in OPEN_PATHS - {"/logout"}:
        assert guarded.ask("GET", path).status_code == 200
    assert guarded.ask("GET", "/logout").status_code == 405
    guarded.state.access.table.revoke(key.id)
    guarded.state.access.read()
    assert guarded.ask("GET", "/v1/kernels").status_code == 401, "revoking the last key opens nothing"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Basic dGVzdDp0ZXN0", "SECRET", "Bearer: SECRET", "Token SECRET", "Bearer SECRET SECRET"],
)
def test_what_is_no_bearer_key_is_401(guarded: Guarded, header: str) -> None:
    _, secret = guarded.key("admin")
    answer = guarded.http.get("/v1/kernels", headers={"Authorization": header.replace("SECRET", secret)})
    assert answer.status_code == 401
    assert answer.json()["code"] in ("key_required", "invalid_key")
    assert secret not in answer.text


def test_two_authorization_headers_are_401(guarded: Guarded) -> None:
    _, secret = guarded.key("admin")
    headers = [("Authorization", f"Bearer {secret}"), ("Authorization", f"Bearer {secret}")]
    refused(guarded.http.get("/v1/kernels", headers=headers), 401, "key_required")


def test_wrong_expired_and_revoked_keys_are_401(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    valid, secret = guarded.key("admin")
    expiring, expired = guarded.key("admin", expires_days=1.0)
    revoked, gone = guarded.key("admin")
    assert guarded.ask("GET", "/v1/kernels", gone).status_code == 200
    assert guarded.ask("GET", "/v1/kernels", expired).status_code == 200
    guarded.state.access.table.revoke(revoked.id)
    assert guarded.ask("GET", "/v1/kernels", gone).status_code == 200, "another process is seen at the next reading"
    guarded.state.access.read()
    now = guarded.state.access.now()
    monkeypatch.setattr(guarded.state.access, "now", lambda: now + 90000)
    for wrong, words in (
        (WRONG, "is not known"),
        (secret[:-1], "is not known"),
        (secret.swapcase(), "is not known"),
        (valid.sha256, "is not known"),
        (expired, "expired at"),
        (gone, "was revoked at"),
    ):
        answer = guarded.ask("GET", "/v1/kernels", wrong)
        assert words in refused(answer, 401, "invalid_key")
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
        assert wrong not in answer.text
    assert guarded.ask("GET", "/v1/kernels", secret).status_code == 200
    log = guarded.log()
    counts = {entry.key_id: entry.count for entry in log}
    assert counts == {None: 4, expiring.id: 1, revoked.id: 1}
    assert {entry.address for entry in log} == {"127.0.0.1"}


def test_forms_without_a_token_are_one_row_for_whoever_has_no_key(guarded: Guarded) -> None:
    guarded.key("read")
    for _ in range(3):
        assert guarded.http.post("/login", data={"key": WRONG}).json()["code"] == "form_token"
    assert [(entry.action, entry.outcome, entry.count) for entry in guarded.log()] == [("POST", 403, 3)]


def test_keys_are_read_again_within_seconds(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    key, secret = guarded.key("read")
    monkeypatch.setattr(access_control, "CACHE_SECONDS", 0.0)
    assert guarded.ask("GET", "/v1/jobs", secret).status_code == 200
    guarded.state.access.table.revoke(key.id)
    refused(guarded.ask("GET", "/v1/jobs", secret), 401, "invalid_key")


def test_a_valid_or_wrong_key_costs_no_look_into_the_database(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, secret = guarded.key("read")
    monkeypatch.setattr(guarded.state.access.table, "entries", lambda: pytest.fail("the keys are read again"))
    assert guarded.ask("GET", "/v1/keys", secret).status_code == 200
    assert guarded.ask("GET", "/v1/keys", WRONG).status_code == 401


def test_a_database_that_does_not_answer_lets_nobody_in(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = guarded.key("read")

    def away() -> None:
        raise StoreUnavailable("database postgresql://10.1.2.3 does not answer")

    monkeypatch.setattr(access_control, "CACHE_SECONDS", 0.0)
    monkeypatch.setattr(guarded.state.access, "read", away)
    answer = guarded.ask("GET", "/v1/keys", secret)
    refused(answer, 503, "store_unavailable")
    assert "retry-after" in answer.headers
    assert "10.1" not in answer.text
    assert guarded.ask("GET", "/healthz").status_code == 200


@pytest.mark.parametrize("query", ["key=x", "API_KEY=x", "access_token=x", f"after={WRONG}", "device=SECRET"])
def test_a_key_in_the_address_is_refused_and_not_repeated(guarded: Guarded, query: str) -> None:
    _, secret = guarded.key("admin")
    answer = guarded.ask("GET", f"/v1/kernels?{query.replace('SECRET', secret)}", secret)
    assert "does not belong in it" in refused(answer, 400, "key_in_url")
    assert "revoke" in refused(answer, 400, "key_in_url")
    assert secret not in answer.text


def test_scopes_by_route(guarded: Guarded) -> None:
    (_, read), (_, tune), (_, admin) = (guarded.key(scope) for scope in ("read", "tune", "admin"))
    record = kernel_record(guarded.state.store, JobRequest(Gemm.parse("7x5x3"), CPU))
    answer = guarded.post(read)
    assert "scope tune" in refused(answer, 403, "insufficient_scope")
    assert 'scope="tune"' in answer.headers["www-authenticate"]
    assert guarded.state.queue.jobs() == []
    refused(guarded.ask("DELETE", f"/v1/kernels/{record.id}", tune), 403, "insufficient_scope")
    assert guarded.state.store.kernel_by_id(record.id) is not None
    refused(guarded.ask("PUT", "/v1/settings", tune), 403, "insufficient_scope")
    assert guarded.ask("GET", f"/v1/artifacts/{record.artifact_sha256}", read).status_code == 200
    assert guarded.ask("DELETE", f"/v1/kernels/{record.id}", admin).status_code == 204
    assert [(entry.action, entry.object, entry.outcome) for entry in guarded.log()] == [
        ("DELETE", f"/v1/kernels/{record.id}", 204),
        ("PUT", "/v1/settings", 403),
        ("DELETE", f"/v1/kernels/{record.id}", 403),
        ("POST", "/v1/kernels", 403),
    ]


def test_a_hit_is_no_change(guarded: Guarded) -> None:
    _, secret = guarded.key("tune")
    kernel_record(guarded.state.store, JobRequest(Gemm.parse(ODD), CPU), search={"effort": "standard"})
    assert guarded.post(secret).status_code == 200
    assert guarded.log() == []


def test_only_admin_cancels_the_job_of_another_key(guarded: Guarded) -> None:
    (mine, owner), (_, stranger), (_, admin) = guarded.key(), guarded.key(), guarded.key("admin")
    answer = guarded.post(owner)
    assert answer.status_code == 202
    assert guarded.post(stranger).json()["job"]["id"] == answer.json()["job"]["id"], "joined"
    path = answer.headers["location"]
    job = guarded.state.queue.job(path.rpartition("/")[2])
    assert job is not None
    assert job.key_id == mine.id
    assert "another key" in refused(guarded.ask("DELETE", path, stranger), 403, "not_your_job")
    assert guarded.ask("GET", path, stranger).json()["status"] == "queued"
    assert guarded.ask("DELETE", path, owner).json()["status"] == "cancelled"
    second = guarded.post(owner).headers["location"]
    assert guarded.ask("DELETE", second, admin).json()["status"] == "cancelled"
    outcomes = [(entry.action, entry.object, entry.outcome) for entry in guarded.log()]
    assert outcomes == [
        ("DELETE", second, 200),
        ("POST", second, 202),
        ("DELETE", path, 200),
        ("DELETE", path, 403),
        ("POST", path, 202),
        ("POST", path, 202),
    ]


def test_the_rate_of_a_key_is_limited_and_told(guarded: Guarded) -> None:
    key, secret = guarded.key("read", quotas=Quotas(requests_per_second=0.001))
    _, other = guarded.key("read")
    assert guarded.ask("GET", "/v1/keys", secret).status_code == 200
    for _ in range(3):
        answer = guarded.ask("GET", "/v1/keys", secret)
        assert "requests_per_second: this key may send 0.001" in refused(answer, 429, "rate_limited")
        assert 900 <= int(answer.headers["retry-after"]) <= 1000
    assert guarded.ask("GET", "/v1/keys", other).status_code == 200
    assert guarded.log() == [AuditEntry(key.id, "GET", "*", 429, "127.0.0.1", 3)]


def test_a_key_with_a_tiny_rate_of_before_is_told_when_it_may_ask_again(guarded: Guarded) -> None:
    _, secret = guarded.key("read", quotas=Quotas(requests_per_second=1.0))
    with guarded.state.database.write() as connection:
        connection.exec_driver_sql("UPDATE api_keys SET requests_per_second = 1e-310")
    guarded.state.access.read()
    assert guarded.ask("GET", "/v1/keys", secret).status_code == 200
    answer = guarded.ask("GET", "/v1/keys", secret)
    refused(answer, 429, "rate_limited")
    assert 900 <= int(answer.headers["retry-after"]) <= 1000


def test_the_rate_of_keys_without_their_own_has_the_same_least() -> None:
    with pytest.raises(InvalidRequest, match=r"KEY_REQUESTS_PER_SECOND\) is 1e-09; .* 0.001"):
        Settings.load(key_requests_per_second=1e-9)


def test_a_quota_of_jobs_is_429(guarded: Guarded) -> None:
    _, secret = guarded.key("tune", quotas=Quotas(live_jobs=1))
    assert guarded.post(secret).status_code == 202
    answer = guarded.post(secret, "7x5x3")
    assert "live_jobs" in refused(answer, 429, "quota_exceeded")
    assert int(answer.headers["retry-after"]) > 0
    assert len(guarded.state.queue.jobs()) == 1


def test_the_last_use_is_written_with_the_next_flush(guarded: Guarded) -> None:
    key, secret = guarded.key("read")
    for _ in range(3):
        guarded.ask("GET", "/v1/keys", secret)
    assert guarded.state.access.table.entries()[0].last_used_at is None
    guarded.state.access.flush()
    (stored,) = guarded.state.access.table.entries()
    assert (stored.last_used_at or "") > key.created_at


def test_refusals_without_a_key_are_bounded_rows(guarded: Guarded) -> None:
    asyncio.run(_refuse_many(guarded.state, 3 * MAX_REFUSALS))
    log = guarded.log()
    assert len(log) == MAX_REFUSALS + 1
    assert sum(entry.count for entry in log) == 3 * MAX_REFUSALS
    assert guarded.log() == log, "they are written once"


async def _refuse_many(state: ServiceState, number: int) -> None:
    for host in range(number):
        state.access.count_refusal(AuditEntry(None, "GET", "*", 401, f"2001:db8::{host}"))


def test_openapi_says_the_scheme_and_the_refusals(guarded: Guarded) -> None:
    schema = guarded.ask("GET", "/openapi.json").json()
    assert schema["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    _, secret = guarded.key("read", quotas=Quotas(requests_per_second=1e6))
    operations = [(path, method, one) for path, each in schema["paths"].items() for method, one in each.items()]
    assert len(operations) > 10
    for path, method, operation in operations:
        scope = required_scope(method.upper(), path)
        answer = guarded.ask(method.upper(), path)
        if scope is None:
            assert operation["security"] == []
            assert answer.status_code == 200
            continue
        assert operation["security"] == [{"apiKey": [scope]}], (path, method)
        assert {"401", "403", "429"} <= set(operation["responses"])
        assert "Retry-After" in operation["responses"]["429"]["headers"]
        refused(answer, 401, "key_required")
        if scope != "read":
            refused(guarded.ask(method.upper(), path, secret), 403, "insufficient_scope")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_key(tmp_path: Path, host: str) -> None:
    _start(tmp_path, host=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "tuner.example", ""])
def test_elsewhere_the_server_needs_a_key_or_is_told_to_be_insecure(
    tmp_path: Path, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidRequest, match=r"tirgemm keys create.*--insecure"):
        _start(tmp_path, host=host)
    _start(tmp_path, host=host, insecure=True)
    assert f"everybody is let in who reaches host {host!r}" in caplog.text
    caplog.clear()
    _start(tmp_path, with_key=True, host=host, insecure=True)
    _start(tmp_path, with_key=True, host=host)
    assert not caplog.text


def _start(data: Path, with_key: bool = False, **options: Any) -> None:
    state = ServiceState.open(Settings.load(data=data, **options))
    try:
        if with_key:
            state.access.table.create("team", "read")
        require_keys(state)
    finally:
        state.explainer.close()
        state.database.close()
