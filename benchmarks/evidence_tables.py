"""Tables of what was verified on a device, for the markers ``DEVICE/evidence`` and ``DEVICE/mutants`` of render.py."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tirgemm.tuning import gzip_json

# How a row that nothing noticed says which tools looked at it.
_NOT_CAUGHT = "not caught"


def evidence(folder: Path, suites: Path) -> str:
    """Every evidence file of a device: what was done to which family, and what came of it."""
    del suites
    lines = _head(["file", "commit", "rows", "what became of them", "elements compared", "worst error / bound"], 2)
    for path in sorted(folder.glob("*.json.gz")):
        document = gzip_json.read(path)
        if document.get("kind") not in ("verified", "sanitized", "mutants"):
            continue
        rows = document["rows"]
        counts = Counter(row["status"] for row in rows)
        checked = sum(row.get("checked", 0) for row in rows)
        worst = max((row.get("error", 0.0) for row in rows), default=0.0)
        lines.append(
            _line([
                f"`{path.name}`", document["environment"]["commit"][:10], str(len(rows)),
                ", ".join(f"{status} {count:,}" for status, count in counts.most_common()),
                f"{checked:,}" if checked else "", f"{worst:.3f}" if checked else "",
            ])
        )  # fmt: skip
    return "\n".join(lines)


def mutants(folder: Path, suites: Path) -> str:
    """What caught the mutants of every family, by what was removed or weakened; and how many no tool looked at yet."""
    del suites
    parts = []
    for path in sorted(folder.glob("*.mutants.json.gz")):
        document = gzip_json.read(path)
        lines = _head(
            [f"`{document['family']}`", "mutants", "caught by", _NOT_CAUGHT, "of those, seen by no tool yet"], 1
        )
        by: dict[str, list[dict[str, Any]]] = {}
        for row in document["rows"]:
            if row["mutant"]:
                by.setdefault(row["what"], []).append(row)
        for what, rows in sorted(by.items()):
            missed = [row for row in rows if row["status"].startswith(_NOT_CAUGHT)]
            caught = Counter(row["status"] for row in rows if row not in missed)
            unseen = sum("tools" not in row for row in missed)
            names = ", ".join(f"{status} {count}" for status, count in caught.most_common())
            lines.append(_line([what, str(len(rows)), names, str(len(missed) or ""), str(unseen or "")]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "No mutants were run yet."


def _head(cells: list[str], left: int) -> list[str]:
    return [_line(cells), _line(["---" if at < left else "---:" for at in range(len(cells))])]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
