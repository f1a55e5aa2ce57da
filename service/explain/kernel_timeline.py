"""Timelines of stored kernels: recordings in a folder of the data folder, each named after its kernel, and one by the
emulator that shows what such a picture looks like."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel, Field

from tirgemm.analysis.timeline.perfetto import perfetto
from tirgemm.analysis.timeline.recording import Recording
from tirgemm.errors import InvalidRequest
from tirgemm.service.explain.drawings import Drawing, timeline_drawing
from tirgemm.service.explain.tables import Section
from tirgemm.service.explain.timeline_text import timeline_section
from tirgemm.tuning.records import KernelRecord

FOLDER = "timelines"
EMULATED = Path(__file__).with_name("emulated_timeline.json")
_ENDINGS = (".json.gz", ".json")


class DrawnTimeline(BaseModel):
    """A recording as it is shown: of a ``device``, or of an emulator, whose steps are no times.

    ``kinds``: what a span can be, and what that means; ``section`` tells in words and numbers what ``drawing`` draws;
    ``trace`` is the file for Perfetto. ``length`` is in ``unit``, ``cycles_per_us`` and ``timer_step_ns`` are 0 of an
    emulator.
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
    trace: bytes = Field(exclude=True)

    @property
    def svg(self) -> Markup:
        return Markup(self.drawing.svg)

    @classmethod
    def of(cls, recording: Recording) -> DrawnTimeline:
        about = recording.environment
        return cls(
            source=recording.source,
            device=str(about.get("device")),
            driver=str(about["driver"]) if about.get("driver") else None,
            gemm=recording.gemm,
            family=recording.family,
            config=dict(recording.config),
            length=recording.length,
            unit=recording.unit,
            cycles_per_us=recording.cycles_per_us,
            timer_step_ns=recording.timer_step_ns,
            kinds=dict(recording.kinds),
            section=timeline_section(recording),
            drawing=timeline_drawing(recording),
            trace=json.dumps(perfetto(recording), allow_nan=False).encode(),
        )


def recording_place(data: Path, kernel_id: str) -> Path:
    """Where a kernel's recording is looked for first."""
    return data / FOLDER / f"{kernel_id}{_ENDINGS[0]}"


def drawn_timeline(data: Path, record: KernelRecord) -> DrawnTimeline | None:
    """The timeline of a kernel; None where there is no recording. Raises InvalidRequest for a file that is none, or is
    one of another kernel."""
    for ending in _ENDINGS:
        path = data / FOLDER / f"{record.id}{ending}"
        if path.is_file():
            try:
                drawn = _drawn(path, path.stat().st_mtime_ns)
            except InvalidRequest as error:
                # Where the service has its data is not told.
                raise InvalidRequest(str(error).replace(str(path), path.name)) from error
            ours = (str(record.gemm), record.config.family, dict(record.config.knobs))
            theirs = (drawn.gemm, drawn.family, drawn.config)
            if ours != theirs:
                raise InvalidRequest(
                    f"{path.name} in the folder {FOLDER} is a recording of {theirs[0]}, {theirs[1]}; kernel "
                    f"{record.id} is another config or problem: record it anew"
                )
            return drawn
    return None


def emulated_timeline() -> DrawnTimeline:
    """The timeline of a small kernel as the emulator recorded it: nothing was measured."""
    return _drawn(EMULATED, EMULATED.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _drawn(path: Path, changed: int) -> DrawnTimeline:
    """Kept until the file has ``changed``: a recording holds a hundred thousand spans."""
    del changed
    return DrawnTimeline.of(Recording.read(path))
