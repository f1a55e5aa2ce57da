"""Fresh databases for the contract suites, one kind after the other, and values to put into them."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from tests.waiting import until
from tirgemm._user_folders import DATABASE
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.timings import BaselineTime, Timing, Timings
from tirgemm.tuning.records import Candidate, CandidateKey, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.blobs import BlobStore
from verification.service.file_systems import immutable

GEMM = Gemm(17, 33, 65)
OTHER_GEMM = Gemm(1023, 1021, 1027, batch=3, bias=True)
DEVICE = Device(
    "cpu",
    "x86-64-v3",
    "Test CPU 3000",
    units=3,
    memory_bytes=3 << 30,
    features=("avx2", "fma"),
    uuid="cpu-1",
    peak_tflops=(("f32", 1.5), ("f16", 0.75)),
    environment=(("tvm", "0.27.0"), ("driver", "none")),
)
OTHER_DEVICE = Device("cuda", "sm_90a", "NVIDIA H200", units=132, memory_bytes=139 << 30)
_numbers = itertools.count(1)


def config(number: int) -> Config:
    """A config whose knobs are in no alphabetical order."""
    return Config("x86", (("tile_n", 8 * number), ("pack", True), ("order", "nk")))


def samples(first: float = 10.0, reason: Any = "search") -> SampleSet:
    conditions = {"clock_mhz": 3100, "throttled": False, "fingerprint": "00ff"}
    return SampleSet((first, first + 2.5, first + 0.125), reason, {"numpy_f32": (31.0, 30.5)}, conditions)


def candidate(number: int, **changes: Any) -> Candidate:
    """A measured candidate with one sample set."""
    values: dict[str, Any] = {
        "gemm": GEMM,
        "device_key": DEVICE.key,
        "regime": "sustained",
        "config": config(number),
        "status": Status.MEASURED,
        "error": 0.25,
        "trace": [[["SampleCategorical", [], [number]]], [[0, number]]],
        "source_sha256": "a" * 64,
        "binary_sha256": "b" * 64,
        "kernel_sha256": "c" * 64,
        "predicted_us": 11.5,
        "sample_sets": (samples(10.0 + number),),
    }
    return Candidate(**values | changes)


def key(number: int) -> CandidateKey:
    return candidate(number).key


def kernel(role: Any = "tuned", **changes: Any) -> KernelRecord:
    """A kernel, with a certificate; the artifact is only named."""
    sha256 = f"{next(_numbers):064x}"
    certificate = Certificate(
        sha256, True, ({"name": "exact", "bound": 0, "found": 0},), "numpy fp64", {"tvm": "0.27"}, "now"
    )
    values: dict[str, Any] = {
        "gemm": GEMM,
        "device": DEVICE,
        "regime": "sustained",
        "role": role,
        "config": config(1),
        "kernel_sha256": sha256,
        "artifact_sha256": sha256[::-1],
        "artifact_bytes": 12_345,
        "certificate": certificate,
        "timings": Timings({"sustained": Timing(10.5, 41, {"default": BaselineTime(13.125, 1.25)}, {"at": "2026"})}),
        "trials": 7,
    }
    return KernelRecord(**values | changes)


class PostgresDatabases:
    """Databases on one server, each made on demand and dropped with it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._count = itertools.count()
        self._template = ""
        self._emptied = ""
        self._kept: Database | None = None

    def fresh(self, template: str = "template1") -> str:
        """The URL of a new, empty database, or of a copy of ``template``."""
        name = f"t{next(self._count)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return self._url.replace("DATABASE", name)

    def migrated(self, folder: Path) -> str:
        """The URL of a new database with the current schema: the migrations run once, in ``folder``."""
        if not self._template:
            url = self.fresh()
            Database(url, folder).close()
            self._template = database_name(url)
        return self.fresh(self._template)

    def emptied(self, folder: Path) -> str:
        """The URL of one database that is emptied at each call: quicker than a new one."""
        self._emptied = self._emptied or self.migrated(folder)
        with self.connect(database_name(self._emptied)) as connection:
            # Rows, without the checks of foreign keys: TRUNCATE makes the file of every table and index anew.
            connection.execute("SET session_replication_role = replica")
            query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
            tables = [row[0] for row in connection.execute(query)]
            connection.execute(";".join(f"DELETE FROM {table}" for table in tables))
            connection.execute("SELECT setval(sequencename::regclass, 1, false) FROM pg_sequences")
        return self._emptied

    def database(self, folder: Path) -> Database:
        """That one emptied, with blobs in ``folder``. Connections and compiled statements are those of the call before:
        nobody closes it.
        """
        url = self.emptied(folder)
        if self._kept is None:
            self._kept = Database(url, folder)
        database = copy(self._kept)
        database.data_dir, database.blobs = folder, BlobStore(folder / "blobs")
        return database

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def connect(self, name: str) -> psycopg.Connection[Any]:
        return psycopg.connect(host=self._url.partition("host=")[2], user="tirgemm", dbname=name, autocommit=True)


def database_name(url: str) -> str:
    """The name of the database in a URL on a Unix socket."""
    return url.partition("@/")[2].partition("?")[0]


@contextmanager
def opened(url: str, folder: Path) -> Iterator[Database]:
    with Database(url, folder) as database:
        yield database


def await_locked(database: Database, connection: Connection, count: int) -> None:
    """Return once so many others wait for what this transaction has locked; on SQLite there is one writer anyway."""
    if database.is_sqlite:
        return
    waits = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )

    def waiting() -> bool:
        # What a transaction has read of it once, it sees to its end.
        connection.execute(text("SELECT pg_stat_clear_snapshot()"))
        return bool(connection.execute(waits).scalar() == count)

    until(waiting)


def damage_page(database: Database, table: str) -> None:
    """Overwrite the first page of a table of SQLite, which nobody has open any more."""
    with database.read() as connection:
        page, size = connection.execute(
            text("SELECT rootpage, page_size FROM sqlite_master, pragma_page_size WHERE name = :table"),
            {"table": table},
        ).one()
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    database.engine.dispose()
    with (database.data_dir / DATABASE).open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """What is in ``folder`` cannot be written, where it is open already either; a skip where that cannot be had."""
    with ExitStack() as stack:
        try:
            stack.enter_context(immutable(folder))
        except InvalidRequest as error:
            pytest.skip(str(error))
        yield


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """``folder`` as one that nobody can write into, on a disk that is mounted so; a skip where that cannot be had."""
    if os.geteuid() != 0:
        modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        yield
        for path, mode in modes.items():
            path.chmod(mode)
        return
    bind = ["mount", "-o", "bind,ro", str(folder), str(folder)]
    mounted = subprocess.run(bind, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"root can write everywhere and may not mount here: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
