"""A report as one page that holds everything: no script, nothing from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Sequence

from tirgemm.analysis.timeline.recording import Recording
from tirgemm.service.explain.drawing import Drawing, timeline_drawing
from tirgemm.service.explain.drawings import drawings
from tirgemm.service.explain.gather import Report
from tirgemm.service.explain.report_text import sections
from tirgemm.service.explain.tables import Section
from tirgemm.service.explain.timeline_text import timeline_section
from tirgemm.service.pages import render


def page(report: Report, timeline: Recording | None = None) -> str:
    """The page as HTML, each picture in the section that speaks of it; with a section of its own for a timeline."""
    explanation = report.explanation
    more = () if timeline is None else _timeline(timeline)
    return render(
        "explain.html",
        title=f"{explanation.gemm}: {explanation.config.family} on {explanation.device.model}",
        kernel=report.kernel_id,
        illustrated=(*illustrated(sections(report), drawings(explanation)), *more),
    )


def timeline_page(recording: Recording) -> str:
    """The page of a timeline alone, wherever it was recorded."""
    title = f"{recording.gemm}: timeline of {recording.family} on {recording.environment.get('device')}"
    return render("explain.html", title=title, kernel=None, illustrated=_timeline(recording))


def _timeline(recording: Recording) -> tuple[tuple[Section, tuple[Drawing, ...]], ...]:
    return ((timeline_section(recording), (timeline_drawing(recording),)),)


def illustrated(
    sections: Sequence[Section], pictures: Sequence[Drawing]
) -> tuple[tuple[Section, tuple[Drawing, ...]], ...]:
    """Every section with its pictures: those whose topic it is the first to have. A picture without such a section
    stands in the first."""
    first: dict[str, int] = {}
    for number, section in enumerate(sections):
        first.setdefault(section.topic, number)
    places = [next((first[topic] for topic in each.topics if topic in first), 0) for each in pictures]
    return tuple(
        (section, tuple(each for each, place in zip(pictures, places, strict=True) if place == number))
        for number, section in enumerate(sections)
    )
