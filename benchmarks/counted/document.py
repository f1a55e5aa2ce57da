"""The results file of counters: its cases, a row for every counter of every kernel, and what may be wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.counted.cases import CountedCase
from benchmarks.counted.metrics import BY_NAME, compared, judged_by, right, stray_base, value
from benchmarks.counted.predictions import Prediction
from tirgemm.bench.results import Document, figures_document, measured_at
from tirgemm.config import Value
from tirgemm.tuning.build.binary import Binary

COUNTED, PREDICTED, FAILED = "counted", "predicted", "failed"
LEAST_KERNELS = 24
_HEAD = ("environment", "metrics", "cases", "rows")


@dataclass
class CountedKernel:
    """What is known of one case so far."""

    case: CountedCase
    config: dict[str, Value] = field(default_factory=dict)
    binary: Binary | None = None
    predictions: tuple[Prediction, ...] = ()
    counts: tuple[dict[str, float], ...] = ()
    log: str = ""
    message: str = ""

    @property
    def status(self) -> str:
        if self.message:
            return FAILED
        return COUNTED if self.counts else PREDICTED


def documented(kernels: Sequence[CountedKernel], metrics: Mapping[str, str], about: dict[str, Any]) -> Document:
    """The results file: its cases, and a row for every counter of every kernel."""
    rows: list[dict[str, object]] = []
    for kernel in kernels:
        for number, prediction in enumerate(kernel.predictions):
            profiled = kernel.counts[number] if kernel.counts else {}
            counted = {n: v for n, m in metrics.items() if (v := value(m, profiled)) is not None}
            name = kernel.case.name if len(kernel.predictions) == 1 else f"{kernel.case.name}/{prediction.symbol}"
            rows += compared(name, prediction.counters, counted, metrics, prediction.bounds)
    described = [
        {
            "name": k.case.name,
            "gemm": str(k.case.gemm),
            "family": k.case.family,
            "config": k.config,
            "status": k.status,
            "unknown": sorted({word for p in k.predictions for word in p.unknown}),
        }
        | (
            {"binary_sha256": k.binary.binary_sha256} | measured_at(about, k.binary.source_sha256, about.get("date"))
            if k.binary
            else {}
        )
        | ({"log": k.log} if k.log else {})
        | ({"message": k.message} if k.message else {})
        for k in kernels
    ]
    return figures_document("counters", about, rows, metrics=dict(metrics), cases=described)


def summary(document: Document) -> list[str]:
    """What a person reads at the end: everything that is wrong, and how much is right."""
    rows, described = document["rows"], document["cases"]
    judged = [row for row in rows if "right" in row]
    lines = [f"{c['status']}: {c['name']}: {c['message']}" for c in described if "message" in c]
    lines += [
        f"wrong: {r['kernel']} {r['counter']}: predicted {r['predicted']:,.0f}, counted {r['counted']:,.0f}"
        for r in judged
        if not r["right"]
    ]
    good = sum(row["right"] for row in judged)
    reached = sum(c["status"] == COUNTED for c in described)
    return [*lines, f"{good} of {len(judged)} predictions right, over {reached} of {len(described)} cases"]


def faults(document: Document) -> Iterator[str]:
    """Every sentence that is wrong about a document: absent parts, too few kernels, judgements that do not follow."""
    absent = [name for name in _HEAD if name not in document]
    if absent:
        yield f"it lacks {', '.join(absent)}"
        return
    named = [case["name"] for case in document["cases"]]
    counted = [case["name"] for case in document["cases"] if case["status"] == COUNTED]
    if len(counted) < LEAST_KERNELS:
        yield f"it counts {len(counted)} kernels; at least {LEAST_KERNELS} are asked for"
    of: dict[str, dict[str, float]] = {}
    for row in document["rows"]:
        if row["counted"] is not None:
            of.setdefault(row["kernel"], {})[row["counter"]] = row["counted"]
    for row in document["rows"]:
        where = f"{row['kernel']} {row['counter']}"
        if row["kernel"].partition("/")[0] not in named:
            yield f"{where}: no case has that name"
        if row["counter"] not in BY_NAME:
            yield f"{where}: no such counter"
        elif row["predicted"] is not None and row["counted"] is not None:
            counter = judged_by(BY_NAME[row["counter"]], bound=row.get("bound", False))
            verdict = right(counter, row["predicted"], row["counted"], stray_base(counter, of[row["kernel"]]))
            if row.get("right") is not verdict:
                yield f"{where}: right is {row.get('right')}, the figures give {verdict}"
