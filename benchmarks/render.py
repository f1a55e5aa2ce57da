"""Write tables of results between the markers of README and docs.

``<!-- results:NAME -->`` to ``<!-- /results:NAME -->`` holds the tables of a suite, one for each device and regime that has
a results file, or with the name ``DEVICE/SUITE.REGIME`` the one of ``benchmarks/results/DEVICE/SUITE.REGIME.json``.
``DEVICE/summary``, ``worst``, ``shapes``, ``bandwidth``, ``behind`` and ``knobs`` are tables over all suites of a device's folder.
``banks/NAME`` is a table of bank_tables.py, which is computed and not measured, ``ladder/NAME`` one of ladder_tables.py,
``tensorcore/NAME`` one of tensorcore_tables.py, ``counters/NAME`` one of counter_tables.py.

usage: render.py [--check] [FILE.md...]     default: README.md and docs; --check only says what would change
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.bank_tables import TABLES as BANK_TABLES  # noqa: E402 - found by the line above
from benchmarks.counter_tables import TABLES as COUNTER_TABLES  # noqa: E402
from benchmarks.evidence_tables import evidence, mutants  # noqa: E402
from benchmarks.ladder_tables import TABLES as LADDER_TABLES  # noqa: E402
from benchmarks.suite_tables import TABLES as SUITE_TABLES  # noqa: E402
from benchmarks.tensorcore_tables import TABLES as TENSORCORE_TABLES  # noqa: E402
from service.results import load  # noqa: E402
from tirgemm.gemm import REGIMES  # noqa: E402

_OF_ALL = {"tensorcore": TENSORCORE_TABLES, "counters": COUNTER_TABLES}
TABLES = SUITE_TABLES | {"evidence": evidence, "mutants": mutants}
RESULTS = ROOT / "benchmarks" / "results"
SUITES = ROOT / "benchmarks" / "suites"
BLOCK = re.compile(r"(<!-- results:(?P<name>[\w./-]+) -->\n).*?(<!-- /results:(?P=name) -->)", re.DOTALL)
MARKER = re.compile(r"<!-- /?results\b[^>]*-->")


class MarkerError(Exception):
    """A marker that names no results file, or that is not closed."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    changed = []
    for path in options.files or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        before = path.read_text()
        try:
            after = rendered(before)
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

    def replace(block: re.Match[str]) -> str:
        device, _, table = block["name"].rpartition("/")
        if device == "banks":
            return f"{block[1]}\n{_of_banks(table)}\n\n{block[3]}"
        if device == "ladder":
            return f"{block[1]}\n{_of_ladder(table, results, suites)}\n\n{block[3]}"
        if device in _OF_ALL:
            return f"{block[1]}\n{_of_all(device, table, results)}\n\n{block[3]}"
        if device and table in TABLES:
            return f"{block[1]}\n{_over_suites(table, results / device, suites)}\n\n{block[3]}"
        tables = [_table_of(path, suites) for path in _files(block["name"], results, suites)]
        return f"{block[1]}{''.join(tables)}{block[3]}"

    return BLOCK.sub(replace, text)


def _files(name: str, results: Path, suites: Path) -> list[Path]:
    """The results files that a marker names."""
    if "/" in name:
        paths = [path for path in (results / f"{name}.json", results / f"{name}.json.gz") if path.is_file()]
        if not paths:
            raise MarkerError(f"marker {name} names no file of {results}")
        return paths[:1]
    if not (suites / f"{name}.json").is_file():
        raise MarkerError(f"marker {name} names no suite of {suites}")
    found = (results.glob(f"*/{name}.{regime}.json{end}") for regime in REGIMES for end in ("", ".gz"))
    return sorted(path for paths in found for path in paths)


def _of_banks(table: str) -> str:
    if table not in BANK_TABLES:
        raise MarkerError(f"marker banks/{table} names no table of bank_tables.py, which has {', '.join(BANK_TABLES)}")
    return BANK_TABLES[table]()


def _of_ladder(table: str, results: Path, suites: Path) -> str:
    if table not in LADDER_TABLES:
        raise MarkerError(
            f"marker ladder/{table} names no table of ladder_tables.py, which has {', '.join(LADDER_TABLES)}"
        )
    return LADDER_TABLES[table](results, suites)


def _of_all(kind: str, table: str, results: Path) -> str:
    """A table over the results of all devices."""
    if table not in _OF_ALL[kind]:
        raise MarkerError(f"marker {kind}/{table} names no table, of which there are {', '.join(_OF_ALL[kind])}")
    return _OF_ALL[kind][table](results)


def _over_suites(table: str, folder: Path, suites: Path) -> str:
    if not folder.is_dir():
        raise MarkerError(f"marker {folder.name}/{table} names no folder of {folder.parent}")
    return TABLES[table](folder, suites)


def _table_of(path: Path, suites: Path) -> str:
    document = load(path)
    suite = suites / f"{document['suite']}.json"
    groups = json.loads(suite.read_text()).get("groups", {}) if suite.is_file() else {}
    return f"\n{table(document, groups)}\n"


def table(document: dict[str, Any], groups: dict[str, list[str]] | None = None) -> str:
    """The Markdown of one results file: what it was taken on, the rows, the groups of the suite, and the summary."""
    environment, rows = document["environment"], document["rows"]
    if document["suite"] == "calls":
        return _calls(document)
    names = sorted({name for row in rows for name in row["baselines"]})
    versions = [f"{key} {environment[key]}" for key in ("driver", "cuda", "tvm", "torch") if environment.get(key)]
    place = ", ".join(
        [environment["device"], *versions, str(environment.get("commit") or "")[:12], environment["date"][:10]]
    )
    head = ["gemm", "variant", "config", "us", "TFLOP/s", "error / bound", *(f"× {name}" for name in names)]
    lines = [f"{document['suite']}, {document['regime']}; {place}", "", *_head(head, 3)]
    lines += [_line(_cells(row, names)) for row in rows]
    for variant in sorted({row["variant"] for row in rows}):
        total = sum(row["variant"] == variant for row in rows)
        cells = [_over(document["summary"].get(variant, {}).get(name), total) for name in names]
        lines.append(_line(["**all**, geometric mean", variant, "", "", "", "", *cells]))
        for group, gemms in (groups or {}).items():
            chosen = [row for row in rows if row["variant"] == variant and row["gemm"] in gemms]
            cells = [_over(_mean(chosen, name), len(chosen)) for name in names]
            lines.append(_line([f"*{group}*", variant, "", "", "", "", *cells]))
    return "\n".join(lines)


def _calls(document: dict[str, Any]) -> str:
    """The Markdown of what call_overhead.py wrote."""
    environment = document["environment"]
    head = f"one call of `{document['gemm']}` from Python on {environment['device']}, torch {environment['torch']}"
    rows = [
        _line([row["way"], f"`{row['call']}`", f"{row['median_us']:.2f}", f"{row['min_us']:.2f}"])
        for row in document["rows"]
    ]
    return "\n".join([head, "", *_head(["way", "call", "us, median", "us, least"], 2), *rows])


def _cells(row: dict[str, Any], names: list[str]) -> list[str]:
    if row["status"] != "measured":
        return [
            f"`{row['gemm']}`",
            row["variant"],
            f"{row['status']}: {row['message']}".replace("|", "\\|"),
            *[""] * (3 + len(names)),
        ]
    knobs = ", ".join(f"{name} {value}" for name, value in row["config"]["knobs"].items())
    ratios = [f"{row['baselines'][name]['ratio']:.3f}" if name in row["baselines"] else "" for name in names]
    figures = [f"{row['median_us']:.2f}", f"{row['tflops']:.4g}", f"{row['error']:.2g}"]
    return [f"`{row['gemm']}`", row["variant"], f"{row['family']}: {knobs}", *figures, *ratios]


def _mean(rows: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    ratios = [row["baselines"][name]["ratio"] for row in rows if name in row["baselines"]]
    if not ratios:
        return None
    product = 1.0
    for ratio in ratios:
        product *= ratio ** (1 / len(ratios))
    return {"geomean": product, "min": min(ratios), "count": len(ratios)}


def _over(entry: dict[str, Any] | None, total: int) -> str:
    """A mean with its least, and over how many shapes where some are missing."""
    if entry is None:
        return ""
    partial = "" if entry["count"] == total else f", {entry['count']} of {total} shapes"
    return f"**{entry['geomean']:.3f}** (least {entry['min']:.3f}{partial})"


def _head(cells: list[str], left: int) -> list[str]:
    return [_line(cells), _line(["---" if at < left else "---:" for at in range(len(cells))])]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
