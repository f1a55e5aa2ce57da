"""Converts the clock values that a kernel wrote to trace buffers into spans: what a warpgroup did, from when to when.

Each SM has a clock of its own: the offsets between the clocks, and their rate, are computed from the values of all SMs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tirgemm.analysis.timeline.recording import RecordedSpan, TimeStamp, Track
from tirgemm.errors import InvalidRequest
from tirgemm.families.common.ring_buffer import BEGUN, ENDED, HEADER_WORDS, RECORDED, SM, SPAN_WORDS, RingBuffer

UNWRITTEN = 0xFFFFFFFF
"""Value of every word before the kernel starts: a track that still has it as its count was never ended."""
_CLOCK_PERIOD = 2**32


def tracks_of(words: Any, ring: RingBuffer, blocks: int) -> tuple[Track, ...]:
    """The tracks of the first ``blocks`` blocks in ``words``, uint32 of the ring buffer's tensor.

    Raises InvalidRequest where a warpgroup has not ended its track, or took so long that the low words of its clock say
    nothing.
    """
    by_track = np.asarray(words, np.uint32)[: blocks * len(ring.roles) * ring.track_words]
    by_track = by_track.reshape(blocks * len(ring.roles), ring.track_words)
    return tuple(_track(row, ring, *divmod(number, len(ring.roles))) for number, row in enumerate(by_track))


def _track(row: Any, ring: RingBuffer, block: int, warpgroup: int) -> Track:
    role, recorded = ring.roles[warpgroup], int(row[RECORDED])
    if recorded == UNWRITTEN:
        raise InvalidRequest(f"{role} of block {block} did not end its timeline: the kernel did not run to its end")
    begun, ended = _stamp(row, BEGUN), _stamp(row, ENDED)
    if not 0 <= ended.cycles - begun.cycles < _CLOCK_PERIOD:
        raise InvalidRequest(
            f"{role} of block {block} ran {ended.cycles - begun.cycles} cycles; time stamps tell apart "
            f"{_CLOCK_PERIOD}: record a smaller problem"
        )
    kept = min(recorded, ring.slots)
    # The oldest that is kept lies where the next one would go.
    order = (np.arange(recorded - kept, recorded) % ring.slots).astype(np.intp)
    spans = row[HEADER_WORDS:].reshape(ring.slots, SPAN_WORDS)[order].astype(np.int64)
    times = (spans[:, :2] - begun.cycles) % _CLOCK_PERIOD
    return Track(
        block,
        warpgroup,
        role,
        int(row[SM]),
        recorded,
        begun,
        ended,
        tuple(
            RecordedSpan(_kind(ring, int(kind)), int(number), int(start), int(end))
            for (start, end), (kind, number) in zip(times.tolist(), spans[:, 2:].tolist(), strict=True)
        ),
    )


def _kind(ring: RingBuffer, number: int) -> str:
    if number >= len(ring.kinds):
        raise InvalidRequest(f"a span is of kind {number}; the kernel has {len(ring.kinds)} kinds")
    return list(ring.kinds)[number]


def _stamp(row: Any, at: int) -> TimeStamp:
    cycles, ns = (int(row[at + i]) | int(row[at + i + 1]) << 32 for i in (0, 2))
    return TimeStamp(cycles, ns)


def cycles_per_us(earlier: Sequence[Track], later: Sequence[Track]) -> float:
    """The SMs' clock by the global timer, from one call to another: over SMs that ran blocks of both; 0 where none did.

    Within one short call a step of the timer would be an error of some per cent.
    """
    first, last = ({track.sm: track.begun for track in tracks} for tracks in (earlier, later))
    both = [(first[sm], last[sm]) for sm in first.keys() & last.keys()]
    ns = sum(after.ns - before.ns for before, after in both)
    cycles = sum(after.cycles - before.cycles for before, after in both)
    return 1e3 * cycles / ns if ns > 0 else 0.0


def timer_step_ns(tracks: Sequence[Track]) -> int:
    """The step of the global timer as far as the stamps show it: what divides every distance between them."""
    stamps = sorted({stamp.ns for track in tracks for stamp in (track.begun, track.ended)})
    return math.gcd(*(stamp - stamps[0] for stamp in stamps))


def spread(blocks: int, count: int) -> tuple[int, ...]:
    """The numbers of at most ``count`` of ``blocks`` blocks, evenly spread, the first among them."""
    return tuple(sorted({number * blocks // min(count, blocks) for number in range(min(count, blocks))}))
