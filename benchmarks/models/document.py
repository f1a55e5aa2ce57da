"""The results file of models: what may be wrong with it, its summary, and its table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.tables import geomean, named, of_file, repeated, table
from tirgemm.bench.results import Document, Row
from tirgemm.tuning.intervals import ratio_interval

SUITE = "models"
FILE = "models.json"
# Which kernels a model ran on: all that were made, those that ``accelerate`` kept, or those that its race in the model
# kept.
ALL_KERNELS, RACED_KERNELS, IN_MODEL = "all kernels", "raced kernels", "kernels raced in the model"
KEY = ("model", "dtype", "tokens", "mode", "variant")


def key_of(row: Row) -> tuple[Any, ...]:
    """What a row is of: there is one of each in a file."""
    return tuple(row[name] for name in KEY)


def speedup(row: Row) -> float:
    """PyTorch's median time over ours."""
    return float(statistics.median(row["pytorch_samples_ms"]) / statistics.median(row["samples_ms"]))


def is_slower(row: Row) -> bool:
    """Whether ours is slower beyond the spread of the samples: the 95 % interval of the speedup lies below 1."""
    return ratio_interval(row["pytorch_samples_ms"], row["samples_ms"], paired=True).high < 1


def agrees(row: Row) -> bool:
    """Whether our result lies no farther from the exact one than two of PyTorch's own may lie apart."""
    return bool(0 <= row["error"] <= 2 * row["pytorch_error"])


def nearness(rows: Iterable[Row]) -> str:
    """How many results lie as near to PyTorch's as two of its own ways lie to each other: a figure, and no bound. Empty
    where no row has their distance."""
    pairs = [(row["difference"], row["pytorch_difference"]) for row in rows if "pytorch_difference" in row]
    if not pairs:
        return ""
    ratios = [ours / theirs for ours, theirs in pairs if theirs]
    near = sum(ours <= theirs for ours, theirs in pairs)
    first = f"In {near} of {len(pairs)} rows our result differs from PyTorch's no more than two of PyTorch's own ways"
    at_most = f"; at most {max(ratios):.2f} times as much" if ratios else ""
    same = f"; in {len(pairs) - len(ratios)} these have the same bits" if len(ratios) < len(pairs) else ""
    return f"{first} differ from each other{at_most}{same}."


def summary(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """By variant and mode the geometric mean of the speedups, the least, and how many there are."""
    speedups: dict[str, list[float]] = {}
    for row in rows:
        speedups.setdefault(f"{row['variant']}, {row['mode']}", []).append(speedup(row))
    return {
        name: {"geomean": statistics.geometric_mean(each), "min": min(each), "count": len(each)}
        for name, each in sorted(speedups.items())
    }


def faults(document: Document) -> Iterator[str]:
    """What is wrong: samples, doubles, results that lie too far from PyTorch's, a summary that is not that of the
    rows."""
    names = [", ".join(map(str, key_of(row))) for row in document["rows"]]
    yield from repeated(names)
    for name, row in zip(names, document["rows"], strict=True):
        if len(row["samples_ms"]) != len(row["pytorch_samples_ms"]) or not row["samples_ms"]:
            yield f"{name} has {len(row['samples_ms'])} samples of ours and {len(row['pytorch_samples_ms'])} of PyTorch"
        elif min(*row["samples_ms"], *row["pytorch_samples_ms"]) <= 0:
            yield f"{name} has samples that are not above 0"
        if not agrees(row):
            yield f"{name}: its error is {row['error']}, that of PyTorch's own ways up to {row['pytorch_error']}"
        if not 0 <= row.get("pytorch_difference", 0) < math.inf:
            yield f"{name}: its pytorch_difference is {row['pytorch_difference']}"
    if document["summary"] != summary(document["rows"]):
        yield "its summary is not that of its rows"


NO_KERNELS = "In parentheses: the races left PyTorch all linears of the case, so that no kernel of ours runs."


@of_file(FILE, "python benchmarks/models/race.py")
def models(document: Document) -> str:
    """The table of a device's file: eager and graph times beside PyTorch's."""
    rows = document["rows"]
    columns = list(dict.fromkeys((row["variant"], row["mode"]) for row in rows))
    modes = list(dict.fromkeys(mode for _, mode in columns))
    lines: dict[tuple[Any, ...], dict[tuple[str, str], Row]] = {}
    for row in rows:
        lines.setdefault((row["model"], row["dtype"], row["tokens"]), {})[row["variant"], row["mode"]] = row
    body = []
    for (model, dtype, tokens), of in lines.items():
        cells = [model, dtype, str(tokens)]
        for mode in modes:
            times = [statistics.median(row["pytorch_samples_ms"]) for (_, m), row in of.items() if m == mode]
            cells.append(f"{statistics.median(times):.3f}" if times else "")
        body.append([*cells, *(_cell(of[column]) if column in of else "" for column in columns)])
    total = ["geomean (least)", "", "", *[""] * len(modes)]
    body.append([*total, *(geomean([speedup(r) for r in rows if (r["variant"], r["mode"]) == c]) for c in columns)])
    times_of = [f"PyTorch, {mode}, ms" for mode in modes]
    head = ["model", "dtype", "tokens", *times_of, *(f"{variant}, {mode}" for variant, mode in columns)]
    about = document["environment"]
    which = f"transformers {about['transformers']}, {about.get('kernels', RACED_KERNELS)}"
    slower = [f"{_name(row)} ({speedup(row):.3f})" for row in rows if is_slower(row)]
    below = f"Slower than PyTorch beyond the spread of the samples (95 %): {'; '.join(slower) or 'none'}."
    if any(not row["kernels"] for row in rows):
        below = f"{NO_KERNELS}\n\n{below}"
    if near := nearness(rows):
        below = f"{near}\n\n{below}"
    first = f"{about['device']}, torch {about['torch']}, {which}, {about['date'][:10]}"
    return f"{first}\n\n{table(head, body, 2)}\n\n{below}"


def _cell(row: Row) -> str:
    """PyTorch's time over ours, in parentheses where no kernel of ours is in it."""
    return f"{speedup(row):.3f}" if row["kernels"] else f"({speedup(row):.3f})"


def _name(row: Row) -> str:
    return f"{row['variant']}, {row['mode']}, {row['model']}, {row['tokens']} tokens"


TABLES = named(models)
