"""Evidence files, which the verification programs write: rows by key under a head, compressed, resumable, checkable.

A row names the commit and the time that it was made at and the source hash of its kernel (docs/results.md); ``sources``
lowers the kernel again and says whether its source is still that one.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tirgemm.bench import results
from tirgemm.bench.results import environment, measured_at
from tirgemm.device import Device

FORMAT = "tirgemm-evidence/2"
ROOT = Path(__file__).resolve().parents[1]
# What a row depends on beside its family's sources: a file of other sources is not gone on with.
_SOURCES = (
    "tirgemm/families/base.py",
    "tirgemm/families/common",
    "tirgemm/tuning/build",
    "tirgemm/tuning/verify",
    "tirgemm/workload.py",
    "verification",
)
# Where a family's folder is, and how its imports name what it shares with others.
_FAMILIES = "tirgemm/families"
_IMPORTED = re.compile(r"\btirgemm\.families\.(\w+)")
# And a row of an emulator.
_EMULATOR = "verification/emulator"
_SUFFIXES = (".py", ".cu", ".h", ".cc")
HEAD = ("format", "kind", "family", "environment", "sources_sha256", "summary", "rows")

Row = dict[str, Any]


class EvidenceFile:
    """``kind`` is what was done (``verified``, ``mutants``, ``sanitized``, ``emulated``); rows are kept by their
    ``key``."""

    def __init__(self, path: Path, kind: str, family: str, device: Device, *, commit: str | None = None) -> None:
        self.path = path
        self._head: dict[str, Any] = {
            "format": FORMAT,
            "kind": kind,
            "family": family,
            "environment": environment(device, ROOT, commit),
            "sources_sha256": sources_sha256(family, kind),
        }
        self.rows: dict[str, Row] = {}
        self.summary: dict[str, Any] = {}
        if path.exists():
            self._resume()

    def add(self, key: str, row: Row) -> None:
        """Keep a row, which has its kernel's source hash where it has a kernel; ``save`` writes it."""
        self.rows[key] = {"key": key} | measured_at(self._head["environment"], None) | row

    @contextmanager
    def saved(self) -> Iterator[None]:
        """Save at the end of the block, whatever ends it."""
        try:
            yield
        finally:
            self.save()

    def save(self) -> None:
        """Write everything, so that the file is whole at any time."""
        counts = Counter(row["status"] for row in self.rows.values())
        document = self._head | {
            "summary": {"count": len(self.rows), "status": dict(sorted(counts.items()))} | self.summary,
            "rows": list(self.rows.values()),
        }
        results.write(self.path, document)

    def _resume(self) -> None:
        """Go on with the rows of a file of the same kind, device and sources; of any other file none are kept."""
        old = results.load(self.path)
        same = ("format", "kind", "family", "sources_sha256")
        if all(old[name] == self._head[name] for name in same) and _device(old) == _device(self._head):
            self.rows = {row["key"]: row for row in old["rows"]}


def faults(document: dict[str, Any]) -> list[str]:
    """Every sentence that is wrong about a document: absent fields, a summary that its rows do not give, doubles."""
    absent = [name for name in HEAD if name not in document]
    if absent:
        return [f"it lacks {', '.join(absent)}"]
    faults = []
    if document["format"] != FORMAT:
        faults.append(f"its format is {document['format']!r}, not {FORMAT!r}")
    rows, summary = document["rows"], document["summary"]
    counts = dict(sorted(Counter(row["status"] for row in rows).items()))
    if (summary["count"], summary["status"]) != (len(rows), counts):
        faults.append(f"its summary counts {summary['count']}, {summary['status']}; its rows are {len(rows)}, {counts}")
    keys = Counter(row["key"] for row in rows)
    faults += [f"{count} rows have the key {key}" for key, count in keys.items() if count > 1]
    if document["kind"] == "emulated":
        ran = [row for row in rows if not row["status"].startswith("not emulated: ")]
        faults += [f"{row['key']} does not say on what problem" for row in ran if "emulated" not in row]
        wrong = [row for row in ran if not row["mutant"] and row["status"] != "passed"]
        faults += [f"{row['key']} is not altered and {row['status']}" for row in wrong]
    return faults


def sources_sha256(family: str, kind: str = "") -> str:
    """Over every source text that a row of ``kind`` about ``family`` depends on."""
    digest = hashlib.sha256()
    emulator = (_EMULATOR,) if kind == "emulated" else ()
    for name in sorted({*_SOURCES, *family_sources(family), *emulator}):
        place = ROOT / name
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for file in files:
            if file.suffix in _SUFFIXES:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def family_sources(family: str) -> set[str]:
    """A family's folder, and the folders and modules beside it that its imports name."""
    texts = [file.read_text() for file in (ROOT / _FAMILIES / family).rglob("*.py")]
    names = {name for text in texts for name in _IMPORTED.findall(text)} | {family}
    return {f"{_FAMILIES}/{place.name}" for place in (ROOT / _FAMILIES).iterdir() if place.stem in names}


def _device(head: dict[str, Any]) -> str:
    key: str = head["environment"]["device_key"]
    return key
