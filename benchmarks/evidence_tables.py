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
        if document.get("kind") not in ("verified", "sanitized", "mutants", "emulated"):
            continue
        rows = document["rows"]
        counts = Counter(row["status"] for row in rows)
        checked = sum(row.get("checked", 0) for row in rows)
        worst = max((row.get("error", 0.0) for row in rows), default=0.0)
        lines.append(
            _line([
                f"`{path.name}`", document["environment"]["commit"][:10], str(len(rows)),
                _counts(counts),
                f"{checked:,}" if checked else "", f"{worst:.3f}" if checked else "",
            ])
        )  # fmt: skip
    return "\n".join(lines)


def mutants(folder: Path, suites: Path) -> str:
    """What caught the mutants of every family, by what was removed or weakened.

    Of those not caught: how many no tool looked at yet, and what the emulator says, which ran without the device.
    """
    del suites
    parts = []
    for path in sorted([*folder.glob("*.mutants.json.gz"), *folder.glob("*.emulated.json.gz")]):
        document = gzip_json.read(path)
        elsewhere = emulated(folder.parent, document["family"]) if document["kind"] == "mutants" else {}
        head = [f"`{document['family']}`", "mutants", "caught by", _NOT_CAUGHT]
        if document["kind"] == "mutants":
            head += ["of those, seen by no tool yet", *(["of those, on the emulator"] if elsewhere else [])]
        lines = _head(head, 1)
        by: dict[str, list[dict[str, Any]]] = {}
        for row in document["rows"]:
            if row["mutant"]:
                by.setdefault(row["what"], []).append(row)
        for what, rows in sorted(by.items()):
            missed = [row for row in rows if row["status"].startswith(_NOT_CAUGHT)]
            caught = Counter(row["status"] for row in rows if row not in missed)
            unseen = sum("tools" not in row for row in missed)
            there = Counter(elsewhere.get(row["key"], "not run").removeprefix("emulator: ") for row in missed)
            cells = [what, str(len(rows)), _counts(caught), str(len(missed) or ""), str(unseen or ""), _counts(there)]
            lines.append(_line(cells[: len(head)]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "No mutants were run yet."


def emulated(results: Path, family: str) -> dict[str, str]:
    """What every mutant of a family did on the emulator, by the mutant's key; empty where none were run."""
    path = results / "cpu" / f"{family}.emulated.json.gz"
    return {row["key"]: row["status"] for row in gzip_json.read(path)["rows"]} if path.exists() else {}


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{word} {count:,}" for word, count in found.most_common())


def _head(cells: list[str], left: int) -> list[str]:
    return [_line(cells), _line(["---" if at < left else "---:" for at in range(len(cells))])]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
