"""API keys, their quotas on jobs, and the audit log, on every database."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.contract.storage.databases import DEVICE, GEMM, OTHER_GEMM, kernel
from tirgemm.errors import InvalidRequest, QuotaExceeded
from tirgemm.gemm import Gemm
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore
from tirgemm.tuning_db.access.api_keys import SECRET_PREFIX, KeyTable, Quotas, secret_hash
from tirgemm.tuning_db.access.audit import AuditEntry, AuditLog
from tirgemm.tuning_db.access.quotas import Asker

NOW = 1_800_000_000.0
DAY = 86400.0
REQUEST = JobRequest(GEMM, DEVICE, trials=10)
OTHER = JobRequest(OTHER_GEMM, DEVICE, trials=10)


class SettableClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["sqlite_database", "postgres_database"])
def database(request: pytest.FixtureRequest) -> Database:
    opened: Database = request.getfixturevalue(request.param)
    return opened


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


def asker(database: Database, **quotas: int) -> Asker:
    key, _ = KeyTable(database).create("team", "tune")
    usual = {"live_jobs": 9, "trials_a_day": 999, "bytes_stored": 999, "batch_problems_a_day": 999}
    return Asker(key.id, **usual | quotas)


def test_only_the_hash_of_a_secret_is_stored(database: Database) -> None:
    table = KeyTable(database)
    key, secret = table.create("ci", "read", quotas=Quotas(live_jobs=3))
    assert secret.startswith(SECRET_PREFIX)
    assert len(secret) >= len(SECRET_PREFIX) + 43, "256 bits"
    assert secret.startswith(key.prefix)
    assert len(key.prefix) == len(SECRET_PREFIX) + 6
    assert table.entries() == [key]
    assert key.sha256 == secret_hash(secret)
    with database.read() as connection:
        row = connection.exec_driver_sql("SELECT * FROM api_keys").one()
    assert secret not in map(str, row)
    assert (key.scope, key.quotas.live_jobs, key.quotas.trials_a_day) == ("read", 3, None)
    assert "sha256" not in key.to_json()
    assert table.create("ci", "read")[1] != secret


def test_keys_expire_and_are_revoked_once(database: Database, clock: SettableClock) -> None:
    table = KeyTable(database, clock)
    key, secret = table.create("ci", "read", expires_days=1.5)
    assert key.fault(NOW + 1.5 * DAY - 1) == ""
    assert "expired at 2027-" in key.fault(NOW + 1.5 * DAY)
    first = table.revoke(key.prefix)
    clock.now += 60
    assert table.revoke(key.id) == first == table.entries()[0]
    assert "revoked at" in first.fault(NOW)
    for name in ("", "nope", secret, key.prefix[:-1]):
        with pytest.raises(InvalidRequest, match="no key has") as refused:
            table.revoke(name)
        assert secret not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scope": "root"}, "read, tune, admin"),
        ({"name": ""}, "1 to 100"),
        ({"name": "x" * 101}, "1 to 100"),
        ({"name": "a\nb"}, "printable"),
        ({"expires_days": 0.0}, "above 0"),
        ({"expires_days": float("nan")}, "above 0"),
    ],
)
def test_what_is_no_key_is_refused(sqlite_database: Database, arguments: dict[str, object], words: str) -> None:
    values: dict[str, Any] = {"name": "ci", "scope": "read"} | arguments
    table = KeyTable(sqlite_database)
    with pytest.raises(InvalidRequest, match=words):
        table.create(**values)
    assert table.entries() == []


@pytest.mark.parametrize("value", [0, -1, 2**63])
def test_quotas_are_above_zero(value: int) -> None:
    with pytest.raises(InvalidRequest, match=f"trials_a_day is {value}"):
        Quotas(trials_a_day=value)


@pytest.mark.parametrize("rate", [1e-310, 0.0009, 0.0, -1.0])
def test_a_rate_that_nobody_could_wait_for_is_refused(rate: float) -> None:
    with pytest.raises(InvalidRequest, match=f"requests_per_second is {rate:g}; it must be at least 0.001"):
        Quotas(requests_per_second=rate)
    assert Quotas(requests_per_second=0.001).requests_per_second == 0.001


def test_a_key_of_before_there_was_a_least_rate_has_that(database: Database) -> None:
    table = KeyTable(database)
    table.create("ci", "read", quotas=Quotas(requests_per_second=1.0))
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE api_keys SET requests_per_second = 1e-300")
    assert [key.quotas for key in table.entries()] == [Quotas(requests_per_second=0.001)]


def test_scopes_include_those_before(sqlite_database: Database) -> None:
    table = KeyTable(sqlite_database)
    allowed = {name: table.create("x", name)[0] for name in ("read", "tune", "admin")}
    assert [allowed["read"].allows(scope) for scope in ("read", "tune", "admin")] == [True, False, False]
    assert [allowed["tune"].allows(scope) for scope in ("read", "tune", "admin")] == [True, True, False]
    assert [allowed["admin"].allows(scope) for scope in ("read", "tune", "admin")] == [True, True, True]


def test_the_last_use_only_grows(database: Database) -> None:
    table = KeyTable(database)
    key, _ = table.create("ci", "read")
    assert key.last_used_at is None
    table.used({key.id: NOW, "gone": NOW})
    table.used({key.id: NOW - 100})
    assert (table.entries()[0].last_used_at or "").startswith("2027-01-15T08:00:00")


def test_a_job_carries_the_key_that_asked_first(database: Database) -> None:
    queue, first, second = JobQueue(database), asker(database), asker(database)
    job, created = queue.submit(REQUEST, asker=first)
    joined, again = queue.submit(REQUEST, asker=second)
    assert (created, again, joined) == (True, False, job)
    assert job.key_id == first.key_id
    assert queue.submit(OTHER)[0].key_id is None


def test_jobs_of_a_key_are_limited_and_joining_is_not(database: Database) -> None:
    queue, limited, other = JobQueue(database), asker(database, live_jobs=1), asker(database)
    job, _ = queue.submit(REQUEST, asker=limited)
    with pytest.raises(QuotaExceeded, match=r"live_jobs: .* 1 queued or running .* may have 1") as refused:
        queue.submit(OTHER, asker=limited)
    assert refused.value.retry_after > 0
    assert len(queue.jobs()) == 1, "a job that is refused is not there"
    theirs, _ = queue.submit(OTHER, asker=other)
    assert queue.submit(OTHER, asker=limited)[0] == theirs
    queue.cancel(job.id)
    assert queue.submit(REQUEST, asker=limited)[1]


def test_trials_are_limited_within_a_day(database: Database, clock: SettableClock) -> None:
    queue, limited = JobQueue(database, clock), asker(database, trials_a_day=20)
    queue.submit(REQUEST, asker=limited)
    clock.now += DAY / 2
    queue.submit(OTHER, asker=limited)
    third = JobRequest(Gemm(7, 5, 3), DEVICE, trials=1)
    with pytest.raises(QuotaExceeded, match=r"trials_a_day: .* 21 trials .* 20") as refused:
        queue.submit(third, asker=limited)
    assert refused.value.retry_after == DAY / 2
    clock.now += DAY / 2
    assert queue.submit(third, asker=limited)[1]


def test_a_job_that_is_put_back_asks_for_its_trials_again_on_that_day(database: Database, clock: SettableClock) -> None:
    queue, limited = JobQueue(database, clock), asker(database, trials_a_day=15)
    first, _ = queue.submit(REQUEST, asker=limited)
    queue.cancel(first.id)
    assert queue.retry(first.id, asker=limited).status == "queued", "once within a day"
    queue.cancel(first.id)
    clock.now += DAY + 1
    queue.submit(OTHER, asker=limited)
    with pytest.raises(QuotaExceeded, match=r"trials_a_day: .* 20 trials .* 15") as refused:
        queue.retry(first.id, asker=limited)
    assert refused.value.retry_after == DAY
    assert [job.status for job in queue.jobs()] == ["queued", "cancelled"]


def test_bytes_are_those_that_the_jobs_of_the_key_made(database: Database) -> None:
    queue, store, limited = JobQueue(database), SqlStore(database), asker(database, bytes_stored=100)
    before = store.put_kernel(kernel(artifact_bytes=100))
    job, _ = queue.submit(REQUEST, before.id, asker=limited)
    job, _ = queue.submit(OTHER, asker=limited)
    queue.set_fallback(job.id, store.put_kernel(kernel("fallback", artifact_bytes=60)).id)
    queue.submit(JobRequest(Gemm(7, 5, 3), DEVICE), asker=limited)
    assert queue.claim("me", [DEVICE.key], 60.0) is not None
    claimed = queue.claim("me", [DEVICE.key], 60.0)
    assert claimed is not None
    assert queue.finish(claimed.id, "me", "done", store.put_kernel(kernel(artifact_bytes=40)).id)
    with pytest.raises(QuotaExceeded, match=r"bytes_stored: .* 100 bytes of 100"):
        queue.submit(JobRequest(Gemm(7, 5, 9), DEVICE), asker=limited)
    roomy = dataclasses.replace(limited, bytes_stored=101)
    assert queue.submit(JobRequest(Gemm(7, 5, 9), DEVICE), asker=roomy)[1]


def test_the_audit_log_lists_the_newest_first(database: Database, clock: SettableClock) -> None:
    log = AuditLog(database, clock)
    log.add([])
    entries = [AuditEntry("k1", "POST", "/v1/jobs/1", 202, "127.0.0.1"), AuditEntry(None, "GET", "*", 401, "::1", 7)]
    log.add(entries)
    clock.now += 1
    log.add([AuditEntry("k2", "DELETE", "/v1/kernels/" + "x" * 900 + "\x00", 204, "a" * 99)])
    newest, *older = log.entries()
    assert [stored.entry for stored in older] == entries[::-1]
    assert (len(newest.entry.object), len(newest.entry.address)) == (200, 64)
    assert newest.at > older[0].at
    assert [stored.entry.key_id for stored in log.entries(1)] == ["k2"]
    assert [stored.entry for stored in log.entries(key_id="k1")] == entries[:1]
