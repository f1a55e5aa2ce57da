"""Markdown tables, and what results files and their tables have in common."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from pathlib import Path

from tirgemm.bench.results import FORMAT, Document, Row, load
from tirgemm.tuning.records import Candidate
from tirgemm.tuning_db.transfer import read_candidates

# What the marker of a table is replaced by, of a folder of results and that of the suites.
TableText = Callable[[Path, Path], str]


def named(*tables: TableText) -> dict[str, TableText]:
    """Tables by what markers of render.py call them: the names of the functions."""
    return {table.__name__: table for table in tables}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int | None = None) -> str:
    """A table whose first ``left`` columns, or all, are words, the others numbers."""
    rule = ["---" if left is None or at < left else "---:" for at in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def refusal(row: Row) -> str:
    """What a cell says of a row without figures."""
    return f"{row['status']}: {row['message']}".replace("|", "\\|")


def number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def geomean(ratios: Sequence[float | None]) -> str:
    """Geometric mean and least, and over how many where some are missing."""
    present = [ratio for ratio in ratios if ratio is not None]
    if not present:
        return ""
    partial = "" if len(present) == len(ratios) else f"; {len(present)} of {len(ratios)}"
    return f"{statistics.geometric_mean(present):.3f} ({min(present):.3f}{partial})"


def documents(results: Path, name: str, device: str = "*") -> list[Document]:
    """The results files of a device's folder, or of all, that are called so, compressed or not, of today's format."""
    paths = [*results.glob(f"{device}/{name}.json"), *results.glob(f"{device}/{name}.json.gz")]
    loaded = [load(path) for path in sorted(paths)]
    return [document for document in loaded if document["format"] == FORMAT]


def candidates_of(path: Path) -> Sequence[Candidate]:
    """The candidates of a records file, which is read once as long as it stays the same. Raises as
    ``read_candidates``."""
    return _candidates_of(path.resolve(), _version(path) if path.exists() else None)


@lru_cache(maxsize=8)
def _candidates_of(path: Path, _: tuple[int, ...] | None) -> list[Candidate]:
    return read_candidates(path)


def _version(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def place(document: Document) -> str:
    """What a file was measured on."""
    about = document["environment"]
    versions = [f"{key} {about[key]}" for key in ("driver", "cuda", "tvm", "torch") if about.get(key)]
    return ", ".join([about["device"], document["regime"], *versions, about["date"][:10]])


def repeated(names: Iterable[str]) -> Iterator[str]:
    """A sentence for each time that a name comes again."""
    return (f"{name} is there twice" for name, count in Counter(names).items() for _ in range(1, count))


def differing(row: Row, medians: Mapping[str, float]) -> Iterator[str]:
    """A sentence for each figure of a row that is not what its samples give."""
    for name, median in medians.items():
        yield from differs(name, row[name], median)


def differs(what: str, given: object, computed: float) -> Iterator[str]:
    """A sentence where a figure is not what was computed from samples."""
    if not isinstance(given, (int, float)) or not math.isclose(given, computed, rel_tol=1e-9):
        yield f"{what} is {given}; the samples give {computed}"


def not_yet(command: str) -> str:
    return f"Not measured yet: `{command}`."


def of_file(name: str, command: str) -> Callable[[Callable[[Document], str]], TableText]:
    """Make the table of one document that of the file ``name`` in a device's folder, which ``command`` writes."""

    def made(of_document: Callable[[Document], str]) -> TableText:
        def table(folder: Path, suites: Path) -> str:
            del suites
            if not (folder / name).is_file():
                return not_yet(f"{command} --out benchmarks/results/{folder.name}/{name}")
            return of_document(load(folder / name))

        return wraps(of_document)(table)

    return made
