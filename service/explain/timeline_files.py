"""Files of a recorded timeline: the recording, its drawing and its trace for Perfetto, side by side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tirgemm.analysis.figures.timeline import timeline_svg
from tirgemm.analysis.timeline.perfetto import perfetto
from tirgemm.analysis.timeline.recording import Recording
from tirgemm.errors import InvalidRequest

_ENDINGS = (".json.gz", ".json")


@dataclass(frozen=True, slots=True)
class TimelineFiles:
    """Where a recording is (``name.json`` or ``name.json.gz``), and beside it ``name.svg`` and ``name.trace.json``."""

    recording: Path
    drawing: Path
    trace: Path

    @classmethod
    def beside(cls, recording: Path) -> TimelineFiles:
        """The files of the recording ``recording``. Raises InvalidRequest for a name that ends otherwise."""
        ending = next((each for each in _ENDINGS if recording.name.endswith(each)), None)
        if ending is None or recording.name == ending:
            raise InvalidRequest(
                f"a recording's file is named NAME{' or NAME'.join(_ENDINGS)}, not {str(recording)!r:.200}"
            )
        name = recording.name.removesuffix(ending)
        return cls(recording, recording.with_name(f"{name}.svg"), recording.with_name(f"{name}.trace.json"))

    def export(self, recording: Recording) -> None:
        """Write the drawing and the trace."""
        self.drawing.write_text(timeline_svg(recording, styled=True), encoding="utf-8")
        self.trace.write_text(json.dumps(perfetto(recording), allow_nan=False), encoding="utf-8")

    def to_json(self, recording: Recording) -> dict[str, object]:
        """What ``--json`` says of them."""
        files = {"recording": str(self.recording), "drawing": str(self.drawing), "trace": str(self.trace)}
        return files | {"source": recording.source, "length": recording.length, "unit": recording.unit}
