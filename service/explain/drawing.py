"""A picture of a report with what belongs to it, and that of a timeline."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.analysis.figures.timeline_chart import colours_of, timeline_svg
from tirgemm.analysis.timeline.recording import Recording
from tirgemm.families.common.ring_buffer import TILE

# What a shape of some class means.
LegendKey = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture under a ``title``, with a sentence of what it shows and the ``key`` to its colours and notation.

    The key is classes of shapes with their meanings; ``hues`` are all colours, ``line`` is of a line, and notation has
    no class. The picture belongs to the section of the first of its ``topics`` that a report has.
    """

    title: str
    caption: str
    svg: str
    topics: tuple[str, ...]
    key: LegendKey


def timeline_drawing(recording: Recording) -> Drawing:
    """The timeline of a kernel, as it was recorded."""
    caption = "What each warpgroup of some blocks does when; below, one tile. An outline is a tile."
    key = ("l", f"{TILE}: {recording.kinds.get(TILE, '')}")
    meanings = ((colour, f"{kind}: {recording.kinds[kind]}") for kind, colour in colours_of(recording).items())
    return Drawing("Timeline", caption, timeline_svg(recording), ("timeline",), (*meanings, key))
