"""The table of suite ``breadth``: problems that change one thing, beside the problem that they change and baselines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.tables import documents, geomean, not_yet, number, place, refusal, table
from tirgemm.bench.suite_file import Suite
from tirgemm.gemm import Gemm

BASELINES = ("torch.matmul", "torch.compile", "cublaslt_best")
# The variant that is shown.
VARIANT = "quick"


def plain(gemm: Gemm) -> Gemm:
    """The problem of the same sizes whose fp16 matrices are dense, A's rows and B's columns contiguous, without
    epilogue."""
    return Gemm(gemm.m_max, gemm.n, gemm.k)


def breadth(folder: Path, suites: Path) -> str:
    """Each problem's time, its speed in FLOP/s over that of the plain problem, and over the baselines'."""
    for document in documents(folder.parent, "breadth.sustained", folder.name):
        rows = {row["gemm"]: row for row in document["rows"] if row["variant"] == VARIANT}
        lines, ratios = [], []
        for gemm in Suite.read(suites / "breadth.json").gemms:
            row, base = rows.get(str(gemm)), rows.get(str(plain(gemm)))
            if row is None or row["status"] != "measured":
                lines.append(
                    [f"`{gemm}`", "not measured" if row is None else refusal(row), *[""] * (1 + len(BASELINES))]
                )
                continue
            share = row["tflops"] / base["tflops"] if base and base["status"] == "measured" else None
            beside = [row["baselines"].get(name, {}).get("ratio") for name in BASELINES]
            ratios.append([share, *beside])
            lines.append([f"`{gemm}`", number(row["median_us"], 2), *map(number, ratios[-1])])
        lines.append(
            ["**geometric mean (least)**", "", *(geomean(list(column)) for column in zip(*ratios, strict=True))]
        )
        head = ["gemm", "us", "speed / `f16:nt`", *(f"× {name}" for name in BASELINES)]
        return f"{VARIANT}: {place(document)}\n\n{table(head, lines, 1)}"
    return not_yet("tirgemm bench breadth --variants zero_shot,quick")


TABLES: dict[str, Callable[[Path, Path], str]] = {"breadth": breadth}
