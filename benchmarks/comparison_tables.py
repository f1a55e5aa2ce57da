"""Tables that compare rows of one file: of suite ``breadth``, problems that change one thing with the problem that they
change; of any suite, what two searches from nothing choose."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from benchmarks.tables import documents, geomean, not_yet, number, place, refusal, table
from tirgemm.bench.effort_answers import AGAIN
from tirgemm.bench.results import load
from tirgemm.bench.suite_file import Suite
from tirgemm.gemm import REGIMES, Gemm

BASELINES = ("torch.matmul", "torch.compile", "cublaslt_best")
# The variant that is shown.
VARIANT = "quick"
# Two kernels of a problem whose times differ by no more than this are as good.
WITHIN = 0.02


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


def repeated(folder: Path, suites: Path) -> str:
    """How far the kernels lie apart that two ``standard`` searches of a problem chose, raced side by side."""
    del suites
    lines = []
    for document in (load(path) for regime in REGIMES for path in sorted(folder.glob(f"*.{regime}.json*"))):
        measured = {(row["gemm"], row["variant"]): row for row in document["rows"] if row.get("status") == "measured"}
        pairs = [
            (row, measured.get((gemm, "standard"))) for (gemm, variant), row in measured.items() if variant == AGAIN
        ]
        both = [(again, first) for again, first in pairs if first is not None]
        if not both:
            continue
        apart = [abs(math.log(again["median_us"] / first["median_us"])) for again, first in both]
        same = sum(again["config_hash"] == first["config_hash"] for again, first in both)
        within = sum(each <= math.log(1 + WITHIN) for each in apart)
        worst = f"{math.exp(max(apart)) - 1:.1%}"
        share = f"{within} ({within / len(both):.0%})"
        lines.append([document["suite"], document["regime"], str(len(both)), str(same), share, worst])
    head = ["suite", "regime", "problems", "same config", f"within {WITHIN:.0%}", "farthest apart"]
    command = f"tirgemm bench twice-116 --variants zero_shot,quick,standard,{AGAIN}"
    return table(head, lines, 2) if lines else not_yet(command)


TABLES: dict[str, Callable[[Path, Path], str]] = {"breadth": breadth, "repeated": repeated}
