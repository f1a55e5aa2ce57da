"""Tables of what the analysis predicts beside what the hardware counted, for the markers ``counters/NAME`` of
render.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.counted import traffic
from benchmarks.tables import named, not_yet, number, place, table
from tirgemm.bench.results import Document, Row, load

_NOT_YET = not_yet("python -m benchmarks.counters --out FILE")
# What is shown of a kernel: a head, and the counters that it is the sum of.
_WAVEFRONTS = tuple(f"{kind}_wavefronts" for kind in ("shared_load", "shared_store", "matrix_load", "matrix_store"))
_SHOWN: Mapping[str, tuple[str, ...]] = {
    "wavefronts": _WAVEFRONTS,
    "conflicts": tuple(name.replace("wavefronts", "conflicts") for name in _WAVEFRONTS),
    "sectors read": ("global_load_sectors",),
    "sectors written": ("global_store_sectors",),
}


def kernels(results: Path, suites: Path) -> str:
    """Every kernel: wavefronts, conflicts and sectors, predicted and counted, and how many of its counters are
    right."""
    parts = []
    for document in map(load, sorted(results.glob("*/counters.json"))):
        of: dict[str, dict[str, Row]] = {}
        for row in document["rows"]:
            of.setdefault(row["kernel"], {})[row["counter"]] = row
        lines = [[f"`{kernel}`", *_cells(counters)] for kernel, counters in of.items()]
        sides = [side for head in _SHOWN for side in (f"{head}, predicted", "counted")]
        anew = document.get("predicted_commit")
        predicted = f", predicted by `{anew[:8]}` after the counters were known" if anew else ""
        parts.append(f"{place(document)}{predicted}:\n\n{table(['kernel', *sides, 'right'], lines, 1)}")
    return "\n\n".join(parts) or _NOT_YET


def agreement(results: Path, suites: Path) -> str:
    """By counter: over how many kernels it was predicted, how many predictions are right, and the largest
    difference, of a wrong prediction of none the most that was counted."""
    lines = []
    for path in sorted([*results.glob("*/counters.json"), *results.glob("*/banks.counters.json.gz")]):
        document = load(path)
        judged: dict[str, list[Row]] = {}
        for row in document["rows"]:
            if "right" in row:
                judged.setdefault(row["counter"], []).append(row)
        for counter, rows in judged.items():
            differences = [abs(row["predicted"] / row["counted"] - 1) for row in rows if row["counted"] and _exact(row)]
            most = "a bound" if counter in _BOUNDS else f"{max(differences, default=0.0):.2%}"
            if surprises := [row["counted"] for row in rows if not row["right"] and not row["predicted"]]:
                most = f"{max(surprises):,.0f}, none predicted"
            right = str(sum(row["right"] for row in rows))
            lines.append([_WHAT[document["regime"]], f"`{counter}`", str(len(rows)), right, most])
    return table(["of", "counter", "predicted", "right", "largest difference"], lines, 2) if lines else _NOT_YET


def bounds(results: Path, suites: Path) -> str:
    """What bounds the kernels of a results file, ours and PyTorch's: rates of memory and L2, and shares of peaks."""
    parts = []
    for document in map(load, sorted(results.glob(f"*/*.{traffic.SUITE}.json"))):
        lines = [
            [f"`{row['gemm']}`", row["contender"], number(row["us"], 2), *_rates(row), *_shares(row)]
            for row in sorted(document["rows"], key=lambda row: _order(document, row))
        ]
        head = ["gemm", "kernel", "us", *(f"{what}, TB/s" for what in _RATES), *(what for what in _SHARES)]
        parts.append(f"{place(document)}:\n\n{table(head, lines, 2)}")
    return "\n\n".join(parts) or not_yet("python -m benchmarks.counted.traffic RESULTS --out FILE")


def _order(document: Document, row: Row) -> tuple[int, bool]:
    gemms = [other["gemm"] for other in document["rows"]]
    return gemms.index(row["gemm"]), row["contender"] != traffic.OURS


def _rates(row: Row) -> list[str]:
    """Terabytes a second, which are bytes a microsecond by 1e6; blank where something was not counted."""
    counted = [all(name in row for name in names) for names in _RATES.values()]
    sums = [sum(row.get(name, 0.0) for name in names) for names in _RATES.values()]
    return [number(total / row["us"] / 1e6 if known else None, 2) for known, total in zip(counted, sums, strict=True)]


def _shares(row: Row) -> list[str]:
    return [f"{row[name]:.0f}%" if name in row else "" for name in _SHARES.values()]


def _cells(counters: dict[str, Row]) -> list[str]:
    cells = []
    for names in _SHOWN.values():
        rows = [counters[name] for name in names if name in counters and "right" in counters[name]]
        for side in ("predicted", "counted"):
            most = "at most " if side == "predicted" and any(row.get("bound") for row in rows) else ""
            cells.append(f"{most}{sum(row[side] for row in rows):,.0f}" if rows else "")
    judged = [row["right"] for row in counters.values() if "right" in row]
    return [*cells, f"{sum(judged)} of {len(judged)}"]


def _exact(row: Row) -> bool:
    """Whether the two should be equal: no bound, and no zero."""
    return bool(row["predicted"]) and not row.get("bound") and row["counter"] not in _BOUNDS


_BOUNDS = ("occupancy_percent", "l1_load_conflicts", "l1_store_conflicts")
_RATES: Mapping[str, tuple[str, ...]] = {
    "memory": ("memory_read", "memory_written"),
    "L2 to SMs": ("l2_to_sms",),
    "SMs to L2": ("sms_to_l2",),
}
_SHARES = {
    "memory": "memory_percent",
    "L2": "l2_percent",
    "tensor cores": "tensor_percent",
    "SMs busy": "sms_active_percent",
}
_WHAT = {"counters": "kernels", "banks": "probes"}
TABLES = named(kernels, agreement, bounds)
