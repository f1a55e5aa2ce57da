"""The results file of jobs on one and on several devices: what may be wrong with it, and its table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.tables import TableText, differing, number, of_file, repeated, table
from tirgemm.bench.results import Document

SUITE = "many_devices"
FILE = "many_devices.json"
# The setting that a row's name does not tell; a row's name tells of every other one what differs.
USUAL: Mapping[str, Any] = {"effort": "quick", "trials": None, "first_gemm": "1000x4104x4104:f16:nt"}


@dataclass(frozen=True)
class QueueRun:
    """One run of a queue: seconds from the first job's POST to the last one's end, for how many of them each device
    was measured on, and how many ``candidates`` the searches of all jobs tried, where that was counted."""

    seconds: float
    measuring_s: tuple[float, ...]
    candidates: int | None = None


def row_of(about: Mapping[str, Any], runs: Sequence[QueueRun], alone: Sequence[QueueRun]) -> dict[str, Any]:
    """A row: the runs on so many devices, each beside that of the same jobs on one; ``speedup`` is the median of the
    pairs'."""
    row: dict[str, Any] = {"figure": figure_of(about), "status": "done", **about}
    row["samples"], row["alone"] = [asdict(run) for run in runs], [asdict(run) for run in alone[: len(runs)]]
    return row | _medians(row)


def figure_of(about: Mapping[str, Any]) -> str:
    """What a row is called: no two settings have one name, but for their build processes."""
    unusual = [name for name, usual in USUAL.items() if about[name] != usual]
    words = {"effort": about["effort"], "trials": f"{about['trials']} trials", "first_gemm": about["first_gemm"]}
    return ", ".join([_count(about), *(words[name] for name in unusual)])


def faults(document: Document) -> Iterator[str]:
    """What is wrong: figures that are there twice or are called otherwise, runs without their devices or candidates,
    medians that are not those of runs."""
    yield from repeated(row["figure"] for row in document["rows"])
    for row in document["rows"]:
        figure = row["figure"]
        if figure != figure_of(row):
            yield f"{figure} is of the setting {figure_of(row)}"
        if not row["samples"] or len(row["samples"]) != len(row["alone"]):
            yield f"{figure} has {len(row['samples'])} runs beside {len(row['alone'])} on one device"
            continue
        for run, devices in [*((run, row["devices"]) for run in row["samples"]), *((run, 1) for run in row["alone"])]:
            if len(run["measuring_s"]) != devices or not 0 < max(run["measuring_s"]) <= run["seconds"]:
                yield f"{figure} has a run of {run['seconds']} s that measured for {run['measuring_s']} s"
            if (candidates := run.get("candidates")) is not None and candidates < row["jobs"]:
                yield f"{figure} has a run of {candidates} candidates"
        yield from (f"{figure}: {words}" for words in differing(row, _medians(row)))


@of_file(FILE, "python -m benchmarks.many_devices.measure")
def jobs(document: Document) -> str:
    """The table of a machine's file."""
    lines = [
        [
            _count(row),
            row["effort"] + (f", {row['trials']} trials" if row["trials"] else ""),
            row["first_gemm"],
            row["at"][:10],
            str(row["processes"]),
            f"{row['seconds']:.0f}",
            f"{row['speedup']:.2f}",
            number(row.get("candidates"), 0),
            number(row.get("candidates_per_s"), 1),
            f"{row['measuring_share']:.2f}",
            str(len(row["samples"])),
        ]
        for row in document["rows"]
    ]
    head = ["jobs", "effort", "problems such as", "date", "build processes", "seconds", "times one device"]
    head += ["candidates", "candidates/s", "measuring share of a device", "runs"]
    return f"{document['environment']['device']}\n\n{table(head, lines, 4)}"


def _count(about: Mapping[str, Any]) -> str:
    jobs, devices = about["jobs"], about["devices"]
    return f"{jobs} job{'s' if jobs > 1 else ''} on {devices} device{'s' if devices > 1 else ''}"


def _medians(row: Mapping[str, Any]) -> dict[str, float]:
    """What follows from the samples of a row."""
    runs = row["samples"]
    pairs = zip(row["alone"], runs, strict=True)
    medians = {
        "seconds": statistics.median(run["seconds"] for run in runs),
        "speedup": statistics.median(alone["seconds"] / run["seconds"] for alone, run in pairs),
        "measuring_share": statistics.median(statistics.mean(run["measuring_s"]) / run["seconds"] for run in runs),
    }
    if all(run.get("candidates") is not None for run in runs):
        medians["candidates"] = statistics.median(run["candidates"] for run in runs)
        medians["candidates_per_s"] = statistics.median(run["candidates"] / run["seconds"] for run in runs)
    return medians


TABLES: dict[str, TableText] = {SUITE: jobs}
