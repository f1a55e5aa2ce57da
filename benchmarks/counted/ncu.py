"""Nsight Compute as a function: a command in, the metrics of every kernel it launches out, in order."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tirgemm.errors import MeasurementFailed
from verification.sessions import installed_tool, killed, started

_PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute", "/usr/local/bin")
_CHIPS = {"sm_80": "ga100", "sm_86": "ga102", "sm_89": "ad102", "sm_90a": "gh100"}
_QUERY_SECONDS = 90
# Between one way of stopping the profiler and the next, less gentle one.
_GRACE_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class ProfiledLaunch:
    """One profiled launch: the kernel's name, its grid and block as printed, and its metrics."""

    kernel: str
    grid: str
    block: str
    metrics: dict[str, float]


def program() -> str:
    """The path of ncu. Raises MissingExtra."""
    return installed_tool("ncu", _PLACES, "Nsight Compute")


def available(arch: str) -> frozenset[str]:
    """The base names of every metric that ncu has for the chip of ``arch``; empty where it does not answer."""
    command = [program(), "--query-metrics", "--chips", _CHIPS[arch]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_QUERY_SECONDS)
    except subprocess.TimeoutExpired:
        return frozenset()
    return names(done.stdout) if not done.returncode else frozenset()


def names(text: str) -> frozenset[str]:
    """The metrics that ``ncu --query-metrics`` lists: the first word of lines that begin with ``unit__name``."""
    return frozenset(re.findall(r"^\s*([a-z0-9]+__[a-z0-9_]+)\b", text, re.MULTILINE))


def profile(
    command: Sequence[str], metrics: Sequence[str], log: Path, timeout_s: float
) -> tuple[str, list[ProfiledLaunch]]:
    """What ``command``, a program of this checkout, prints, and the launches that were profiled before it ended or
    ``timeout_s`` was over.

    ncu writes its table when the command ends: over time the command is ended first, and ncu itself only when it does
    not follow. Clocks are left as they are. ``log`` keeps ncu's own output. Raises MissingExtra without ncu,
    MeasurementFailed with its words where it profiled nothing.
    """
    full = [
        program(),
        "--clock-control",
        "none",
        "--target-processes",
        "application-only",
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--log-file",
        str(log),
        "--metrics",
        ",".join(metrics),
        *command,
    ]
    process = started(full)
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        output = _stopped(process, command) + f"\n== stopped after {timeout_s:.0f} s"
    text = log.read_text(errors="replace") if log.exists() else ""
    launches = read(text)
    if not launches:
        words = [line for line in (text + output).splitlines() if line.strip()][-8:]
        raise MeasurementFailed(f"ncu profiled no kernel: {' / '.join(words)[:1500]}")
    return output, launches


def _stopped(process: subprocess.Popen[str], command: Sequence[str]) -> str:
    """End ncu so that it writes what it has; what was printed."""
    for gentle, target in ((signal.SIGINT, command), (signal.SIGTERM, command), (signal.SIGINT, None)):
        for pid in _below(process.pid, target) if target else [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, gentle)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_GRACE_SECONDS)[0]
    return killed(process)


def _below(root: int, command: Sequence[str]) -> list[int]:
    """The processes that ``root`` started, itself or through others, with ``command`` as their command line."""
    pids = []
    for process in psutil.Process(root).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            pids += [process.pid] if process.cmdline() == list(command) else []
    return pids


def read(text: str) -> list[ProfiledLaunch]:
    """The launches of ncu's raw page as CSV, in order of their ID; lines before the table are ncu's messages.

    Values may have thousands separators; a metric that a kernel has not (``n/a``, empty) is left out. Raises
    MeasurementFailed for a table without the columns that every raw page has.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    head, *rows = csv.reader(line for line in lines[start:] if line.startswith('"'))
    columns = {name: number for number, name in enumerate(head)}
    absent = [name for name in ("ID", "Kernel Name", "Grid Size", "Block Size") if name not in columns]
    if absent:
        raise MeasurementFailed(f"ncu's table lacks {', '.join(absent)}; it has {', '.join(head[:12])}")
    launches = []
    for row in rows:
        if len(row) != len(head) or not row[0].strip().isdigit():
            continue  # the line of units, and what is cut off
        values = {}
        for name, number in columns.items():
            if "__" in name and (value := _number(row[number])) is not None:
                values[name] = value
        kernel = row[columns["Kernel Name"]].partition("(")[0].strip()
        launches.append(
            (int(row[0]), ProfiledLaunch(kernel, row[columns["Grid Size"]], row[columns["Block Size"]], values))
        )
    return [launch for _, launch in sorted(launches, key=lambda pair: pair[0])]


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").strip())
    except ValueError:
        return None
