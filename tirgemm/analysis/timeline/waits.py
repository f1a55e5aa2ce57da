"""Waiting times of a recorded timeline: what warpgroups wait for, and whether data under way are what is awaited."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tirgemm.analysis.timeline.recording import Recording, Track
from tirgemm.families.common.ring_buffer import TILE

PRODUCER = "producer"
WAIT = "wait"


def shares_of_roles(recording: Recording) -> dict[str, dict[str, float]]:
    """For each role the shares of its tiles' time that it spends on each kind of span, producers first."""
    spent: dict[str, Counter[str]] = {}
    whole: Counter[str] = Counter()
    for track in recording.tracks:
        whole[track.role] += sum(tile.length for tile in track.tiles)
        spent.setdefault(track.role, Counter()).update(_lengths(track))
    kinds = [kind for kind in recording.kinds if kind != TILE]
    return {
        role: {kind: of[kind] / whole[role] for kind in kinds if kind in of and whole[role]}
        for role, of in sorted(spent.items(), key=lambda entry: entry[0] != PRODUCER)
    }


def share_under_way(recording: Recording) -> float | None:
    """Of the time that consumers wait for data, the share in which their block's producer waits for a free stage, or
    has issued its last load: what is awaited is then on its way from memory. None where no consumer waits, or there is
    no producer."""
    waited = under_way = 0
    for block in recording.blocks:
        tracks = recording.of_block(block)
        producer = next((track for track in tracks if track.role == PRODUCER), None)
        if producer is None:
            return None
        last = max((span.end for span in producer.spans), default=0)
        idle = [*_waits(producer), (producer.begun.cycles + last, math.inf)]
        for track in tracks:
            if track is not producer:
                waits = list(_waits(track))
                waited += sum(end - start for start, end in waits)
                under_way += _common(waits, idle)
    return under_way / waited if waited else None


def shortest_wait(recording: Recording) -> int | None:
    """The cycles of the shortest wait for a stage, which was there: what noticing it and writing a span take. None
    where nobody waits."""
    return min((end - start for track in recording.tracks for start, end in _waits(track)), default=None)


def _lengths(track: Track) -> Counter[str]:
    lengths: Counter[str] = Counter()
    for span in track.steps:
        lengths[span.kind] += span.length
    return lengths


def _waits(track: Track) -> Iterator[tuple[int, int]]:
    """From when to when a warpgroup waits for stages, by the clock of its SM."""
    begun = track.begun.cycles
    return ((begun + span.start, begun + span.end) for span in track.steps if span.kind == WAIT)


def _common(some: Iterable[tuple[int, int]], others: Sequence[tuple[int, float]]) -> int:
    """How long both lists of intervals, each in order, last together."""
    common, first = 0, 0
    for start, end in some:
        while first < len(others) and others[first][1] <= start:
            first += 1
        at = first
        while at < len(others) and others[at][0] < end:
            common += int(min(end, others[at][1])) - max(start, others[at][0])
            at += 1
    return common
