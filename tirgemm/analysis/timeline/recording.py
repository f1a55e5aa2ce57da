"""Recording of a kernel's timeline: spans of each warpgroup by the clock of its SM, and a text file format for them.

The file is one JSON document (``.gz``: compressed), FORMAT of SUITE. Times are by the SMs' clocks, exact, and each SM's
own. The GPU's global timer is common to all and moves in steps (``timer_step_ns``). Both are read as each warpgroup
begins and ends, which lays the SMs beside one another to a step of the timer.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from tirgemm.errors import InvalidRequest
from tirgemm.families.common.ring_buffer import TILE

SUITE = "timeline"
FORMAT = 1
Source = Literal["device", "emulator"]
_COLUMNS = ("kind", "number", "start", "length")
# The members of a document but its tracks, and what each is made of.
_MEMBERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("source", "gemm", "family", "kernel", "source_sha256"), str),
    **dict.fromkeys(("m", "slots", "launched", "timer_step_ns"), int),
    **dict.fromkeys(("environment", "config", "resources", "kinds"), dict),
    "cycles_per_us": float,
}


@dataclass(frozen=True, slots=True)
class TimeStamp:
    """Two clocks read together: the SM's in cycles, the GPU's in ns."""

    cycles: int
    ns: int


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """What a warpgroup did from ``start`` to ``end``, in cycles since its track began.

    ``number``: of a ``tile`` its place in the order of all tiles, else the step of k, or 0.
    """

    kind: str
    number: int
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Track:
    """What one warpgroup of one block recorded, in the order in which it ended: a tile comes behind what is inside.

    ``role`` is the warpgroup's, ``sm`` the number of the SM; ``recorded`` counts all spans, of which ``spans`` are the
    last.
    """

    block: int
    warpgroup: int
    role: str
    sm: int
    recorded: int
    begun: TimeStamp
    ended: TimeStamp
    spans: tuple[RecordedSpan, ...]

    @property
    def lost(self) -> int:
        """Spans at the beginning that later ones took the place of."""
        return self.recorded - len(self.spans)

    @property
    def steps(self) -> tuple[RecordedSpan, ...]:
        """The spans inside tiles."""
        return tuple(span for span in self.spans if span.kind != TILE)

    @property
    def tiles(self) -> tuple[RecordedSpan, ...]:
        return tuple(span for span in self.spans if span.kind == TILE)

    def faults(self) -> Iterator[str]:
        """What no warpgroup can have done: spans that end before they start, overlap, or lie in no tile."""
        name = f"block {self.block}, {self.role}"
        for span in self.spans:
            if not 0 <= span.start <= span.end <= self.ended.cycles - self.begun.cycles:
                yield f"{name}: {span} is not within its track"
        for spans in (self.steps, self.tiles):
            for before, after in pairwise(spans):
                if after.start < before.end:
                    yield f"{name}: {after} begins before {before} ends"
        bounds = iter(self.tiles)
        tile = next(bounds, None)
        for span in self.steps:
            while tile is not None and tile.end < span.end:
                tile = next(bounds, None)
            if tile is None or span.start < tile.start:
                yield f"{name}: {span} is in no tile"


@dataclass(frozen=True)
class Recording:
    """One call of one kernel, as ``blocks`` evenly spread of its ``launched`` blocks recorded it.

    ``source`` says who ran it: an emulator's clock counts steps of the emulation, and nothing of it is a measurement.
    ``environment`` is that of results files: device, driver, versions, the program's commit, the time. ``resources``
    are the compiler's for the kernel with time stamps (registers, spill_bytes, serialised); ``source_sha256`` is the
    source hash of that kernel. ``cycles_per_us`` and ``timer_step_ns`` follow from the stamps of all launched blocks;
    0 of an emulator. ``kinds``: what a span can be, and what that means.
    """

    source: Source
    environment: Mapping[str, Any]
    gemm: str
    m: int
    family: str
    config: Mapping[str, Any]
    kernel: str
    resources: Mapping[str, int]
    source_sha256: str
    kinds: Mapping[str, str]
    slots: int
    launched: int
    cycles_per_us: float
    timer_step_ns: int
    tracks: tuple[Track, ...]

    @property
    def measured(self) -> bool:
        """Whether a device took the times."""
        return self.source == "device"

    @property
    def unit(self) -> str:
        """What ``place`` counts in."""
        return "us" if self.measured else "steps of the emulator"

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        return tuple(sorted({track.block for track in self.tracks}))

    def of_block(self, block: int) -> tuple[Track, ...]:
        """The tracks of a block, by warpgroup."""
        return tuple(sorted((t for t in self.tracks if t.block == block), key=lambda track: track.warpgroup))

    def place(self, track: Track, cycles: int) -> float:
        """When ``cycles`` after the track's beginning were, in ``unit`` since the first of all tracks began."""
        anchor, first = self._anchors[track.block], self._first
        since = track.begun.cycles - anchor.cycles + cycles
        if not self.measured:
            return float(anchor.cycles - first.cycles + since)
        return (anchor.ns - first.ns) / 1e3 + since / self.cycles_per_us

    @property
    def length(self) -> float:
        """When the last track ended, in ``unit``."""
        return max(self.place(track, track.ended.cycles - track.begun.cycles) for track in self.tracks)

    @cached_property
    def _anchors(self) -> dict[int, TimeStamp]:
        """The first stamp of each block, by which its SM's clock is laid beside the others'."""
        return {block: min((t.begun for t in self.of_block(block)), key=lambda at: at.cycles) for block in self.blocks}

    @cached_property
    def _first(self) -> TimeStamp:
        return min(self._anchors.values(), key=lambda at: at.ns if self.measured else at.cycles)

    def faults(self) -> Iterator[str]:
        """What is wrong with it, in sentences: of no device, of a rate or a kind that cannot be, of tracks."""
        if not self.tracks:
            yield "no warpgroup recorded anything"
        if self.measured and not 0 < self.cycles_per_us < math.inf:
            yield f"a device's clock makes {self.cycles_per_us} cycles a us"
        unknown = {span.kind for track in self.tracks for span in track.spans} - set(self.kinds)
        if unknown:
            yield f"spans are of the kinds {', '.join(sorted(unknown))}, which are not named"
        for track in self.tracks:
            yield from track.faults()

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "tracks"}
        tracks = [_track_json(track, list(self.kinds)) for track in self.tracks]
        return {"suite": SUITE, "format": FORMAT} | plain | {"tracks": tracks}

    @classmethod
    def from_json(cls, document: Any) -> Recording:
        """The recording that ``to_json`` wrote. Raises InvalidRequest."""
        try:
            if (document["suite"], document["format"]) != (SUITE, FORMAT):
                raise InvalidRequest(
                    f"it is format {document['format']!r:.20} of {document['suite']!r:.40}; read is format {FORMAT} of "
                    f"{SUITE}"
                )
            members = {name: as_type(document[name]) for name, as_type in _MEMBERS.items()}
            members["kinds"] = {str(kind): str(meaning) for kind, meaning in members["kinds"].items()}
            members["tracks"] = tuple(_track(entry, list(members["kinds"])) for entry in document["tracks"])
            recording = cls(**members)
            if recording.source not in get_args(Source):
                raise InvalidRequest(
                    f"its source is {recording.source!r:.40}; sources are {', '.join(get_args(Source))}"
                )
            faults = next(recording.faults(), None)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            if isinstance(error, InvalidRequest):
                raise
            raise InvalidRequest(f"it is not a recording of a timeline: {error!r:.200}") from error
        if faults is not None:
            raise InvalidRequest(f"it is no recording that a kernel can have made: {faults}")
        return recording

    def write(self, path: Path) -> None:
        """Write the file, compressed where its name ends in ``.gz``."""
        text = json.dumps(self.to_json(), separators=(",", ":")).encode()
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)

    @classmethod
    def read(cls, path: Path) -> Recording:
        """The recording of a file. Raises InvalidRequest, also where it cannot be read."""
        try:
            data = path.read_bytes()
            document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidRequest(f"{path} cannot be read as a recording: {reason}") from error
        try:
            return cls.from_json(document)
        except InvalidRequest as error:
            raise InvalidRequest(f"{path}: {error}") from error


def _track_json(track: Track, kinds: Sequence[str]) -> dict[str, Any]:
    """The members of a track; its spans as columns, each start as the distance from the one before."""
    starts = [0, *(span.start for span in track.spans)]
    columns = (
        [kinds.index(span.kind) for span in track.spans],
        [span.number for span in track.spans],
        [after - before for before, after in pairwise(starts)],
        [span.length for span in track.spans],
    )
    return {
        "block": track.block,
        "warpgroup": track.warpgroup,
        "role": track.role,
        "sm": track.sm,
        "recorded": track.recorded,
        "begun": [track.begun.cycles, track.begun.ns],
        "ended": [track.ended.cycles, track.ended.ns],
        "spans": dict(zip(_COLUMNS, columns, strict=True)),
    }


def _track(entry: Mapping[str, Any], kinds: Sequence[str]) -> Track:
    numbers, of, distances, lengths = (list(map(int, entry["spans"][name])) for name in _COLUMNS)
    if min(numbers, default=0) < 0:
        raise InvalidRequest(f"a span is of kind {min(numbers)}; kinds are counted from 0")
    starts = accumulate(distances)
    spans = tuple(
        RecordedSpan(kinds[kind], number, start, start + length)
        for kind, number, start, length in zip(numbers, of, starts, lengths, strict=True)
    )
    place = {name: int(entry[name]) for name in ("block", "warpgroup", "sm", "recorded")}
    begun, ended = (TimeStamp(*map(int, entry[name])) for name in ("begun", "ended"))
    return Track(**place, role=str(entry["role"]), begun=begun, ended=ended, spans=spans)
