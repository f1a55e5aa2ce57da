"""Timelines of stored kernels: recordings in a folder of the data folder, each named after its kernel, and those that
come with the package, recorded on GPUs by ``benchmarks.timeline.record``."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel, Field, PrivateAttr

from tirgemm.analysis.timeline.perfetto import perfetto
from tirgemm.analysis.timeline.recording import Recording
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.service.explain.drawing import Drawing, timeline_drawing
from tirgemm.service.explain.tables import Section
from tirgemm.service.explain.timeline_text import timeline_section
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.search.similar_problems import nearest

FOLDER = "timelines"
_ENDINGS = (".json.gz", ".json")
_SHIPPED = "*/*.timeline.json.gz"


class DrawnTimeline(BaseModel):
    """A recording as it is shown: of a ``device``, or of an emulator, whose steps are no times.

    ``kinds``: what a span can be, and what that means; ``section`` tells in words and numbers what ``drawing`` draws.
    ``length`` is in ``unit``, ``cycles_per_us`` and ``timer_step_ns`` are 0 of an emulator.
    """

    source: str
    device: str
    driver: str | None
    gemm: str
    family: str
    config: dict[str, Any]
    length: float
    unit: str
    cycles_per_us: float
    timer_step_ns: int
    kinds: dict[str, str]
    section: Section
    drawing: Drawing = Field(exclude=True)
    _recording: Recording = PrivateAttr()

    @property
    def svg(self) -> Markup:
        return Markup(self.drawing.svg)

    @classmethod
    def of(cls, recording: Recording) -> DrawnTimeline:
        about = recording.environment
        same = ("source", "gemm", "family", "config", "length", "unit", "cycles_per_us", "timer_step_ns", "kinds")
        drawn = cls(
            **{name: getattr(recording, name) for name in same},
            device=str(about.get("device")),
            driver=str(about["driver"]) if about.get("driver") else None,
            section=timeline_section(recording),
            drawing=timeline_drawing(recording),
        )
        drawn._recording = recording
        return drawn

    @property
    def trace(self) -> bytes:
        """The file for Perfetto: a megabyte for 10,000 spans, made when it is asked for."""
        return json.dumps(perfetto(self._recording), allow_nan=False).encode()

    def is_of(self, record: KernelRecord) -> bool:
        """Whether it is of the kernel's problem and config."""
        ours = (str(record.gemm), record.config.family, dict(record.config.knobs))
        return ours == (self.gemm, self.family, self.config)


def recording_place(data: Path, kernel_id: str) -> Path:
    """Where a kernel's recording is looked for first."""
    return data / FOLDER / f"{kernel_id}{_ENDINGS[0]}"


def drawn_timeline(data: Path, record: KernelRecord) -> DrawnTimeline | None:
    """The timeline of a kernel: of the data folder, else one that came with the package, of this config on this model
    of device; None where there is no recording. Raises InvalidRequest for a file that is none, or is one of another
    kernel."""
    for ending in _ENDINGS:
        path = data / FOLDER / f"{record.id}{ending}"
        if path.is_file():
            try:
                drawn = _drawn(path, path.stat().st_mtime_ns)
            except InvalidRequest as error:
                # Where the service has its data is not told.
                raise InvalidRequest(str(error).replace(str(path), path.name)) from error
            if not drawn.is_of(record):
                raise InvalidRequest(
                    f"{path.name} in the folder {FOLDER} is a recording of {drawn.gemm}, {drawn.family}; kernel "
                    f"{record.id} is another config or problem: record it anew"
                )
            return drawn
    theirs = (drawn for drawn in map(_shipped, shipped_files()) if drawn.is_of(record))
    return next((drawn for drawn in theirs if drawn.device == record.device.model), None)


def shipped_files() -> tuple[Path, ...]:
    """The recordings that come with the package, of all devices."""
    return tuple(sorted(Path(str(resources.files("tirgemm.bench") / "measured")).glob(_SHIPPED)))


def similar_timeline(gemm: Gemm) -> DrawnTimeline | None:
    """Of the recordings that come with the package that of the problem nearest to ``gemm``; None without any."""
    of = {Gemm.parse(drawn.gemm): drawn for drawn in map(_shipped, shipped_files())}
    return of[gemm] if gemm in of else next((of[problem] for problem in nearest(gemm, of)), None)


def _shipped(path: Path) -> DrawnTimeline:
    return _drawn(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _drawn(path: Path, changed: int) -> DrawnTimeline:
    """Kept until the file has ``changed``: a recording holds ten thousand spans."""
    del changed
    return DrawnTimeline.of(Recording.read(path))
