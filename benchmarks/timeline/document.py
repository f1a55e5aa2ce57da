"""Files of recorded timelines: what may be wrong with one."""

from __future__ import annotations

from collections.abc import Iterator

from tirgemm.analysis.timeline.recording import SUITE, Recording
from tirgemm.bench.results import Document
from tirgemm.errors import InvalidRequest

__all__ = ["SUITE", "faults", "origin"]


def faults(document: Document) -> Iterator[str]:
    """What is wrong: it is no recording that a kernel can have made, or none that a device made."""
    try:
        recording = Recording.from_json(document)
    except InvalidRequest as error:
        yield str(error)
        return
    if not recording.measured:
        yield f"its source is {recording.source}: results are of devices"


def origin(document: Document) -> dict[str, object]:
    """What rows of other files say of their origin: the commit, the time, the kernel's source hash."""
    environment = document["environment"]
    return {
        "commit": environment["commit"],
        "at": environment["date"],
        "source_sha256": document["source_sha256"],
    }
