"""The results file of the service's speed: what may be wrong with it, and its table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.service_speed.load import Turn
from benchmarks.tables import differing, named, of_file, repeated, table
from tirgemm.bench.results import Document

SUITE = "service"
FILE = "service.json"
# How the figures begin whose rates are those of answers, as the bare route's are.
COMPARED = ("hits", "PostgreSQL, hits")
SAMPLES = ("per_second", "p50_ms", "p99_ms")


def row_of(figure: str, about: Mapping[str, Any], ours: Sequence[Turn], bare: Sequence[Turn]) -> dict[str, Any]:
    """A row: the turns of ours and, beside each, one of the bare route; medians, and the median share of its rate."""
    row: dict[str, Any] = {"figure": figure, "status": "served", **about}
    row["samples"], row["bare"] = [vars(turn) for turn in ours], [vars(turn) for turn in bare]
    return row | _medians(row)


def faults(document: Document) -> Iterator[str]:
    """What is wrong: figures that are there twice, turns without a bare one, medians that are not those of turns."""
    yield from repeated(row["figure"] for row in document["rows"])
    for row in document["rows"]:
        figure = row["figure"]
        if not row["samples"] or len(row["samples"]) != len(row["bare"]):
            yield f"{figure} has {len(row['samples'])} turns beside {len(row['bare'])} of the bare route"
        elif min(turn[name] for turn in (*row["samples"], *row["bare"]) for name in SAMPLES) <= 0:
            yield f"{figure} has samples that are not above 0"
        else:
            yield from (f"{figure}: {words}" for words in differing(row, _medians(row)))
        if "problems" in row:
            yield from _suite_faults(row)


def _suite_faults(row: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the row of a suite whose answers are shipped."""
    figure, problems = row["figure"], row["problems"]
    if len(problems) != len(row["samples"]):
        yield f"{figure} has {len(row['samples'])} samples of {len(problems)} problems"
    if len(set(problems)) != len(problems):
        yield f"{figure} has samples of one problem twice, which was known the second time"
    if row["trials"] != 0:
        yield f"{figure} was answered by searches, of {row['trials']} trials"


@of_file(FILE, "python -m benchmarks.service_speed.measure")
def service(document: Document) -> str:
    """The table of a machine's file."""
    head = ["figure", "answers/s", "bare route/s", "share", "p50 ms", "p99 ms", "bare p50, p99 ms"]
    hits = next((row for row in document["rows"] if "document_bytes" in row), None)
    lines = [
        [
            _named(row) + _among(row, hits),
            f"{row['per_second']:,.0f}",
            f"{row['bare_per_second']:,.0f}",
            f"{row['share']:.2f}" if row["figure"].startswith(COMPARED) else "",
            f"{row['p50_ms']:.1f}",
            f"{row['p99_ms']:.1f}",
            f"{row['bare_p50_ms']:.1f}, {row['bare_p99_ms']:.1f}",
        ]
        for row in document["rows"]
    ]
    about = document["environment"]
    kind, _, _, units, *_ = about["device_key"].split(":")
    threads = f", {units} threads" if kind == "cpu" else ""
    dates = sorted(row["at"][:10] for row in document["rows"]) or [about["date"][:10]]
    setting = f"{about['device']}{threads}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"
    if hits is not None:
        setting += (
            f": SQLite with {hits['kernels']:,} kernels where nothing else is said, {hits['connections']} connections, "
            f"documents of {hits['document_bytes']:,} bytes, medians of {len(hits['samples'])} turns"
        )
    return f"{setting}\n\n{table(head, lines, 1)}"


def _among(row: Mapping[str, Any], hits: Mapping[str, Any] | None) -> str:
    """How many kernels there were, where not as many as the head of the table says."""
    kernels = row.get("kernels")
    return "" if kernels is None or hits is None or kernels == hits["kernels"] else f"; {kernels:,} kernels in all"


def _named(row: Mapping[str, Any]) -> str:
    """The figure of a row and what else was measured of it."""
    if "server_mib" in row:
        return f"{row['figure']}; the server's most memory {row['server_mib']:.0f} MiB"
    if "problems" in row:
        took = [turn["p50_ms"] for turn in row["samples"]]
        counted = f"{row['shipped_problems']} of {row['suite_problems']} problems shipped"
        return f"{row['figure']}; {counted}; {min(took):.0f} to {max(took):.0f} ms"
    if "page_bytes" in row:
        return f"{row['figure']}; {row['page_bytes'] / 1000:.0f} kB, one connection"
    return str(row["figure"])


def _medians(row: Mapping[str, Any]) -> dict[str, float]:
    """What follows from the samples of a row."""
    pairs = zip(row["samples"], row["bare"], strict=True)
    return {
        **{name: statistics.median(turn[name] for turn in row["samples"]) for name in SAMPLES},
        **{f"bare_{name}": statistics.median(turn[name] for turn in row["bare"]) for name in SAMPLES},
        "share": statistics.median(ours["per_second"] / bare["per_second"] for ours, bare in pairs),
    }


TABLES = named(service)
