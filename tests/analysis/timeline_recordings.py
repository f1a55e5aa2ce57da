"""Recordings of timelines, made up or of an emulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tirgemm.analysis.timeline.decoding import UNWRITTEN
from tirgemm.analysis.timeline.recording import RecordedSpan, Recording, TimeStamp, Track
from tirgemm.families.common.ring_buffer import BEGUN, ENDED, HEADER_WORDS, RECORDED, SM, RingBuffer

_KINDS = {kind: f"what {kind} & others are" for kind in ("tile", "wait", "load", "multiply", "store")}

_RING = RingBuffer(3, ("producer", "consumer 0"), _KINDS, 4)

# In the middle of a period of the clock's low word, so that it begins anew within the track.
_BEGUN = 2**33 + 2**32 - 50


def _row(spans: list[tuple[int, int, int, int]], recorded: int, length: int = 200) -> np.ndarray:
    """A track that began at _BEGUN; ``spans`` by slot: start and end since then, kind, number."""
    row = np.full(_RING.track_words, UNWRITTEN, np.uint32)
    row[RECORDED], row[SM] = recorded, 7
    for at, cycles in ((BEGUN, _BEGUN), (ENDED, _BEGUN + length)):
        row[at : at + 4] = cycles % 2**32, cycles >> 32, 5, 1
    for slot, (start, end, kind, number) in enumerate(spans):
        at = HEADER_WORDS + 4 * slot
        row[at : at + 4] = (_BEGUN + start) % 2**32, (_BEGUN + end) % 2**32, kind, number
    return row


def _track(block: int, warpgroup: int, spans: list[tuple[str, int, int, int]], begun: TimeStamp) -> Track:
    made = tuple(RecordedSpan(*span) for span in spans)
    length = max(span.end for span in made)
    ended = TimeStamp(begun.cycles + length, begun.ns + length // 2)
    return Track(block, warpgroup, _RING.roles[warpgroup], block + 10, len(made), begun, ended, made)


def _recording() -> Recording:
    """Two blocks on SMs whose clocks are far apart, by a timer that says they began 1 us apart; 2 cycles a ns."""
    tracks = []
    for block, begun in enumerate((TimeStamp(10**9, 5000), TimeStamp(77, 6000))):
        for warpgroup, kind in enumerate(("load", "multiply")):
            spans = []
            for tile in (0, 1):
                at = 1000 * tile
                inside = [("wait", 0, at, at + 300), (kind, 0, at + 300, at + 900)]
                spans += [*inside, ("tile", 2 * tile + block, at, at + 900)]
            tracks.append(_track(block, warpgroup, spans, begun))
    return Recording(
        source="device",
        environment={"device": "NVIDIA H200", "driver": "580.1", "commit": "c" * 40, "date": "2026-11-23"},
        gemm="256x128x64:f16:nt",
        m=256,
        family="wgmma",
        config={"tile_m": 128, "schedule": "cooperative"},
        kernel="wgmma_gemm",
        resources={"registers": 168, "spill_bytes": 0},
        source_sha256="5" * 64,
        kinds=_KINDS,
        slots=64,
        launched=5,
        cycles_per_us=2000.0,
        timer_step_ns=1000,
        tracks=tuple(tracks),
    )


def _emulated() -> Recording:
    return replace(_recording(), source="emulator", cycles_per_us=0.0, timer_step_ns=0)
