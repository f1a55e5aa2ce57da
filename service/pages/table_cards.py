"""Marks on the tables of pages, by which a narrow screen shows their rows as cards."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_TAG = re.compile(r"<(table|thead|tbody|tr|th|td)\b([^>]*)>")
_HEAD = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_HIDDEN = re.compile(r'<span aria-hidden="true">.*?</span>', re.DOTALL)
_ROLES = {"table": "table", "thead": "rowgroup", "tbody": "rowgroup", "tr": "row", "td": "cell"}


def as_cards(table: str, region: str) -> Markup:
    """A table of one row of heads, in a region of that name, which may be scrolled: with the head of its column on each
    cell as ``data-label``, and with the role of each element: a row that is laid out as a card is no row of a table to
    every screen reader."""
    heads = [_words(head) for head in _HEAD.findall(table.partition("</thead>")[0])]
    column = 0
    is_head = False

    def marked(tag: re.Match[str]) -> str:
        nonlocal column, is_head
        name, attributes = tag.groups()
        if name in ("thead", "tbody"):
            is_head = name == "thead"
        if name == "tr":
            column = 0
        role = _ROLES.get(name) or ("columnheader" if is_head else "rowheader")
        label = ""
        if name in ("th", "td") and not is_head:
            spanned = re.search(r'colspan="(\d+)"', attributes)
            label = f' data-label="{heads[column]}"' if name == "td" and not spanned else ""
            column += int(spanned[1]) if spanned else 1
        return f'<{name} role="{role}"{attributes}{label}>'

    opening = f'<div class="wide" tabindex="0" role="region" aria-label="{escape(region)}">\n'
    return Markup(opening + _TAG.sub(marked, table) + "</div>")


def _words(head: str) -> str:
    """The text of a head, its lines apart by commas."""
    text = re.sub(r"<br\s*/?>", ", ", _HIDDEN.sub("", head))
    return " ".join(re.sub(r"<[^>]*>", "", text).split()).replace(" ,", ",")
