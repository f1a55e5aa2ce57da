"""Tables of what the analysis predicts beside what the hardware counted, for the markers ``counters/NAME`` of render.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service.results import load

_NOT_YET = "Not counted yet: `python -m benchmarks.counters` writes `benchmarks/results/DEVICE/counters.json` on a GPU."
# What is shown of a kernel: a head, and the counters that it is the sum of.
_WAVEFRONTS = tuple(f"{kind}_wavefronts" for kind in ("shared_load", "shared_store", "matrix_load", "matrix_store"))
_SHOWN: Mapping[str, tuple[str, ...]] = {
    "wavefronts": _WAVEFRONTS,
    "conflicts": tuple(name.replace("wavefronts", "conflicts") for name in _WAVEFRONTS),
    "sectors read": ("global_load_sectors",),
    "sectors written": ("global_store_sectors",),
}


def kernels(results: Path) -> str:
    """Every kernel: wavefronts, conflicts and sectors, predicted and counted, and how many of its counters are right."""
    parts = [_document(load(path)) for path in sorted(results.glob("*/counters.json"))]
    return "\n\n".join(parts) or _NOT_YET


def agreement(results: Path) -> str:
    """By counter: over how many kernels it was predicted, how many predictions are right, and the largest difference."""
    lines: list[str] = []
    for path in sorted([*results.glob("*/counters.json"), *results.glob("*/banks.counters.json.gz")]):
        document = load(path)
        judged: dict[str, list[dict[str, Any]]] = {}
        for row in document["rows"]:
            if "right" in row:
                judged.setdefault(row["counter"], []).append(row)
        for counter, rows in judged.items():
            off = max(
                (abs(row["predicted"] / row["counted"] - 1) for row in rows if row["counted"] and _exact(row)),
                default=0.0,
            )
            lines.append(
                f"| {_WHAT[document['regime']]} | `{counter}` | {len(rows)} | {sum(row['right'] for row in rows)} | "
                f"{_off(counter, off)} |"
            )
    head = ["| of | counter | predicted | right | largest difference |", "| --- | --- | ---: | ---: | ---: |"]
    return "\n".join([*head, *lines]) if lines else _NOT_YET


def _document(document: dict[str, Any]) -> str:
    environment = document["environment"]
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for row in document["rows"]:
        rows.setdefault(row["kernel"], {})[row["counter"]] = row
    lines = [
        f"{environment['device']}, driver {environment['driver']}, {environment['date'][:10]}:",
        "",
        f"| kernel | {' | '.join(f'{head}, predicted | counted' for head in _SHOWN)} | right |",
        f"| --- |{' ---: |' * (2 * len(_SHOWN) + 1)}",
    ]
    for kernel, counters in rows.items():
        cells = [f"`{kernel}`"]
        for names in _SHOWN.values():
            found = [counters[name] for name in names if name in counters and "right" in counters[name]]
            for side in ("predicted", "counted"):
                most = "at most " if side == "predicted" and any(row.get("bound") for row in found) else ""
                cells.append(f"{most}{sum(row[side] for row in found):,.0f}" if found else "")
        judged = [row["right"] for row in counters.values() if "right" in row]
        cells.append(f"{sum(judged)} of {len(judged)}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _exact(row: dict[str, Any]) -> bool:
    """Whether the two should be equal: no bound, and no zero."""
    return bool(row["predicted"]) and not row.get("bound") and row["counter"] not in _BOUNDS


def _off(counter: str, off: float) -> str:
    return "a bound" if counter in _BOUNDS else f"{off:.2%}"


_BOUNDS = ("occupancy_percent", "l1_load_conflicts", "l1_store_conflicts")
_WHAT = {"counters": "kernels", "banks": "probes"}
TABLES: dict[str, Callable[[Path], str]] = {"kernels": kernels, "agreement": agreement}
