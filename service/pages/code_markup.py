"""Lines of code as HTML: of thousands a template makes it in several times as long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from markupsafe import Markup, escape


class LinkedLine(Protocol):
    """A line, that of the CUDA source that it is of, and the colour that both have; None for lines of nothing else."""

    @property
    def text(self) -> str: ...

    @property
    def source(self) -> int | None: ...

    @property
    def colour(self) -> int | None: ...


def code_markup(kind: str, lines: Sequence[LinkedLine], target: Callable[[int], str]) -> Markup:
    """The lines of a text of that kind, each with a number: of a linked one a link to the id that ``target`` makes of
    it, of others of the source their own. The first of each line of the source has the id of kind and number."""
    parts: list[str] = []
    seen: set[int] = set()
    for number, line in enumerate(lines, 1):
        source, text = line.source, escape(line.text)
        if line.colour is None or source is None:
            parts.append(f'<span class="g">{number if kind == "cuda" else ""}</span>{text}\n')
            continue
        place = "" if source in seen else f' id="{kind}-{source}"'
        seen.add(source)
        link = f'<a class="g" href="#{target(source)}">{source}</a>'
        parts.append(f'<span class="k{line.colour}" data-line="{source}"{place}>{link}{text}</span>\n')
    return Markup("".join(parts))
