"""Pruning on every database: what stays whatever its age, and what goes."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from tests.contract.storage.databases import DEVICE, GEMM, OTHER_GEMM, await_locked, kernel
from tests.contract.storage.queue_fixtures import FakeClock
from tests.waiting import PATIENCE_S
from tirgemm.errors import InvalidRequest, QuotaExceeded
from tirgemm.events import BatchProposed
from tirgemm.timings import ConfigOrigin, SearchSummary, Timing, Timings
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore
from tirgemm.tuning_db.access.api_keys import KeyTable
from tirgemm.tuning_db.access.audit import AuditEntry, AuditLog
from tirgemm.tuning_db.access.quotas import Asker
from tirgemm.tuning_db.models import EventRow, KernelRow
from tirgemm.tuning_db.queue.batches import BatchTable, WantedProblem
from tirgemm.tuning_db.upkeep import prune as prune_module
from tirgemm.tuning_db.upkeep.backup import backup, restore
from tirgemm.tuning_db.upkeep.pins import set_pinned
from tirgemm.tuning_db.upkeep.prune import BATCHES_AT_ONCE, prune
from verification.service.postgres_server import find_programs

DAY = 86400.0


@pytest.fixture(params=["sqlite_database", "postgres_database"])
def database(request: pytest.FixtureRequest) -> Database:
    actual: Database = request.getfixturevalue(request.param)
    return actual


def put(database: Database, us: float, old: bool = True, **changes: Any) -> str:
    """A kernel with a blob, ten days old or new."""
    store = SqlStore(database)
    sha256 = store.put_blob(f"{us} {changes}".encode())
    values = {"timings": Timings({"sustained": Timing(us)})} | changes
    record = store.put_kernel(kernel(artifact_sha256=sha256, artifact_bytes=9, **values))
    if old:
        with database.write() as connection:
            aged = update(KernelRow).where(KernelRow.id == record.id).values(stored_at=f"2020-01-01T00:00:0{us:g}Z")
            connection.execute(aged)
    return record.id


def left(database: Database) -> set[str]:
    return {record.id for record in SqlStore(database).kernels()}


def test_the_served_the_best_and_the_young_stay(database: Database) -> None:
    slow, fast, served, young = put(database, 3), put(database, 1), put(database, 5), put(database, 9, old=False)
    fallback, build = put(database, 2, role="fallback"), put(database, 4, role="unverified")
    other = put(database, 7, gemm=OTHER_GEMM)
    planned = prune(database, older_than_s=DAY, dry_run=True)
    assert set(planned.kernels) == {slow, fallback, served}, "the young one is what is served now"
    assert left(database) == {slow, fast, served, young, fallback, build, other}
    pruned = prune(database, older_than_s=DAY, keep_best=2)
    assert set(pruned.kernels) == {fallback, served}
    assert left(database) == {slow, fast, young, build, other}
    assert prune(database, older_than_s=DAY, keep_best=0).kernels == (fast, slow)
    assert prune(database, older_than_s=0.0, keep_best=0).kernels == ()
    assert prune(database, older_than_s=1e14).kernels == (), "nothing is older than all of time"
    assert len(list(database.blobs.list())) == len(left(database))


@pytest.mark.parametrize("damage", ["'no JSON'", "'[]'", "CAST(X'7bf87d' AS TEXT)"])
def test_a_kernel_whose_row_is_damaged_is_left_out_and_named(sqlite_database: Database, damage: str) -> None:
    damaged, gone, newest = (put(sqlite_database, us) for us in (1, 2, 3))
    with sqlite_database.write() as connection:
        connection.exec_driver_sql(f"UPDATE kernels SET timings = {damage} WHERE id = '{damaged}'")
    pruned = prune(sqlite_database, older_than_s=DAY, keep_best=0)
    assert pruned.kernels == (gone,)
    (told,) = pruned.damaged
    assert f"kernel {damaged} is left out: " in told
    assert left(sqlite_database) == {newest}
    assert SqlStore(sqlite_database).delete_kernel(damaged), "it is there"


def test_what_answers_with_and_without_other_devices_stays(database: Database) -> None:
    origin = SearchSummary(shipped=ConfigOrigin("cuda:sm_90a:nvidia-h200:132", {}, False, other_device=True))
    other = {"timings": Timings({"sustained": Timing(2.0)}, search=origin)}
    fallback, gone, newest = (
        put(database, us, **changes) for us, changes in ((1, {"role": "fallback"}), (2, other), (3, other))
    )
    assert prune(database, older_than_s=DAY, keep_best=0).kernels == (gone,)
    assert left(database) == {fallback, newest}


def test_the_pinned_the_locked_and_what_a_live_job_names_stay(database: Database) -> None:
    pinned, locked, used, gone, newest = (put(database, us) for us in (1, 2, 3, 4, 5))
    assert set_pinned(database, pinned, pinned=True)
    record = SqlStore(database).kernel_by_id(locked)
    assert record is not None
    queue = JobQueue(database)
    job, _ = queue.submit(JobRequest(GEMM, DEVICE), fallback_id=used)
    kept: dict[str, Any] = {"keep_best": 0, "locked": [record.artifact_sha256]}
    assert prune(database, older_than_s=DAY, dry_run=True, **kept).kernels == (gone,)
    pruned = prune(database, older_than_s=DAY, **kept)
    assert pruned.kernels == (gone,)
    assert left(database) == {pinned, locked, used, newest}
    queue.cancel(job.id)
    assert prune(database, older_than_s=DAY, keep_best=0).kernels == (locked, used)


def test_a_kernel_that_is_deleted_while_it_is_pinned_is_none(database: Database) -> None:
    gone, other = put(database, 1), put(database, 2)
    with ThreadPoolExecutor(1) as pool:
        with database.write() as connection:
            connection.execute(delete(KernelRow).where(KernelRow.id == gone))
            pinned = pool.submit(set_pinned, database, gone, pinned=True)
            await_locked(database, connection, 1)
        assert pinned.result(PATIENCE_S) is None
    assert left(database) == {other}


def test_a_locked_blob_that_no_kernel_names_is_not_collected(database: Database) -> None:
    sha256 = database.blobs.put(b"locked")
    path = database.data_dir / "blobs" / sha256[:2] / sha256[2:4] / sha256
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert prune(database, older_than_s=0.0, locked=[sha256]).collected.blobs == 0
    assert prune(database, older_than_s=0.0).collected.blobs == 1


def test_the_audit_log_is_pruned_by_age(database: Database) -> None:
    entry = AuditEntry(None, "DELETE", "/v1/kernels/1", 204, "127.0.0.1")
    AuditLog(database, clock=lambda: 1_600_000_000.0).add([entry, entry])
    AuditLog(database).add([replace(entry, object="/v1/kernels/2")])
    assert prune(database, older_than_s=DAY, dry_run=True).audit_entries == 2
    assert len(AuditLog(database).entries()) == 3
    assert prune(database, older_than_s=DAY).audit_entries == 2
    assert [stored.entry.object for stored in AuditLog(database).entries()] == ["/v1/kernels/2"]


def test_what_old_jobs_did_is_pruned_and_how_they_ended_stays(database: Database) -> None:
    past, now = JobQueue(database, clock=lambda: 1_600_000_000.0), JobQueue(database)
    old, running, young = (past.submit(JobRequest(GEMM.with_(m=m), DEVICE))[0] for m in (3, 5, 7))
    for job in (old, running, young):
        for _ in range(3):
            past.add_event(job.id, BatchProposed())
    past.cancel(old.id)
    now.cancel(young.id)
    assert prune(database, older_than_s=DAY, dry_run=True).events == 3
    assert len(now.events(old.id)) == 3
    assert prune(database, older_than_s=DAY).events == 3
    assert prune(database, older_than_s=DAY).events == 0
    assert [len(now.events(job.id)) for job in (old, running, young)] == [0, 3, 3]
    kept = now.job(old.id)
    assert kept is not None
    assert kept.status == "cancelled"
    with database.read() as connection:
        ends = connection.execute(select(EventRow.kind).where(EventRow.job_id == old.id)).scalars().all()
    assert ends == ["cancelled"], "a stream of it ends as it did"


def test_what_a_job_did_that_is_put_back_meanwhile_stays(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    past, now = JobQueue(database, clock=lambda: 1_600_000_000.0), JobQueue(database)
    job, _ = past.submit(JobRequest(GEMM, DEVICE))
    past.add_event(job.id, BatchProposed())
    past.cancel(job.id)
    deleted = prune_module._deleted

    def putting_back(*arguments: Any) -> list[str]:
        now.retry(job.id)
        return deleted(*arguments)

    monkeypatch.setattr(prune_module, "_deleted", putting_back)
    assert prune(database, older_than_s=DAY).events == 0
    assert len(now.events(job.id)) == 1


def test_batches_that_count_against_the_quota_of_a_key_are_not_pruned(database: Database) -> None:
    key, _ = KeyTable(database).create("a team", "tune")
    asker = Asker(key.id, live_jobs=9, trials_a_day=9, bytes_stored=1 << 40, batch_problems_a_day=3)
    hit = WantedProblem(JobRequest(GEMM, DEVICE), kernel_id=put(database, 1))
    with database.read() as connection:
        clock = FakeClock(database.now(connection) - DAY - 60)
    batches = BatchTable(database, clock)
    batches.submit([hit], asked=1, asker=asker)
    clock.now += DAY - 3600
    counted = batches.submit([hit], asked=2, asker=asker)
    batches.submit([hit], asked=2)
    assert prune(database, older_than_s=60.0).batches == 2, "one that is a day old, and one of no key"
    assert [batch.id for batch in batches.batches()] == [counted.id]
    with pytest.raises(QuotaExceeded, match="batch_problems_a_day: with this batch those of this key name 4 problems"):
        BatchTable(database).submit([hit], asked=2, asker=asker)


def test_batches_that_have_ended_are_pruned_with_their_items(database: Database) -> None:
    known = SqlStore(database).put_kernel(kernel())
    queue, batches = JobQueue(database), BatchTable(database, clock=lambda: 1_600_000_000.0)
    hit = WantedProblem(JobRequest(GEMM, DEVICE), kernel_id=known.id)
    over = [batches.submit([hit], asked=1).id for _ in range(BATCHES_AT_ONCE + 1)]
    batch = batches.submit([hit, WantedProblem(JobRequest(OTHER_GEMM, DEVICE))], asked=2)
    joins = batches.submit([WantedProblem(JobRequest(OTHER_GEMM, DEVICE))], asked=1)
    young = BatchTable(database).submit([hit], asked=1)
    assert prune(database, older_than_s=DAY, dry_run=True).batches == len(over)
    assert prune(database, older_than_s=DAY).batches == len(over)
    assert [left.id for left in batches.batches()] == [young.id, joins.id, batch.id], "those with a live job stay"
    (job,) = queue.jobs()
    queue.cancel(job.id)
    assert prune(database, older_than_s=DAY).batches == 2
    kept = queue.job(job.id)
    assert kept is not None
    assert (kept.status, kept.batch_id) == ("cancelled", None)
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM batch_items").scalar_one() == 1


@pytest.mark.parametrize(("age", "best"), [(-1.0, 1), (float("nan"), 1), (1.0, -1)])
def test_what_cannot_be_is_refused(sqlite_database: Database, age: float, best: int) -> None:
    with pytest.raises(InvalidRequest, match="0 or more"):
        prune(sqlite_database, older_than_s=age, keep_best=best)


def test_of_postgresql_the_blobs_alone_are_backed_up(postgres_database: Database, tmp_path: Path) -> None:
    put(postgres_database, 1)
    with pytest.raises(InvalidRequest, match="pg_dump, then its blobs with --blobs-only"):
        backup(postgres_database, tmp_path / "backup")
    made = backup(postgres_database, tmp_path / "backup", blobs_only=True)
    assert (made.database, made.blobs) == (False, 1)
    assert restore(tmp_path / "backup", tmp_path / "other").blobs == 1
    assert not (tmp_path / "other" / "tirgemm.db").exists()


def test_a_dump_of_postgresql_with_its_blobs_puts_back_what_there_was(
    postgres_database: Database, tmp_path: Path
) -> None:
    first = put(postgres_database, 1)
    job, _ = JobQueue(postgres_database).submit(JobRequest(OTHER_GEMM, DEVICE))
    programs, dump = find_programs(), tmp_path / "tirgemm.dump"
    place = postgres_database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    subprocess.run([programs / "pg_dump", "--format", "custom", "--file", dump, place], check=True)
    backup(postgres_database, tmp_path / "blobs", blobs_only=True)
    put(postgres_database, 2, gemm=OTHER_GEMM)
    assert SqlStore(postgres_database).delete_kernel(first)
    JobQueue(postgres_database).cancel(job.id)
    postgres_database.engine.dispose()
    subprocess.run([programs / "pg_restore", "--clean", "--if-exists", "--dbname", place, dump], check=True)
    restore(tmp_path / "blobs", tmp_path / "elsewhere")
    with Database(str(postgres_database.url), tmp_path / "elsewhere") as restored:
        (kernel_record,) = SqlStore(restored).kernels()
        assert kernel_record.id == first
        assert restored.blobs.get(kernel_record.artifact_sha256)
        (waiting,) = JobQueue(restored).jobs()
        assert (waiting.id, waiting.status) == (job.id, "queued")
