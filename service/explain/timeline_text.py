"""Text of a recorded timeline: what was recorded on what, and the share of its time that each kind of warpgroup spends
on what."""

from __future__ import annotations

from collections.abc import Iterator

from tirgemm.analysis.timeline.recording import Recording
from tirgemm.analysis.timeline.waits import share_under_way, shares_of_roles, shortest_wait
from tirgemm.families.common.ring_buffer import TILE
from tirgemm.service.explain.tables import Section, count, duration, row, share, table


def timeline_section(recording: Recording) -> Section:
    """The facts of a recording, and a row for each role with its shares; blank what is no work of that role."""
    kinds = [kind for kind in recording.kinds if kind != TILE]
    rows = (
        row(role, *(share(spent[kind]) if kind in spent else "" for kind in kinds))
        for role, spent in shares_of_roles(recording).items()
    )
    heads = ("share of tiles' time", *(f">{kind}" for kind in kinds))
    return table("Timeline", heads, rows, tuple(_lines(recording)), tuple(_notes(recording)), topic="timeline")


def _lines(recording: Recording) -> Iterator[str]:
    about, resources = recording.environment, recording.resources
    yield f"kernel: {recording.kernel} of {recording.gemm}, m = {count(recording.m)}, with time stamps"
    yield f"config: {', '.join(f'{name}={value}' for name, value in recording.config.items())}"
    if recording.measured:
        yield f"recorded on: {about.get('device')}, driver {about.get('driver')}, {about.get('date')}"
        yield f"took: {duration(recording.length)}, on warm caches"
        yield (
            f"clocks: {recording.cycles_per_us:,.0f} cycles a us; the SMs' are laid side by side to "
            f"{count(recording.timer_step_ns)} ns"
        )
    else:
        yield f"recorded on: {about.get('device')}; nothing was measured, and lengths are steps of the emulator"
    if about.get("commit"):
        yield f"commit: {about['commit']}"
    yield f"blocks: {count(len(recording.blocks))} of {count(recording.launched)} are in the recording"
    if resources.get("spill_bytes"):
        yield f"registers: with time stamps {count(resources['spill_bytes'])} bytes a thread are spilled"


def wait_summary(recording: Recording) -> str:
    """What consumers that wait for data wait for, in sentences; empty where an emulator recorded it or none waits."""
    under_way, shortest = share_under_way(recording), shortest_wait(recording)
    if not recording.measured or under_way is None or shortest is None:
        return ""
    return (
        f"In {share(under_way)} of the time that consumers wait for data, the producer waits for a free stage or has "
        f"issued its last load: the data are on their way from memory. In the other {share(1 - under_way)} it issues "
        f"loads. A wait takes at least {count(shortest)} cycles, where its stage is ready."
    )


def _notes(recording: Recording) -> Iterator[str]:
    lost = sum(track.lost for track in recording.tracks)
    if lost:
        yield (
            f"The first {count(lost)} spans were overwritten: a warpgroup keeps its last {count(recording.slots)}, and "
            f"the shares are of the tiles that are there whole or in part."
        )
    words = wait_summary(recording)
    if words:
        yield words
