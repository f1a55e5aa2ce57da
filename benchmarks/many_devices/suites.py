"""Measure suites on all devices of a host side by side, a share of the shapes each, into one results file a suite.

Every device has a ``tirgemm bench`` of its own, on its share of this process's CPUs, with suites of every so-manyth
shape. A shape is raced on one device, its baselines beside it: a ratio never mixes devices. What is measured is joined
with what the files held before, after an interrupt or SIGTERM too; the same command goes on. With ``--sets`` it is the
race of kernel sets (``benchmarks/kernel_sets/race.py``), and problems that differ in m alone stay on one device.

usage: python -m benchmarks.many_devices.suites judge-102 judge-103 --out benchmarks/results/nvidia-h200 --limit 400 \
           -- --variants zero_shot,quick --compress        options after -- go to `tirgemm bench`
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.many_devices.measure import ROOT, same_devices
from tirgemm.bench.effort_answers import VARIANTS
from tirgemm.bench.results import ResultsFile, load
from tirgemm.bench.suite_file import Suite
from tirgemm.bench.suites import suite_named
from tirgemm.errors import ServiceError
from tirgemm.gemm import Gemm
from verification import command

# How long a program may take to end once it was interrupted.
_END_S = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    cut = given.index("--") if "--" in given else len(given)
    options = _options(given[:cut])
    suites = [suite_named(name) for name in options.suites]
    served = same_devices(options.kind)[: options.devices]
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tirgemm-suites-") as name:
        folders = [Path(name) / str(number) for number in range(len(served))]
        for number, folder in enumerate(folders):
            for suite in suites:
                write_share(suite, shares_of(suite, len(folders), options.sets)[number], folder, options.out)
        programs: list[subprocess.Popen[bytes]] = []
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            for folder, device, cpus in zip(folders, served, shares_of_cpus(len(served)), strict=True):
                program = _set_race(folder, suites) if options.sets else _bench(folder, suites)
                same = ["--device", device.name, "--data", str(folder / "data"), "--resume", *_common(options)]
                pinned = ["taskset", "--cpu-list", ",".join(map(str, cpus)), *program, *same, *given[cut + 1 :]]
                programs.append(subprocess.Popen(pinned, cwd=ROOT))
            codes = [program.wait() for program in programs]
        finally:
            for running in programs:
                _end(running)
            for suite in suites:
                join(suite, [folder / "results" for folder in folders], options.out)
    if any(codes):
        raise ServiceError(f"tirgemm bench ended with {codes} on {', '.join(device.name for device in served)}")
    return 0


def _end(program: subprocess.Popen[bytes]) -> None:
    """End a program that still runs; its rows are written as they come."""
    if program.poll() is None:
        program.send_signal(signal.SIGINT)
        try:
            program.wait(_END_S)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


def shares_of(suite: Suite, count: int, sets: bool = False) -> list[list[Gemm]]:
    """The shapes of a suite in ``count`` shares, one by one, or, for ``sets``, all that differ in m alone together."""
    groups: dict[Gemm, list[Gemm]] = {}
    for gemm in suite.gemms:
        groups.setdefault(gemm.with_(m=1) if sets else gemm, []).append(gemm)
    whole = list(groups.values())
    return [[gemm for group in whole[number::count] for gemm in group] for number in range(count)]


def write_share(suite: Suite, gemms: Sequence[Gemm], folder: Path, before: Path) -> None:
    """A share of a suite as a JSON file in ``folder``, beside its rows of the files in ``before``."""
    results = folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"name": suite.name, "source": suite.source, "gemms": [str(gemm) for gemm in gemms]})
    (folder / f"{suite.name}.json").write_text(text)
    for path in _files(suite, before):
        document = load(path)
        mine = {str(gemm) for gemm in gemms}
        document["rows"] = [row for row in document["rows"] if row["gemm"] in mine]
        held = _results_file(results / path.name, document)
        held.document |= {"rows": document["rows"], "streams": document.get("streams", [])}
        held.save()


def join(suite: Suite, folders: Iterable[Path], out: Path) -> list[Path]:
    """The files of all shares of a suite as one each in ``out``, rows in the suite's order, all their streams."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        for path in _files(suite, folder):
            parts.setdefault(path.name, []).append(load(path))
    written = []
    for name, documents in parts.items():
        newest = max(documents, key=lambda document: str(document["environment"]["date"]))
        joined = _results_file(out / name, newest)
        joined.document["rows"] = [row for document in documents for row in document["rows"]]
        streams: list[dict[str, Any]] = []
        for stream in (stream for document in documents for stream in document.get("streams", [])):
            streams += [] if stream in streams else [stream]
        joined.document["streams"] = streams
        joined.arrange(suite.gemms, VARIANTS)
        written.append(joined.path)
    return written


def shares_of_cpus(count: int) -> list[list[int]]:
    """This process's CPUs in ``count`` equal parts of neighbours; all of them for each where there are fewer."""
    cpus = sorted(os.sched_getaffinity(0))
    each = len(cpus) // count
    return [cpus[number * each : (number + 1) * each] if each else cpus for number in range(count)]


def _files(suite: Suite, folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob(f"{suite.name}.*.json*")) if path.name.endswith((".json", ".json.gz"))]


def _results_file(path: Path, like: dict[str, Any]) -> ResultsFile:
    return ResultsFile(path, like["suite"], like["regime"], like["environment"], resume=False)


def _bench(folder: Path, suites: Sequence[Suite]) -> list[str]:
    shares = [str(folder / f"{suite.name}.json") for suite in suites]
    return [sys.executable, "-m", "tirgemm.service.cli", "bench", *shares, "--out", str(folder / "results")]


def _set_race(folder: Path, suites: Sequence[Suite]) -> list[str]:
    (suite,) = suites
    program = [sys.executable, "benchmarks/kernel_sets/race.py", "--suite", str(folder / f"{suite.name}.json")]
    return [*program, "--out", str(folder / "results" / f"{suite.name}.sustained.json.gz")]


def _common(options: Any) -> list[str]:
    limit = [] if options.limit is None else ["--limit", str(options.limit)]
    return [*limit, *(["--commit", options.commit] if options.commit else [])]


def _options(arguments: Sequence[str]) -> Any:
    parser = command.parser(__doc__, "--limit", "--commit")
    parser.add_argument("suites", nargs="+", help="names of suites")
    parser.add_argument("--devices", type=int, help="at most so many; default: all of the host")
    parser.add_argument("--kind", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results files")
    parser.add_argument("--sets", action="store_true", help="race kernel sets, of one suite")
    options = parser.parse_args(arguments)
    if options.sets and len(options.suites) > 1:
        parser.error(f"--sets takes one suite, not {len(options.suites)}")
    return options


if __name__ == "__main__":
    sys.exit(command.run(main))
