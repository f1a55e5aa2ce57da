"""Labels and roles of the cells of tables, and that every template's tables have them."""

from __future__ import annotations

import re
from pathlib import Path

from tirgemm.service.pages import table_cards
from tirgemm.service.pages.table_cards import as_cards

TEMPLATES = Path(table_cards.__file__).parent / "templates"
TABLE = """<table class="x">
<caption>Times</caption>
<thead><tr><th scope="col">Problem</th><th scope="col" class="n" aria-sort="ascending">
<a href="?sort=us">Time <span aria-hidden="true">▲</span></a><br><span class="unit">µs a call</span></th>
<th>A &amp; B</th></tr></thead>
<tbody><tr><th scope="row">1x2x3</th><td class="n">1.5</td><td></td></tr>
<tr><th scope="row">4x5x6</th><td colspan="2">it <b>failed</b></td></tr></tbody>
</table>"""


def test_cells_have_the_head_of_their_column_and_elements_their_role() -> None:
    region = '<div class="wide" tabindex="0" role="region" aria-label="Times &amp; more">\n'
    table = as_cards(TABLE, "Times & more").removeprefix(region).removesuffix("</div>")
    assert '<table role="table" class="x">' in table
    assert '<td role="cell" class="n" data-label="Time, µs a call">1.5</td>' in table
    assert '<td role="cell" data-label="A &amp; B"></td>' in table
    assert '<td role="cell" colspan="2">it <b>failed</b></td>' in table, "it is of no one column"
    assert [table.count(f'role="{name}"') for name in ("columnheader", "rowheader", "row", "rowgroup")] == [3, 2, 3, 2]
    assert re.sub(r' (role|data-label)="[^"]*"', "", table) == TABLE, "nothing else changes"


def test_every_table_of_the_pages_is_laid_out_so() -> None:
    tables = 0
    for path in sorted(TEMPLATES.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        tables += text.count("<table")
        assert text.count("<table") == len(re.findall(r"{% filter as_cards\(.+\) %}\n<table", text)), path.name
    assert tables > 20
