"""Content negotiation by the ``Accept`` header: HTML or JSON."""

from __future__ import annotations


def wants_html(accept: str) -> bool:
    """Whether an Accept header names HTML, as browsers' do, before JSON."""
    types = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    html = next((at for at, name in enumerate(types) if name in ("text/html", "application/xhtml+xml")), None)
    json = next((at for at, name in enumerate(types) if name == "application/json"), len(types))
    return html is not None and html < json
