"""Summary, check, collection and vacuum, on every database."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, update

from tests.contract.storage.batch_contract import counted
from tests.contract.storage.databases import DEVICE, candidate, kernel, key
from tirgemm.errors import InvalidRequest
from tirgemm.tuning.records import Status
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore, rows
from tirgemm.tuning_db.models import KernelRow
from tirgemm.tuning_db.upkeep.admin import check, collect_garbage, info, vacuum


@pytest.fixture(params=["sqlite_database", "postgres_database"])
def database(request: pytest.FixtureRequest) -> Database:
    actual: Database = request.getfixturevalue(request.param)
    return actual


def blob_file(database: Database, sha256: str) -> Path:
    return database.data_dir / "blobs" / sha256[:2] / sha256[2:4] / sha256


def make_old(database: Database, sha256: str) -> None:
    os.utime(blob_file(database, sha256), (1_700_000_000, 1_700_000_000))


def damage(database: Database, kernel_id: str) -> None:
    with database.write() as connection:
        connection.execute(update(KernelRow).where(KernelRow.id == kernel_id).values(device=[]))


def test_the_summary_counts_what_is_there(database: Database) -> None:
    store = SqlStore(database)
    sha256 = store.put_blob(b"artifact")
    store.put_blob(b"nobody's")
    stored = store.put_kernel(kernel(artifact_sha256=sha256, artifact_bytes=8))
    store.add_candidate(candidate(1))
    store.add_candidate(candidate(2, status=Status.PRUNED, sample_sets=()))
    JobQueue(database).submit(JobRequest(stored.gemm, DEVICE))
    actual = info(database)
    assert actual.schema == "0014"
    assert actual.database_bytes > 10_000
    assert actual.candidates == {"measured": 1, "pruned": 1}
    assert actual.jobs == {"queued": 1}
    assert actual.devices == (DEVICE.key,)
    assert (actual.rows["kernels"], actual.rows["sample_sets"], actual.rows["events"]) == (1, 1, 0)
    assert (actual.blobs, actual.blob_bytes, actual.unreferenced_blobs) == (2, 16, 1)
    assert actual.to_json()["devices"] == [DEVICE.key]


def test_attempts_that_were_never_recorded_are_counted_as_lost(database: Database) -> None:
    store = SqlStore(database)
    assert info(database).lost_attempts == 0
    store.begin_attempt(key(1))
    assert store.begin_attempt(key(1)) == 2
    store.begin_attempt(key(2))
    store.add_candidate(candidate(1, attempt=2))
    assert info(database).lost_attempts == 2
    store.add_candidate(candidate(2, attempt=1))
    assert info(database).lost_attempts == 1


def test_only_old_blobs_that_nothing_names_are_collected(database: Database) -> None:
    store = SqlStore(database)
    named, old, young = (store.put_blob(data) for data in (b"named", b"old one", b"young"))
    store.put_kernel(kernel(artifact_sha256=named, artifact_bytes=5))
    make_old(database, named)
    make_old(database, old)
    unfinished = blob_file(database, old).with_name(f"{old}#1")
    unfinished.write_bytes(b"ol")
    os.utime(unfinished, (1_700_000_000, 1_700_000_000))
    planned = collect_garbage(database, dry_run=True)
    assert (planned.blobs, planned.blob_bytes) == (1, 7)
    assert database.blobs.has(old)
    collected = collect_garbage(database)
    assert (collected.blobs, collected.blob_bytes, collected.unfinished) == (1, 7, 1)
    assert {blob.sha256 for blob in database.blobs.list()} == {named, young}
    assert collect_garbage(database, older_than_s=999_999_999 * 86400.0).blobs == 0, "from before there were years"
    assert collect_garbage(database, older_than_s=0).blobs == 1
    with pytest.raises(InvalidRequest, match="-1"):
        collect_garbage(database, older_than_s=-1)


def test_the_check_names_artifacts_that_are_damaged_or_gone(database: Database) -> None:
    store = SqlStore(database)
    shas = [store.put_blob(data) for data in (b"whole", b"damaged", b"gone")]
    for sha256 in shas:
        store.put_kernel(kernel(artifact_sha256=sha256, artifact_bytes=5))
    assert check(database) == []
    blob_file(database, shas[1]).write_bytes(b"damagEd")
    blob_file(database, shas[2]).unlink()
    wrong = check(database)
    assert len(wrong) == 2
    assert any(shas[1] in line and "damaged" in line for line in wrong)
    assert any(shas[2] in line and "not stored" in line for line in wrong)


def test_the_check_reads_a_part_of_the_kernels_at_a_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = SqlStore(database), rows.kernels_by_id
    stored = [store.put_kernel(kernel(artifact_sha256=store.put_blob(b"one"))).id for _ in range(3)]
    damage(database, stored[1])
    parts: list[list[str]] = []

    def noted(connection: Connection, ids: Sequence[str], *tell: rows.Tell) -> Any:
        parts.append(list(ids))
        return read(connection, ids, *tell)

    monkeypatch.setattr(rows.parts, "__defaults__", (2,))
    monkeypatch.setattr(rows, "kernels_by_id", noted)
    assert [stored[1] in line for line in check(database)] == [True]
    assert parts == [stored[:2], stored[2:]]


def test_a_list_passes_over_any_number_of_damaged_kernels_in_statements_of_one_length(database: Database) -> None:
    store = SqlStore(database)
    sound, *damaged = (store.put_kernel(kernel()) for _ in range(5))
    for record in damaged:
        damage(database, record.id)
    statements: list[str] = []
    with counted(database, statements):
        assert store.kernels(limit=1) == [sound]
    looks = [len(statement) for statement in statements if "ORDER BY kernels.seq DESC" in statement]
    assert len(looks) == 6
    assert len(set(looks[1:])) == 1, "each says where the last one ended, and no more"


def test_the_check_finds_rows_that_name_nothing(sqlite_database: Database) -> None:
    import sqlite3

    SqlStore(sqlite_database).add_candidate(candidate(1))
    connection = sqlite3.connect(sqlite_database.data_dir / "tirgemm.db")
    connection.execute("UPDATE sample_sets SET candidate_id = 4711")
    connection.commit()
    connection.close()
    assert any("sample_sets" in line and "candidates" in line for line in check(sqlite_database))


def test_a_deleted_kernel_takes_what_only_it_names_and_leaves_what_was_measured(database: Database) -> None:
    store, queue = SqlStore(database), JobQueue(database)
    sha256 = store.put_blob(b"artifact")
    given = kernel(artifact_sha256=sha256, artifact_bytes=8)
    first, second = store.put_kernel(given), store.put_kernel(given)
    store.add_candidate(candidate(1))
    job, _ = queue.submit(JobRequest(first.gemm, DEVICE), fallback_id=first.id)
    assert store.delete_kernel(first.id)
    assert not store.delete_kernel(first.id)
    assert store.kernel_by_id(first.id) is None
    assert store.kernel_by_id(second.id) == second, "artifact and certificate are its too"
    assert database.blobs.has(sha256)
    left = queue.job(job.id)
    assert left is not None
    assert (left.status, left.fallback_id) == ("queued", None)
    assert store.delete_kernel(second.id)
    assert not database.blobs.has(sha256)
    rows = info(database).rows
    assert (rows["kernels"], rows["artifacts"], rows["certificates"], rows["candidates"]) == (0, 0, 0, 1)
    assert store.kernel(first.gemm, DEVICE.key, first.regime) is None
    assert check(database) == []


def test_kernels_without_a_certificate_are_deleted_too(database: Database) -> None:
    store = SqlStore(database)
    kernels = [store.put_kernel(kernel("unverified", certificate=None, artifact_sha256=sha * 64)) for sha in ("a", "b")]
    assert store.delete_kernel(kernels[0].id)
    assert store.kernel_by_id(kernels[1].id) == kernels[1]
    assert not store.delete_kernel("nope")


def test_vacuum_keeps_everything(database: Database) -> None:
    store = SqlStore(database)
    store.add_candidate(candidate(1))
    vacuum(database)
    assert store.candidate(key(1)) == candidate(1)
    store.add_candidate(candidate(2))
    assert len(store.history(DEVICE.key, "sustained")) == 2
