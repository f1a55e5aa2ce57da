"""Tables of a device's recorded timelines, for the marker ``DEVICE/timelines`` of render.py."""

from __future__ import annotations

from pathlib import Path

from benchmarks.tables import named, table
from benchmarks.timeline.record import ENDING
from tirgemm.analysis.timeline.recording import Recording
from tirgemm.analysis.timeline.waits import shares_of_roles
from tirgemm.families.common.ring_buffer import TILE
from tirgemm.service.explain.tables import share
from tirgemm.service.explain.timeline_text import wait_summary


def timelines(folder: Path, suites: Path) -> str:
    """What each warpgroup of each recorded kernel spends its time on, then in words what consumers wait for."""
    del suites
    recordings = {path.name.removesuffix(ENDING): Recording.read(path) for path in sorted(folder.glob(f"*{ENDING}"))}
    if not recordings:
        return "No timeline was recorded yet."
    spent = {name: shares_of_roles(recording) for name, recording in recordings.items()}
    kinds = dict.fromkeys(kind for recording in recordings.values() for kind in recording.kinds if kind != TILE)
    lines = [
        [
            f"`{name}`" if at == 0 else "",
            f"{recordings[name].length:.1f}" if at == 0 else "",
            role,
            *(share(of[kind]) if kind in of else "" for kind in kinds),
        ]
        for name, roles in spent.items()
        for at, (role, of) in enumerate(roles.items())
    ]
    words = [f"- `{name}`, `{recording.gemm}`: {wait_summary(recording)}" for name, recording in recordings.items()]
    head = ["recording", "call, us", "warpgroup", *(f"`{kind}`" for kind in kinds)]
    return f"{table(head, lines, 3)}\n\n" + "\n".join(words)


TABLES = named(timelines)
