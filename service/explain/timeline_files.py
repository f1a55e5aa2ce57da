"""Files of a recorded timeline: the recording, the page with its picture and the trace for Perfetto, side by side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tirgemm._terminal.output_file import check_output
from tirgemm.analysis.timeline.perfetto import perfetto
from tirgemm.analysis.timeline.recording import Recording
from tirgemm.artifact.regular_file import write_named
from tirgemm.errors import InvalidRequest
from tirgemm.service.explain.page import timeline_page

_ENDINGS = (".json.gz", ".json")


@dataclass(frozen=True, slots=True)
class TimelineFiles:
    """Where a recording is (``name.json`` or ``name.json.gz``), and beside it ``name.html`` and ``name.trace.json``."""

    recording: Path
    page: Path
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
        return cls(recording, recording.with_name(f"{name}.html"), recording.with_name(f"{name}.trace.json"))

    def check(self) -> None:
        """Raise InvalidRequest unless all three can be written."""
        for path in (self.recording, self.page, self.trace):
            check_output(path, "--timeline")

    def export(self, recording: Recording) -> None:
        """Write the page and the trace, but for what they hold already. Raises InvalidRequest."""
        trace = json.dumps(perfetto(recording), allow_nan=False)
        for path, text in ((self.page, timeline_page(recording)), (self.trace, trace)):
            if not path.is_file() or path.read_bytes() != text.encode():
                check_output(path, "--timeline")
                write_named(path, text.encode())

    def to_json(self, recording: Recording) -> dict[str, object]:
        """What ``--json`` says of them."""
        files = {"recording": str(self.recording), "page": str(self.page), "trace": str(self.trace)}
        return files | {"source": recording.source, "length": recording.length, "unit": recording.unit}
