"""compute-sanitizer as a function: packaged kernels in, what it says about each out."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tirgemm.detect import gpu_of
from tirgemm.tuning.measure import Measurer
from verification.sanitized_call import BEGIN, END
from verification.sessions import installed_tool, killed, started

TOOLS = ("memcheck", "racecheck", "synccheck")
_PLACES = ("/usr/local/cuda/bin",)
_OPTIONAL = {"--check-warpgroup-mma": "yes", "--check-bulk-copy": "yes", "--launch-timeout": "120"}
# Kernels in one process: its start costs ten times what a small kernel takes.
AT_ONCE = 8
_START_S, _KERNEL_S = 60.0, 15.0
_FINDING = re.compile(
    r"^========= (?:(?:Error|Warning|ERROR|WARN|Info): |Invalid |Misaligned |Barrier error|Divergent |Potential "
    r")(.*)|^========= (Program hit .*)"
)
_NOISE = ("ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY")
# The tool's words about itself and the process that it began: they say nothing of a kernel.
_OWN_WORDS = re.compile(
    r"^========= (?:Internal \w+ Error|Target application (?:terminated|returned)|(?:Error|ERROR|Warning|WARN): (?:"
    r"Target application|[Pp]rocess didn't terminate|No attachable process|Unable to|Could not|Failed to|Cannot |"
    r"Device not supported|[Uu]nsupported ))"
)
_KEPT = 6
CLEAN, FOUND, FAILED, TIMED_OUT = "clean", "found", "failed", "timed_out"


@dataclass(frozen=True)
class SanitizerReport:
    """What one tool said about one kernel: ``status``, how many findings, and the first few."""

    status: str
    count: int = 0
    findings: tuple[str, ...] = ()


def program() -> str:
    """The path of compute-sanitizer. Raises MissingExtra."""
    return installed_tool("compute-sanitizer", _PLACES, "the CUDA toolkit")


def check(tool: str, packages: list[Path], key: str, uuid: str, timeout_s: float) -> dict[str, SanitizerReport]:
    """Every package called once under ``tool`` on the GPU ``uuid``, in one process; reports by the files' stems.

    Raises MissingExtra, and DeviceUnavailable where the GPU cannot be opened any more: that says nothing of a kernel.
    """
    command = [
        program(),
        "--tool",
        tool,
        "--print-limit",
        "1000",
        "--report-api-errors",
        "no",
        "--target-processes",
        "application-only",
        *options(tool, help_text()),
        sys.executable,
        "-m",
        "verification.sanitized_call",
        uuid,
        key,
        *map(str, packages),
    ]
    process = started(command)
    try:
        output, _ = process.communicate(timeout=timeout_s)
        late = False
    except subprocess.TimeoutExpired:
        output, late = killed(process), True
    said = reports(output, [package.stem for package in packages], late=late)
    if any(report.status != CLEAN for report in said.values()):
        require_usable(uuid, key)
    return said


def require_usable(uuid: str, key: str) -> None:
    """Raises DeviceUnavailable where a new process, under no tool, cannot open the GPU ``uuid``."""
    with tempfile.TemporaryDirectory() as folder, Measurer(gpu_of(uuid), key, lock_dir=Path(folder)) as measurer:
        measurer.require_usable()


def each(
    tool: str, packages: Sequence[Path], key: str, uuid: str, deadline: float
) -> dict[Path, SanitizerReport | None]:
    """What ``tool`` says about each package: of all in one process where that is clean, else of each alone.

    None where ``deadline`` (of time.monotonic) has passed. Raises as ``check``."""
    if time.monotonic() > deadline:
        return dict.fromkeys(packages)
    reports_by_name = check(tool, list(packages), key, uuid, _START_S + _KERNEL_S * len(packages))
    reports: dict[Path, SanitizerReport | None] = {package: reports_by_name[package.stem] for package in packages}
    if len(packages) == 1 or all(report is not None and report.status == CLEAN for report in reports.values()):
        return reports
    alone = (each(tool, [package], key, uuid, deadline) for package in packages)
    return {package: report for one in alone for package, report in one.items()}


def options(tool: str, text: str) -> list[str]:
    """The optional checks that this version's help lists for ``tool``."""
    arguments: list[str] = []
    section = ""
    for line in text.splitlines():
        heading = re.match(r"^\s*(\w+)-specific options", line, re.IGNORECASE)
        if heading:
            section = heading[1].lower()
        for name, value in _OPTIONAL.items():
            if name in line and section in (tool, "") and name not in arguments:
                arguments += [name, value]
    return arguments


@lru_cache(maxsize=1)
def help_text() -> str:
    """What ``compute-sanitizer --help`` prints."""
    return subprocess.run([program(), "--help"], capture_output=True, text=True, check=False).stdout


def reports(output: str, names: list[str], *, late: bool = False) -> dict[str, SanitizerReport]:
    """What ``output`` of one run says about each kernel: words between a kernel's begin and end are about it.

    Words after the last end (racecheck sums up when the program ends) count for every kernel of the run, so that
    nothing is lost: runs of one kernel each tell whose they are. The tool's words about itself, and what it says before
    the first kernel begins, are a run that failed.
    """
    words: dict[str, list[str]] = {name: [] for name in names}
    begun = broken = False
    ended: dict[str, str] = {}
    now: str | None = None
    summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", output)
    for line in output.splitlines():
        if line.startswith(BEGIN):
            now, begun = line.removeprefix(BEGIN).strip(), True
        elif line.startswith(END):
            name, _, result = line.removeprefix(END).strip().partition(" ")
            ended[name], now = result, None
        if _OWN_WORDS.match(line):
            broken = True
        elif _FINDING.match(line) and not any(noise in line for noise in _NOISE):
            broken |= not begun
            for name in ([now] if now in words else names) if begun else ():
                words[str(name)].append(line.removeprefix("========= ").strip())
    if broken:
        summary = None
    return {name: _report(words[name], ended.get(name), summary, output, late=late) for name in names}


def _report(
    words: list[str], ended: str | None, summary: re.Match[str] | None, output: str, *, late: bool
) -> SanitizerReport:
    if words:
        return SanitizerReport(FOUND, len(words), tuple(word[:240] for word in dict.fromkeys(words))[:_KEPT])
    if ended is None and late:
        return SanitizerReport(TIMED_OUT)
    if ended is None or summary is None:
        return SanitizerReport(FAILED, 1, tuple(output.strip().splitlines()[-_KEPT:]))
    if ended != "right":
        return SanitizerReport(FOUND, 1, (ended,))
    return SanitizerReport(CLEAN)
