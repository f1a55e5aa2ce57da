"""Tables of the families ``mma`` and ``wmma``: steps, and the ceiling of mma.sync; for the markers of render.py.

``TABLES`` maps the name after ``tensorcore/`` to the function that writes the Markdown.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.tables import documents, named, not_yet, number, place, refusal, table
from benchmarks.tensorcore_steps import STEPS
from tirgemm.bench.results import Row, load
from tirgemm.gemm import REGIMES
from tirgemm.tuning.selection import ratio_low

_BASELINES = ("torch.matmul", "cublaslt_best", "triton", "cutlass")


def steps(results: Path, suites: Path) -> str:
    """Every step of every problem of every device's file: TFLOP/s, what it gains over its parent, shares of
    baselines."""
    parts = []
    for document in documents(results, "tensorcore_steps.*"):
        parts.append(f"{place(document)}:")
        for gemm in dict.fromkeys(row["gemm"] for row in document["rows"]):
            parts.append(_steps(gemm, {row["variant"]: row for row in document["rows"] if row["gemm"] == gemm}))
    return "\n\n".join(parts) or not_yet("python benchmarks/tensorcore_steps.py --out FILE")


def _steps(gemm: str, rows: dict[str, Row]) -> str:
    present = [name for name in _BASELINES if any(name in row["baselines"] for row in rows.values())]
    lines = []
    for step in STEPS:
        if (row := rows.get(step.name)) is None:
            continue
        head = [f"`{step.name}`", f"`{step.parent}`" if step.parent else ""]
        if row["status"] != "measured":
            lines.append([*head, refusal(row), *[""] * (3 + len(present))])
            continue
        parent = row["baselines"].get(step.parent)
        low = ratio_low(tuple(parent["samples_us"]), tuple(row["samples_us"])) if parent else None
        gain = [number(parent["ratio"] if parent else None), number(low)]
        shares = [number(row["baselines"].get(name, {}).get("ratio")) for name in present]
        lines.append([*head, step.changed, f"{row['tflops']:.0f}", *gain, *shares])
    head = [f"`{gemm}`", "parent", "changed", "TFLOP/s", "× parent", "at least", *(f"× {name}" for name in present)]
    return table(head, lines, 3)


def ceiling(results: Path, suites: Path) -> str:
    """The most that mma.sync reached out of registers alone, by kind of operands and regime."""
    lines = []
    for path in sorted(results.glob("*/mma_ceiling.json")):
        document = load(path)
        for kind, rates in document["summary"].items():
            device = document["environment"]["device"]
            lines.append([device, f"`{kind}`", *(f"{rates[regime]:.0f}" for regime in REGIMES)])
    head = ["device", "operands", *(f"TFLOP/s, {regime}" for regime in REGIMES)]
    return table(head, lines, 2) if lines else not_yet("python benchmarks/mma_ceiling.py --out FILE")


TABLES = named(steps, ceiling)
