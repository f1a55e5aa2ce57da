"""A database with many known kernels of one device and what was measured of each, written row by row from one that was
stored the usual way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select

from tirgemm import Config, Gemm
from tirgemm.hardware import named_device
from tirgemm.timings import BaselineTime, SearchSummary, Timing, Timings
from tirgemm.tuning.records import Candidate, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.answers.kernel_document import put_documents
from tirgemm.tuning_db.models import CandidateRow, GemmRow, KernelFigureRow, KernelRow, SampleSetRow

DEVICE = named_device("sm_90a")
ROWS_AT_ONCE = 5000
_TABLES = (GemmRow, KernelRow, KernelFigureRow, CandidateRow, SampleSetRow)
# A row of each of _TABLES.
_Rows = tuple[dict[str, Any], ...]


def gemms(count: int) -> list[Gemm]:
    """So many problems, of odd sizes."""
    return list(islice((Gemm(m, n, 4097) for n in range(129, 1 << 20, 256) for m in range(1, 1025)), count))


def store_kernels(folder: Path, problems: Sequence[Gemm], url: str = "") -> None:
    """Make a database in ``folder``, or at ``url``, with a tuned kernel of each problem; all of them name one
    artifact."""
    with Database(url, folder) if url else Database.embedded(folder) as database:
        store = SqlStore(database)
        sha256 = store.put_blob(b"artifact of a known kernel" * 1000)
        first = _kernel(problems[0], sha256)
        store.add_candidate(_candidate(first))
        first = store.put_kernel(first)
        with database.read() as connection:
            stored = tuple(_only_row(connection, table) for table in _TABLES)
        assert all(row.get("seq", row.get("id")) == 1 for row in stored)
        with database.write() as connection:
            rows = _rows(problems, stored)
            while page := list(islice(rows, ROWS_AT_ONCE)):
                for table, values in zip(_TABLES, zip(*page, strict=True), strict=True):
                    connection.execute(insert(table), list(values))
                kernels = [(row["seq"], row["id"], problems[row["seq"] - 1]) for _, row, *_ in page]
                documents = [(seq, replace(first, id=name, gemm=gemm)) for seq, name, gemm in kernels]
                put_documents(database, connection, documents)


def _only_row(connection: Connection, table: Any) -> dict[str, Any]:
    return connection.execute(select(*table.__table__.columns)).one()._asdict()


def _rows(problems: Sequence[Gemm], stored: _Rows) -> Iterator[_Rows]:
    """The rows of all problems but the first, whose rows are given; a time is drawn up to twice the first one's."""
    gemm_row, kernel_row, figure_row, candidate_row, samples_row = stored
    for number, gemm in enumerate(problems[1:], 2):
        sizes = {"m_min": gemm.m_min, "m_max": gemm.m_max, "n": gemm.n, "k": gemm.k}
        us = figure_row["us"] * (1 + number * 7919 % 9973 / 9973)
        figures = {"work": float(gemm.flops), "us": us, "tflops": gemm.flops / us / 1e6}
        yield (
            gemm_row | sizes | {"text": str(gemm), "id": number},
            kernel_row | {"seq": number, "id": f"{number:016x}", "gemm_id": number},
            figure_row | sizes | figures | {"seq": number, "gemm_id": number},
            candidate_row | {"id": number, "gemm_id": number},
            samples_row | {"id": number, "candidate_id": number, "median_us": us},
        )


def _candidate(kernel: KernelRecord) -> Candidate:
    """The candidate that a kernel was made of, with the samples that its figures report."""
    samples = tuple(10.0 + at / 100 for at in range(-7, 8))
    baselines = {
        name: tuple(us * ratio for us in samples) for name, ratio in (("torch.matmul", 1.12), ("default", 1.04))
    }
    report = SampleSet(samples, "report", baselines, {"clock_mhz": 1980, "power_w": 512.0})
    return Candidate(
        kernel.gemm,
        kernel.device.key,
        kernel.regime,
        kernel.config,
        Status.MEASURED,
        kernel_sha256=kernel.kernel_sha256,
        sample_sets=(report,),
    )


def _kernel(gemm: Gemm, artifact_sha256: str) -> KernelRecord:
    """A kernel whose document has about the members and the length of a real one."""
    tests = tuple(
        {"name": name, "m": 1, "n": 129, "k": 4097, "seed": 0, "passed": True, "error": error, "method": "full"}
        for name, error in (("exact", 0.0), ("normal", 0.31))
    )
    environment = {"python": "3.11", "tvm": "0.27", "driver": "580.65", "cuda": "13.0"}
    baselines = {"torch.matmul": BaselineTime(11.2, 1.12), "default": BaselineTime(10.4, 1.04)}
    timing = Timing(10.0, samples=101, baselines=baselines, conditions={"clock_mhz": 1980, "power_w": 512.0})
    search = SearchSummary.from_json({"trials": 64, "effort": "standard", "ended": "trials", "seconds": 61.0})
    knobs = ("tile_m", 128), ("tile_n", 129), ("tile_k", 64), ("stages", 4), ("warps", 8), ("raster", "rows")
    return KernelRecord(
        gemm=gemm,
        device=DEVICE,
        regime="sustained",
        role="tuned",
        config=Config("wgmma", knobs),
        kernel_sha256="c" * 64,
        artifact_sha256=artifact_sha256,
        artifact_bytes=26_000,
        certificate=Certificate("c" * 64, True, tests, "plain fp64 kernel", environment, "2026-11-23T00:00:00Z"),
        timings=Timings({"sustained": timing, "isolated": timing}, search=search),
        trials=64,
        created_at="2026-11-23T00:00:00Z",
    )
