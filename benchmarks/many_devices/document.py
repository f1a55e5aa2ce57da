"""The results file of jobs on one and on several devices: what may be wrong with it, and its table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables import differing, of_file, repeated, table
from tirgemm.bench.results import Document

SUITE = "many_devices"
FILE = "many_devices.json"


@dataclass(frozen=True)
class QueueRun:
    """One run of a queue: seconds from the first job's POST to the last one's end, and for how many of them each device
    was measured on."""

    seconds: float
    measuring_s: tuple[float, ...]


def row_of(about: Mapping[str, Any], runs: Sequence[QueueRun], alone: Sequence[QueueRun]) -> dict[str, Any]:
    """A row: the runs on so many devices, beside those of the same jobs on one; ``speedup`` is of the medians."""
    row: dict[str, Any] = {"figure": figure_of(about), "status": "done", **about}
    row["samples"], row["alone"] = [asdict(run) for run in runs], [asdict(run) for run in alone]
    return row | _medians(row)


def figure_of(about: Mapping[str, Any]) -> str:
    """What a row is called."""
    count = about["devices"]
    return f"{about['jobs']} jobs on {count} device{'s' if count > 1 else ''}"


def faults(document: Document) -> Iterator[str]:
    """What is wrong: figures that are there twice, runs without their devices, medians that are not those of runs."""
    yield from repeated(document["rows"], "figure")
    for row in document["rows"]:
        figure = row["figure"]
        if not row["samples"] or not row["alone"]:
            yield f"{figure} has no runs, or none on one device beside them"
            continue
        for run, devices in [*((run, row["devices"]) for run in row["samples"]), *((run, 1) for run in row["alone"])]:
            if len(run["measuring_s"]) != devices or not 0 < max(run["measuring_s"]) <= run["seconds"]:
                yield f"{figure} has a run of {run['seconds']} s that measured for {run['measuring_s']} s"
        yield from (f"{figure}: {words}" for words in differing(row, _medians(row)))


@of_file(FILE, "python -m benchmarks.many_devices.measure")
def jobs(document: Document) -> str:
    """The table of a machine's file."""
    lines = [
        [
            row["figure"],
            f"{row['seconds']:.0f}",
            f"{row['speedup']:.2f}",
            f"{row['measuring_share']:.2f}",
            str(len(row["samples"])),
        ]
        for row in document["rows"]
    ]
    about, first = document["environment"], document["rows"][0]
    setting = (
        f"{about['device']}, {about['date'][:10]}: effort {first['effort']}, problems such as {first['first_gemm']}, "
        f"{first['processes']} build processes"
    )
    head = ["jobs", "seconds", "times one device", "measuring share of a device", "runs"]
    return f"{setting}\n\n{table(head, lines, 1)}"


def _medians(row: Mapping[str, Any]) -> dict[str, float]:
    """What follows from the samples of a row."""
    seconds = statistics.median(run["seconds"] for run in row["samples"])
    return {
        "seconds": seconds,
        "speedup": statistics.median(run["seconds"] for run in row["alone"]) / seconds,
        "measuring_share": statistics.median(
            statistics.mean(run["measuring_s"]) / run["seconds"] for run in row["samples"]
        ),
    }


TABLES: dict[str, Callable[[Path, Path], str]] = {SUITE: jobs}
