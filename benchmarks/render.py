"""Write tables of results between the markers of README and docs, and README's picture.

``<!-- results:NAME -->`` to ``<!-- /results:NAME -->`` holds the tables of a suite, one for each device and regime that
has a results file. ``DEVICE/TABLE`` is one of suite_tables.py, comparison_tables.py, evidence_tables.py,
models/document.py, service_speed/document.py, many_devices/document.py, timeline/tables.py or proof_tables.py over a
device's folder. ``banks/TABLE`` is one of bank_tables.py, which is computed and not measured; ``ladder/``,
``tensorcore/`` and ``counters/`` are those of their modules. What was not measured yet says so.

usage: render.py [--check] [FILE...]     default: README.md and all of docs; --check only says what would change
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import (
    bank_tables,
    comparison_tables,
    counter_tables,
    evidence_tables,
    ladder_tables,
    proof_tables,
    suite_tables,
    tensorcore_tables,
)
from benchmarks.many_devices import document as many_devices
from benchmarks.models import document as models
from benchmarks.pictures.ladder_picture import ladder_picture
from benchmarks.pictures.speed_picture import speed_picture
from benchmarks.service_speed import document as service_speed
from benchmarks.tables import documents, not_yet
from benchmarks.timeline import tables as timeline_tables
from tirgemm.gemm import REGIMES

ROOT = Path(__file__).resolve().parents[1]


def _of_no_results(made: Callable[[], str]) -> Callable[[Path, Path], str]:
    return lambda _results, _suites: made()


OF_ALL: Mapping[str, Mapping[str, Callable[[Path, Path], str]]] = {
    "banks": {name: _of_no_results(made) for name, made in bank_tables.TABLES.items()},
    "ladder": ladder_tables.TABLES,
    "tensorcore": tensorcore_tables.TABLES,
    "counters": counter_tables.TABLES,
}
OF_DEVICE = (
    suite_tables.TABLES
    | comparison_tables.TABLES
    | evidence_tables.TABLES
    | models.TABLES
    | service_speed.TABLES
    | many_devices.TABLES
    | proof_tables.TABLES
    | timeline_tables.TABLES
)
RESULTS = ROOT / "benchmarks" / "results"
SUITES = ROOT / "benchmarks" / "suites"
PICTURES: Mapping[Path, Callable[[Path], str]] = {
    ROOT / "docs" / "speed.svg": speed_picture,
    ROOT / "docs" / "ladder.svg": ladder_picture,
}
BLOCK = re.compile(r"(<!-- results:(?P<name>[\w./-]+) -->\n).*?(<!-- /results:(?P=name) -->)", re.DOTALL)
MARKER = re.compile(r"<!-- /?results\b[^>]*-->")


class MarkerError(Exception):
    """A marker that names no table, or that is not closed."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    changed = []
    ours = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *PICTURES]
    for path in [path.resolve() for path in options.files] or ours:
        before = path.read_text() if path.exists() else ""
        try:
            after = f"{PICTURES[path](RESULTS)}\n" if path in PICTURES else rendered(before)
        except MarkerError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        if before != after:
            changed.append(path)
            if not options.check:
                path.write_text(after)
    for path in changed:
        print(f"{path}: {'out of date; run benchmarks/render.py' if options.check else 'written'}")
    return 1 if changed and options.check else 0


def rendered(text: str, results: Path = RESULTS, suites: Path = SUITES) -> str:
    """``text`` with the table of every marker as the results file has it. Raises MarkerError."""
    if 2 * sum(1 for _ in BLOCK.finditer(text)) != len(MARKER.findall(text)):
        raise MarkerError("a results marker is malformed, nested or not closed by <!-- /results:NAME -->")
    return BLOCK.sub(lambda block: f"{block[1]}\n{_table(block['name'], results, suites)}\n\n{block[3]}", text)


def _table(name: str, results: Path, suites: Path) -> str:
    kind, _, what = name.rpartition("/")
    if kind in OF_ALL:
        if what not in OF_ALL[kind]:
            raise MarkerError(f"marker {name} names no table, of which there are {', '.join(OF_ALL[kind])}")
        return OF_ALL[kind][what](results, suites)
    if kind and what in OF_DEVICE:
        return OF_DEVICE[what](results / kind, suites)
    if kind or not (suites / f"{name}.json").is_file():
        raise MarkerError(f"marker {name} names no table of a device, and no suite of {suites}")
    shown = [document for regime in REGIMES for document in documents(results, f"{name}.{regime}")]
    return "\n\n".join(suite_tables.of_suite(one, suites) for one in shown) or not_yet(f"tirgemm bench {name}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
