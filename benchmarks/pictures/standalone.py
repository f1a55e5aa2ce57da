"""The style of pictures that stand alone as SVG files, over whatever a page has behind them, in light and dark."""

from __future__ import annotations

_LIGHT = "--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--paper:#fff;--aligned:#0b6bcb;--other:#bf8700"
_DARK = "--ink:#e6edf3;--soft:#9aa4af;--line:#3d444d;--paper:#0d1117;--aligned:#58a6ff;--other:#d29922"
STYLE = (
    f"<style>.tg{{{_LIGHT};background:var(--paper)}}@media(prefers-color-scheme:dark){{.tg{{{_DARK}}}}}"
    ".tg text{font:11px system-ui,sans-serif;fill:var(--ink)}.tg .t{font-weight:600;font-size:13px}"
    ".tg .s{fill:var(--soft)}.tg .m{text-anchor:middle}.tg .e{text-anchor:end}.tg .l{stroke:var(--line)}"
    ".tg .o{stroke:var(--ink);stroke-width:1.6}.tg .aligned{fill:var(--aligned)}"
    ".tg .other{fill:none;stroke:var(--other);stroke-width:1.4}</style>"
)
