"""Code blocks of Markdown pages, with what each needs to be run as printed.

A block may be preceded by ``<!-- run: WORD ... -->``:

- ``clone``: run in the root of the checkout, as one who has just cloned it; else in the session's own folder;
- ``demo``: run there after ``make demo``, in the environment that this made;
- ``install``: makes or removes an environment; left out by a newcomer who was given one;
- ``terminal``: a program that goes on until it is stopped, run in a terminal of its own;
- ``gpu``: needs an NVIDIA GPU; without one every command must fail with an error that says so;
- ``recorded``: needs what a ``gpu`` block of the page wrote; left out without a GPU;
- ``torch``: needs PyTorch, which readers bring: the newcomer installs the version that the tests have;
- ``hours``: takes hours on a GPU; run there only where that is asked for;
- ``docker``, ``root``: needs a container engine, changes the machine; run only where that is asked for;
- ``postgres``: needs the PostgreSQL server that the lines name; left out (the contract suite starts one of its own);
- ``output``: no commands; what a command prints, or a grammar.

``sh`` blocks are commands and ``python`` blocks are pasted into one interpreter a page. Every other block needs
``output`` unless its language says that it is data (``http``, ``json``, ``toml``, a file's name after ``title=``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DATA_LANGUAGES = frozenset({"http", "json"})
NEEDS = frozenset(
    {
        "clone",
        "demo",
        "install",
        "terminal",
        "gpu",
        "recorded",
        "torch",
        "hours",
        "docker",
        "root",
        "postgres",
        "output",
    }
)
_BLOCK = re.compile(
    r"(?:^<!-- run: (?P<needs>[^>]*?) -->\n\n?)?^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page. ``title`` is the file that the reader saves it as, if the fence names one."""

    page: str
    line: int
    language: str
    title: str
    body: str
    needs: frozenset[str]

    @property
    def is_run(self) -> bool:
        """Whether a reader would run it, or save it as a file."""
        return "output" not in self.needs and (bool(self.title) or self.language not in DATA_LANGUAGES)

    def commands(self) -> list[str]:
        """The lines of a shell block as a shell takes them: continued lines joined, comments and empty lines left
        out."""
        joined = re.sub(r"\\\n\s*", "", self.body)
        lines: list[str] = []
        open_document = ""
        for line in joined.splitlines():
            if open_document:
                lines[-1] += "\n" + line
                open_document = "" if line == open_document else open_document
            elif line.strip() and not line.startswith("#"):
                lines.append(line)
                here = re.search(r"<<'?(\w+)'?", line)
                open_document = here[1] if here else ""
        return lines


def all_pages(root: Path) -> list[Path]:
    """README and every page under docs/, in order."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def blocks(path: Path, root: Path) -> Iterator[Block]:
    """The fenced blocks of a page in order. ValueError for a block that does not say what it is."""
    text = path.read_text(encoding="utf-8")
    page = str(path.relative_to(root))
    for actual in _BLOCK.finditer(text):
        line = text.count("\n", 0, actual.start("info")) + 1
        needs = frozenset((actual["needs"] or "").split())
        language, _, rest = actual["info"].partition(" ")
        title = rest.removeprefix("title=").strip(' "') if rest.startswith("title=") else ""
        if needs - NEEDS:
            raise ValueError(f"{page}:{line}: run: {' '.join(needs - NEEDS)}; known are {', '.join(sorted(NEEDS))}")
        block = Block(page, line, language, title, actual["body"], needs)
        if block.is_run and not title and language not in ("sh", "python"):
            raise ValueError(
                f"{page}:{line}: a block of {language or 'no language'} is neither run nor said to be output"
            )
        yield block
