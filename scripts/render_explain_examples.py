"""Writes the examples of docs/explain.md: what the commands named in its markers print.

    python scripts/render_explain_examples.py            # run every command, write its output
    python scripts/render_explain_examples.py --check    # are the same sections there?

A marker is ``<!-- explain:ARGUMENTS -->`` to ``<!-- /explain -->``, the arguments those of ``tirgemm explain``. Within
it ``<!-- run: output -->`` tells the tests of the documentation that the block is output, not a command to be run.
``--check`` compares the headings, the columns and the configs: figures change with the compiler, and what is explained
only with a config.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from unittest import mock

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explain.md"
BLOCK = re.compile(r"(<!-- explain:(.*?) -->\n)(.*?)(<!-- /explain -->)", re.DOTALL)
# The config that is explained, over as many lines as it takes, up to the next name of a value.
CONFIG = re.compile(r"^  config +(.*?)(?=^  \S)", re.MULTILINE | re.DOTALL)
WIDTH = 118


@cache
def output(arguments: str) -> str:
    """What ``tirgemm explain ARGUMENTS`` shows, without a terminal's colours. Exits where it fails."""
    from tirgemm.service import cli

    said = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS=str(WIDTH)), contextlib.redirect_stdout(said):
        code = cli.main(["explain", *shlex.split(arguments)])
    if code:
        sys.exit(code)
    return said.getvalue().strip()


def block(arguments: str) -> str:
    """The Markdown of one example."""
    return f"{opening(arguments)}{output(arguments)}\n```\n"


def opening(arguments: str) -> str:
    """What stands before the output."""
    return f"<!-- run: output -->\n\n```\n$ tirgemm explain {arguments}\n\n"


def structure(text: str) -> list[str]:
    """The headings, the names of the columns below them, and the configs."""
    lines = [line for line in text.splitlines() if line.strip()]
    heads = [line for line in lines if re.match(r"[A-Z]", line)]
    columns = [" ".join(lines[at - 1].split()) for at, line in enumerate(lines) if set(line.strip()) == {"\u2500"}]
    configs = [" ".join(config.split()) for config in CONFIG.findall(text)]
    return [*heads, *columns, *configs]


def differences(page: str) -> list[str]:
    """A sentence for each example of ``page`` that has other sections than its command prints."""
    stale = []
    for _, arguments, written, _ in BLOCK.findall(page):
        live = structure(block(arguments))
        if structure(written) != live:
            stale.append(f"{arguments}: written {structure(written)}, live {live}")
        if not written.startswith(opening(arguments)):
            stale.append(f"{arguments}: it does not begin with {opening(arguments)!r}")
    return stale


def rendered(page: str) -> str:
    """The page with the output of each example's command in place of what stands there."""
    return BLOCK.sub(lambda match: match[1] + block(match[2]) + match[4], page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    page = PAGE.read_text()
    if parser.parse_args().check:
        stale = differences(page)
        print("\n".join(stale) or "the examples are as live")
        return 1 if stale else 0
    PAGE.write_text(rendered(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
