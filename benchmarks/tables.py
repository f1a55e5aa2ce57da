"""Markdown tables, and the files and heads that tables of results have in common."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from tirgemm.bench.results import FORMAT, Document, Row, load


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    """A table whose first ``left`` columns are words, the others numbers."""
    rule = ["---" if at < left else "---:" for at in range(len(head))]
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


def place(document: Document) -> str:
    """What a file was measured on."""
    about = document["environment"]
    versions = [f"{key} {about[key]}" for key in ("driver", "cuda", "tvm", "torch") if about.get(key)]
    return ", ".join([about["device"], document["regime"], *versions, about["date"][:10]])


def not_yet(command: str) -> str:
    return f"Not measured yet: `{command}`."
