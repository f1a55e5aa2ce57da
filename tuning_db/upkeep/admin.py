"""Database maintenance: statistics, integrity, removal of what nothing needs."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, func, select, text

from tirgemm.errors import InvalidRequest, StoreError
from tirgemm.tuning_db import rows, schema
from tirgemm.tuning_db.database import Database, translated
from tirgemm.tuning_db.models import ArtifactRow, AttemptRow, Base, CandidateRow, DeviceRow, JobRow, KernelRow
from tirgemm.tuning_db.queue.job_rows import read_jobs, select_jobs

# Younger blobs may belong to a kernel that is about to be recorded.
COLLECT_AFTER_S = 3600.0


@dataclass(frozen=True)
class Info:
    """A summary for people. ``lost_attempts`` were begun and never recorded: what kills have cost."""

    url: str
    data_dir: str
    schema: str
    database_bytes: int
    rows: dict[str, int]
    candidates: dict[str, int]
    jobs: dict[str, int]
    devices: tuple[str, ...]
    lost_attempts: int
    blobs: int
    blob_bytes: int
    unreferenced_blobs: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"devices": list(self.devices)}


@dataclass(frozen=True)
class CollectedGarbage:
    """What collecting threw away, or would have: blobs that no artifact names, and files left unfinished by kills."""

    blobs: int
    blob_bytes: int
    unfinished: int


def info(db: Database) -> Info:
    """Counts and sizes of a database and its blobs."""
    with db.read() as connection:
        counts = {
            table.name: _scalar(connection, select(func.count()).select_from(table))
            for table in Base.metadata.sorted_tables
        }
        lost = _scalar(connection, select(func.count()).select_from(AttemptRow).where(AttemptRow.recorded_at.is_(None)))
        size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        if not db.is_sqlite:
            size = "SELECT pg_database_size(current_database())"
        named, blobs = _named(connection), list(db.blobs.list())
        return Info(
            url=db.place,
            data_dir=str(db.data_dir),
            schema=str(schema.version(connection)),
            database_bytes=_scalar(connection, text(size)),
            rows=counts,
            candidates=_grouped(connection, CandidateRow.status),
            jobs=_grouped(connection, JobRow.status),
            devices=tuple(connection.execute(select(DeviceRow.key).order_by(DeviceRow.key)).scalars()),
            lost_attempts=lost,
            blobs=len(blobs),
            blob_bytes=sum(blob.nbytes for blob in blobs),
            unreferenced_blobs=sum(blob.sha256 not in named for blob in blobs),
        )


def check(db: Database) -> list[str]:
    """What is wrong, a sentence each: a damaged database file, damaged rows of kernels, candidates and jobs, artifacts
    whose bytes are missing or damaged."""
    wrong = []
    with db.read() as connection:
        if db.is_sqlite:
            said = [str(row[0]) for row in connection.execute(text("PRAGMA quick_check"))]
            said += [
                f"table {row[0]}, row {row[1]} names a missing {row[2]}"
                for row in connection.execute(text("PRAGMA foreign_key_check"))
            ]
            wrong += [f"database {db.place}: {line}" for line in said if line != "ok"]
        wrong += _damaged_rows(connection)
        named = sorted(_named(connection))
    for sha256 in named:
        try:
            db.blobs.get(sha256)
        except StoreError as error:
            wrong.append(str(error))
    return wrong


def _damaged_rows(connection: Connection) -> list[str]:
    """Which kernels, candidates and jobs are damaged; a part of them is read at a time."""
    damaged: list[str] = []
    kernels = connection.execute(select(KernelRow.id).order_by(KernelRow.seq)).scalars().all()
    for ids in rows.parts(kernels):
        rows.kernels_by_id(connection, ids, damaged.append)
    candidates = connection.execute(select(CandidateRow.id).order_by(CandidateRow.id)).scalars().all()
    for part in rows.parts(candidates):
        rows.read_candidates(connection, rows.CandidateQuery.where([CandidateRow.id.in_(part)]), tell=damaged.append)
    jobs = connection.execute(select(JobRow.id).order_by(JobRow.seq)).scalars().all()
    for ids in rows.parts(jobs):
        read_jobs(connection, select_jobs().where(JobRow.id.in_(ids)).order_by(JobRow.seq), len(ids), damaged.append)
    return damaged


def collect_garbage(
    db: Database, *, older_than_s: float = COLLECT_AFTER_S, locked: Collection[str] = (), dry_run: bool = False
) -> CollectedGarbage:
    """Delete blobs that no artifact names, that are old enough and not ``locked``; with ``dry_run`` only count them."""
    if not older_than_s >= 0:
        raise InvalidRequest(f"the age from which blobs are collected is {older_than_s} s; it must be 0 or more")
    before = datetime.fromtimestamp(max(time.time() - older_than_s, 0.0), UTC)
    # Listed before the names are read: a blob that is recorded in between is then among the names.
    old = [blob for blob in db.blobs.list() if blob.at <= before]
    with db.read() as connection:
        named = _named(connection)
    useless = [blob for blob in old if blob.sha256 not in named | set(locked)]
    if not dry_run:
        for blob in useless:
            db.blobs.delete(blob.sha256)
    unfinished = 0 if dry_run else db.blobs.sweep(older_than_s)
    return CollectedGarbage(len(useless), sum(blob.nbytes for blob in useless), unfinished)


def vacuum(db: Database) -> None:
    """Give the space of deleted rows back to the disk. Other writers wait meanwhile."""
    with translated(db.place):
        raw = db.engine.raw_connection()
        try:
            if not db.is_sqlite:
                driver: Any = raw.driver_connection
                driver.autocommit = True
            raw.cursor().execute("VACUUM")
        finally:
            # Not back into the pool, whose connections all begin transactions by themselves.
            raw.invalidate()
    db.keep_table_list()


def _scalar(connection: Connection, statement: Any) -> int:
    return int(connection.execute(statement).scalar_one())


def _grouped(connection: Connection, column: Any) -> dict[str, int]:
    counts = connection.execute(select(column, func.count()).group_by(column).order_by(column)).all()
    return {str(value): int(count) for value, count in counts}


def _named(connection: Connection) -> set[str]:
    return set(connection.execute(select(ArtifactRow.sha256)).scalars())
