"""A report as one page that holds everything: no script, nothing from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from service.explain.drawings import Drawing, drawings
from service.explain.gather import Report
from service.explain.tables import Section
from service.explain.wording import sections

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--paper:#fff;--head:#f6f8fa;--good:#116329;--bad:#b3121f}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4af;--line:#3d444d;--paper:#0d1117;--head:#161b22;--good:#56d364;--bad:#ff7b72}}
body{margin:0 auto;max-width:1180px;padding:24px 20px 60px;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:22px;margin:0 0 4px}h2{font-size:17px;margin:32px 0 8px;border-bottom:1px solid var(--line);padding-bottom:4px}
p{margin:6px 0}.soft{color:var(--soft)}.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}.strong{font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:8px 0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:14px;margin:8px 0}th,td{padding:4px 12px 4px 0;text-align:left;vertical-align:top}
th{border-bottom:1px solid var(--line);font-weight:600;color:var(--soft)}td{border-bottom:1px solid var(--head)}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}ul{margin:8px 0;padding-left:20px}
figure{margin:16px 0}figcaption{margin-bottom:6px}svg{max-width:none;height:auto}nav a{margin-right:14px;color:inherit}
"""


def page(report: Report) -> str:
    """The page as HTML. Every text is escaped; the pictures are inlined."""
    found = report.explanation
    title = f"{found.gemm}: {found.config.family} on {found.device.model}"
    parts = sections(report)
    shown = drawings(found)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>{escape(title)}</title>'
    kernel = f'<p class="soft">kernel {escape(report.kernel_id)}</p>' if report.kernel_id else ""
    links = "".join(f'<a href="#s{number}">{escape(part.title)}</a>' for number, part in enumerate(parts))
    first, *rest = (_section(part, f"s{number}") for number, part in enumerate(parts))
    pictures = f'<h2 id="pictures">Pictures</h2>{"".join(map(_figure, shown))}' if shown else ""
    links += '<a href="#pictures">Pictures</a>' if shown else ""
    body = f"<h1>{escape(title)}</h1>{kernel}<nav>{links}</nav>{first}{pictures}{''.join(rest)}"
    return f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>\n'


def _section(section: Section, anchor: str) -> str:
    lines = "".join(_line(line) for line in section.lines)
    lines = f"<dl>{lines}</dl>" if lines else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in section.notes)
    notes = f"<ul>{notes}</ul>" if notes else ""
    return f'<section><h2 id="{anchor}">{escape(section.title)}</h2>{lines}{_table(section)}{notes}</section>'


def _line(line: str) -> str:
    name, colon, rest = line.partition(": ")
    return f"<dt>{escape(name)}</dt><dd>{escape(rest)}</dd>" if colon else f"<dt></dt><dd>{escape(line)}</dd>"


def _table(section: Section) -> str:
    if not section.rows:
        return ""
    numbers = [right for _, right in section.columns]
    heads = "".join(_cell("th", name, "n" if right else "") for name, right in section.columns)
    rows = (
        "".join(
            _cell("td", cell.text, *(["n"] if right else []), *([] if cell.tone == "plain" else [cell.tone]))
            for cell, right in zip(cells, numbers, strict=True)
        )
        for cells in section.rows
    )
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{_joined(rows)}</tbody></table></div>'


def _joined(rows: Iterable[str]) -> str:
    return "".join(f"<tr>{cells}</tr>" for cells in rows)


def _cell(tag: str, text: str, *classes: str) -> str:
    kind = " ".join(filter(None, classes))
    of = f' class="{kind}"' if kind else ""
    return f"<{tag}{of}>{escape(text)}</{tag}>"


def _figure(drawing: Drawing) -> str:
    return f'<figure><figcaption class="soft">{escape(drawing.words)}</figcaption><div class="wide">{drawing.svg}</div></figure>'
