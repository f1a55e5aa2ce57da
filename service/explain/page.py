"""A report as one page that holds everything: no script, nothing from elsewhere, light and dark."""

from __future__ import annotations

from tirgemm.analysis.timeline.recording import Recording
from tirgemm.service.explain.drawings import drawings, timeline_drawing
from tirgemm.service.explain.gather import Report
from tirgemm.service.explain.report_text import sections
from tirgemm.service.pages import render


def page(report: Report, timeline: Recording | None = None) -> str:
    """The page as HTML, with its pictures in it, that of a timeline too where one was recorded."""
    explanation = report.explanation
    recorded = () if timeline is None else (timeline_drawing(timeline),)
    return render(
        "explain.html",
        title=f"{explanation.gemm}: {explanation.config.family} on {explanation.device.model}",
        kernel=report.kernel_id,
        sections=sections(report),
        drawings=(*drawings(explanation), *recorded),
    )
