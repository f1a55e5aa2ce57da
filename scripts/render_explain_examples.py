"""Writes the examples of docs/explain.md: what the commands named in its markers print.

    python scripts/render_explain_examples.py            # run every command, write its output
    python scripts/render_explain_examples.py --check    # are the same sections there?

A marker is ``<!-- explain:ARGUMENTS -->`` to ``<!-- /explain -->``, the arguments those of ``tirgemm explain``. ``--check``
compares the headings and the columns: figures change with the families' defaults and the compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from service.explain.tables import Section

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explain.md"
BLOCK = re.compile(r"(<!-- explain:(.*?) -->\n)(.*?)(<!-- /explain -->)", re.DOTALL)
WIDTH = 118


def output(arguments: str) -> str:
    """What ``tirgemm explain ARGUMENTS`` shows, without a terminal's colours. Exits where it fails."""
    from service import cli
    from service.explain import terminal

    said = io.StringIO()
    show = terminal.show

    def written(sections: Iterable[Section]) -> None:
        show(sections, Console(file=said, width=WIDTH, highlight=False, markup=False))

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, terminal, "show", show)
        setattr(terminal, "show", written)  # noqa: B010 - a method for the time of one command
        if code := cli.main(["explain", *shlex.split(arguments)]):
            sys.exit(code)
    return "\n".join(line.rstrip() for line in said.getvalue().strip().splitlines())


def block(arguments: str) -> str:
    """The Markdown of one example."""
    return f"```\n$ tirgemm explain {arguments}\n\n{output(arguments)}\n```\n"


def structure(text: str) -> list[str]:
    """The headings, and the names of the columns below them."""
    lines = [line for line in text.splitlines() if line.strip()]
    heads = [line for line in lines if re.match(r"[A-Z]", line)]
    columns = [" ".join(lines[at - 1].split()) for at, line in enumerate(lines) if set(line.strip()) == {"\u2500"}]
    return [*heads, *columns]


def differences(page: str) -> list[str]:
    """A sentence for each example of ``page`` that has other sections than its command prints."""
    found = []
    for _, arguments, written, _ in BLOCK.findall(page):
        live = structure(block(arguments))
        if structure(written) != live:
            found.append(f"{arguments}: written {structure(written)}, live {live}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    page = PAGE.read_text()
    if parser.parse_args().check:
        found = differences(page)
        print("\n".join(found) or "the examples are as live")
        return 1 if found else 0
    PAGE.write_text(BLOCK.sub(lambda found: found[1] + block(found[2]) + found[4], page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
