"""Fresh databases for the contract suites, one kind after the other, and values to put into them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm
from tirgemm.timings import BaselineTime, Timing, Timings
from tirgemm.tuning.records import Candidate, CandidateKey, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning_db import Database

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
        self._emptied = ""

    def fresh(self) -> str:
        """The URL of a new, empty database."""
        name = f"t{next(self._count)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self._url.replace("DATABASE", name)

    def emptied(self) -> str:
        """The URL of one database that is emptied at each call: quicker than a new one."""
        self._emptied = self._emptied or self.fresh()
        with self.connect(self._emptied.partition("@/")[2].partition("?")[0]) as connection:
            query = (
                "SELECT string_agg(tablename, ',') FROM pg_tables WHERE schemaname = "
                "'public' AND tablename <> 'alembic_version'"
            )
            row = connection.execute(query).fetchone()
            if row is not None and row[0]:
                connection.execute(f"TRUNCATE {row[0]} RESTART IDENTITY CASCADE")
        return self._emptied

    def connect(self, name: str) -> psycopg.Connection[Any]:
        return psycopg.connect(host=self._url.partition("host=")[2], user="tirgemm", dbname=name, autocommit=True)


@contextmanager
def opened(url: str, folder: Path) -> Iterator[Database]:
    with Database(url, folder) as database:
        yield database
