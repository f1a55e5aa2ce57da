"""HTML pages from Jinja2 templates: each is one file with one style sheet in it, and takes nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: object) -> str:
    """The page that ``template`` makes of ``values``. Every text is escaped, Markup excepted."""
    return _TEMPLATES.get_template(template).render(values)
