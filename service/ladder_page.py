"""The ladder as one HTML page that needs nothing else: no script, no style sheet, no font from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from service.ladder_report import Entry
from service.ladder_view import figures, knobs, loads
from tirgemm.gemm import Gemm

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1a1a1a; background: #fff; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
ul { list-style: none; padding-left: 1.2rem; border-left: 1px solid #bbb; } li { margin: .7rem 0; }
.name { font-weight: 600; } .small { color: #555; font-size: .88rem; } .slower { color: #a00; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .15rem .6rem .15rem 0; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } td.bar { width: 60%; }
.ours { fill: #2a78b5; } .theirs { fill: #6a9a3a; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616; } .small { color: #aaa; } ul { border-color: #555; } .slower { color: #f77; } }
"""


def page(ladders: Sequence[tuple[Gemm, Sequence[Entry], dict[str, float]]], place: str) -> str:
    """The page of some problems' ladders, each with its baselines' TFLOP/s; ``place`` is what they were taken on."""
    parts = [_section(gemm, entries, baselines) for gemm, entries, baselines in ladders]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>The simt ladder</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>The simt ladder</h1>\n<p>{escape(place)}</p>\n{''.join(parts)}</body></html>\n"
    )


def _section(gemm: Gemm, entries: Sequence[Entry], baselines: dict[str, float]) -> str:
    return f"<h2>{escape(str(gemm))}</h2>\n{_bars(entries, baselines)}{_branch(entries, None)}\n"


def _branch(entries: Sequence[Entry], parent: str | None) -> str:
    """The rungs under ``parent``, each with its own; a rung whose parent is missing hangs from the root."""
    names = {entry.step.name for entry in entries}
    mine = [
        entry for entry in entries
        if (entry.step.rung.parent if entry.step.rung.parent in names else None) == parent
    ]  # fmt: skip
    items = "".join(f"<li>{_rung(entry)}{_branch(entries, entry.step.name)}</li>\n" for entry in mine)
    return f"<ul>\n{items}</ul>\n" if items else ""


def _rung(entry: Entry) -> str:
    said = figures(entry)
    lines = [
        f'<span class="name">{escape(entry.step.name)}</span> {escape(entry.step.rung.changed)}',
        *(f'<span class="small">{escape(line)}</span>' for line in (knobs(entry), _loads(entry)) if line),
    ]
    if said:
        lines.append(f'<span class="{"slower" if entry.not_slower is False else "figures"}">{escape(said)}</span>')
    return "<br>".join(lines)


def _loads(entry: Entry) -> str:
    found = loads(entry)
    return f"loads for one FMA: {found}" if found else ""


def _bars(entries: Sequence[Entry], baselines: dict[str, float]) -> str:
    rows = [(entry.step.name, entry.tflops, entry.shares, "ours") for entry in entries if entry.tflops]
    if not rows:
        return ""
    rows += [(name, tflops, {}, "theirs") for name, tflops in baselines.items()]
    most = max(tflops for _, tflops, _, _ in rows)
    names = sorted({name for _, _, shares, _ in rows for name in shares})
    head = "".join(f'<th class="number">× {escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><td>{escape(rung)}</td><td class="bar">{_bar(tflops / most, kind)}</td><td class="number">{tflops:.2f}</td>'
        + "".join(f'<td class="number">{shares[name]:.3f}</td>' if name in shares else "<td></td>" for name in names)
        + "</tr>\n"
        for rung, tflops, shares, kind in rows
    )
    return f'<table><tr><th>rung</th><th></th><th class="number">TFLOP/s</th>{head}</tr>\n{body}</table>\n'


def _bar(share: float, kind: str) -> str:
    return (
        f'<svg width="100%" height="14" role="img" aria-label="{share:.1%} of the fastest">'
        f'<rect class="{kind}" width="{100 * share:.2f}%" height="14"/></svg>'
    )
