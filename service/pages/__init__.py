"""HTML from Jinja2 templates: single files with their style sheet in them, and the pages of the service."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tirgemm.service.pages.assets import ASSETS, asset_address
from tirgemm.service.pages.figure_texts import tflops_text, us_text
from tirgemm.service.pages.sample_drawings import ratio_bar, sample_boxes
from tirgemm.service.pages.table_cards import as_cards
from tirgemm.status import ENDED, ENDED_BATCH, LIVE

_TEMPLATES = Environment(
    loader=FileSystemLoader([Path(__file__).parent / "templates", ASSETS]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals.update(asset=asset_address, ratio_bar=ratio_bar, sample_boxes=sample_boxes)
_TEMPLATES.globals.update(live_statuses=LIVE, ended_statuses=ENDED, ended_batch_statuses=ENDED_BATCH)
_TEMPLATES.filters.update(as_cards=as_cards, us=us_text, tflops=tflops_text)


def render(template: str, **values: object) -> str:
    """The page that ``template`` makes of ``values``. Every text is escaped, Markup excepted."""
    return _TEMPLATES.get_template(template).render(values)
