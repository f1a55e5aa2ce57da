"""Tables of what was verified on a device, for the markers ``DEVICE/evidence`` and ``DEVICE/mutants`` of render.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.tables import named, table
from tirgemm.bench.results import Document, Row, load
from tirgemm.families import FAMILIES
from tirgemm.hardware import named_device
from verification.cases import dtypes
from verification.emulated import ARCH
from verification.evidence import FORMAT

_NOT_CAUGHT = "not caught"
# The folder of what ran on the emulator, and what the kinds of evidence are called there and on a GPU.
_EMULATOR = "cpu"
_EMULATED = {"emulated": "mutants on the emulator"}
_ON_GPU = {"verified": "random cases", "mutants": "mutants", "sanitized": "compute-sanitizer"}


def evidence(folder: Path, suites: Path) -> str:
    """Every evidence file of a device: what was done to which family, and what came of it; then which files there are
    not."""
    lines = []
    files = _files(folder)
    for name, document in files.items():
        rows = document["rows"]
        checked = sum(row.get("checked", 0) for row in rows)
        worst = max((row.get("error", 0.0) for row in rows), default=0.0)
        commits = ", ".join(sorted({row["commit"][:10] for row in rows}))
        compared = [f"{checked:,}", f"{worst:.3f}"] if checked else ["", ""]
        lines.append([f"`{name}`", commits, _counts(Counter(row["status"] for row in rows)), str(len(rows)), *compared])
    head = ["file", "commit", "what became of them", "rows", "elements compared", "worst error / bound"]
    absent = _absent(folder, files.values())
    return "\n\n".join([table(head, lines, 3), *absent]) if lines else "Nothing was verified here yet."


def mutants(folder: Path, suites: Path) -> str:
    """What caught the mutants of every family, by what was removed or weakened, and of those not caught how many no
    tool looked at and what the emulator says, which ran without the device."""
    parts = []
    for document in _files(folder).values():
        if document["kind"] not in ("mutants", "emulated"):
            continue
        elsewhere = _emulated(folder.parent, document["family"]) if document["kind"] == "mutants" else {}
        head = [f"`{document['family']}`", "caught by", "mutants", _NOT_CAUGHT]
        if document["kind"] == "mutants":
            head += ["of those, seen by no tool yet", *(["of those, on the emulator"] if elsewhere else [])]
        by: dict[str, list[Row]] = {}
        for row in document["rows"]:
            if row["mutant"]:
                by.setdefault(row["what"], []).append(row)
        lines = []
        for what, rows in sorted(by.items()):
            missed = [row for row in rows if row["status"].startswith(_NOT_CAUGHT)]
            caught = Counter(row["status"] for row in rows if row not in missed)
            unseen = sum("tools" not in row for row in missed)
            there = Counter(elsewhere.get(row["key"], "not run").removeprefix("emulator: ") for row in missed)
            cells = [what, _counts(caught), str(len(rows)), str(len(missed) or ""), str(unseen or ""), _counts(there)]
            lines.append(cells[: len(head)])
        parts.append(table(head, lines, 2))
    return "\n\n".join(parts) or "No mutants of today's kernels have run."


def _absent(folder: Path, documents: Iterable[Document]) -> Iterator[str]:
    """A sentence with the kinds of evidence that there is no file of, each with its families; none where all are
    there."""
    kinds = _EMULATED if folder.name == _EMULATOR else _ON_GPU
    present = {(document["kind"], document["family"]) for document in documents}
    of_gpus = [name for name, family in FAMILIES.items() if dtypes(family, named_device(ARCH))]
    parts = []
    for kind, words in kinds.items():
        families = [name for name in of_gpus if (kind, name) not in present]
        parts += [f"{words} of {', '.join(f'`{name}`' for name in families)}"] if families else []
    if parts:
        yield f"There is no file of {'; '.join(parts)}."


def _files(folder: Path) -> dict[str, Document]:
    documents = {path.name: load(path) for path in sorted(folder.glob("*.json.gz"))}
    return {name: document for name, document in documents.items() if document.get("format") == FORMAT}


def _emulated(results: Path, family: str) -> dict[str, str]:
    """What every mutant of a family did on the emulator, by the mutant's key; empty where none were run."""
    path = results / _EMULATOR / f"{family}.emulated.json.gz"
    return {row["key"]: row["status"] for row in load(path)["rows"]} if path.exists() else {}


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{word} {count:,}" for word, count in counts.most_common())


TABLES = named(evidence, mutants)
