"""Map of the packages, read from the source: modules, lines, and which packages each imports.

Names in the last column lack their ``tirgemm.``; the problem, device and other values of ``tirgemm`` itself are left
out.

    python scripts/package_map.py                # write the table of docs/architecture.md, between its markers
    python scripts/package_map.py --check        # is it as the source is? lines are not compared
    python scripts/package_map.py --print DIR    # print the table of another checkout, such as an earlier one
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"(<!-- package-map -->\n)(.*?)(<!-- /package-map -->)", re.DOTALL)
# Folders of a checkout that hold Python; the first two are also linked into the third, under which they are imported.
FOLDERS = ("service", "tuning_db", "tirgemm", "benchmarks", "verification", "scripts")
LINKED = ("service", "tuning_db")


@dataclass
class PackageSummary:
    """One folder of modules."""

    modules: int = 0
    lines: int = 0
    imports: set[str] = field(default_factory=set)


def package_name(folder: Path) -> str:
    """``service/http`` of a folder, relative to the checkout, as modules are imported: ``tirgemm.service.http``."""
    name = ".".join(folder.parts)
    return f"tirgemm.{name}" if folder.parts[0] in LINKED else name


def imported(tree: ast.AST) -> Iterator[str]:
    """Every dotted name that a module imports, ``from x import y`` as x and as x.y."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages(root: Path) -> dict[str, PackageSummary]:
    """The packages of a checkout by name."""
    by_name: dict[str, PackageSummary] = defaultdict(PackageSummary)
    names: dict[str, set[str]] = defaultdict(set)
    for top in FOLDERS:
        for path in sorted((root / top).rglob("*.py")):
            folder = path.relative_to(root).parent
            if any((root / part).is_symlink() for part in [folder, *folder.parents]):
                continue
            text = path.read_text()
            package = by_name[package_name(folder)]
            package.modules += path.name != "__init__.py"
            package.lines += len(text.splitlines())
            names[package_name(folder)].update(imported(ast.parse(text)))
    for name, package in by_name.items():
        for dotted in names[name]:
            owner = next((p for p in _prefixes(dotted) if p in by_name), None)
            if owner not in (None, name, "tirgemm"):
                package.imports.add(str(owner))
    return dict(sorted(by_name.items()))


def _prefixes(dotted: str) -> Iterator[str]:
    parts = dotted.split(".")
    return (".".join(parts[:count]) for count in range(len(parts), 0, -1))


def table(root: Path) -> str:
    """The packages as a Markdown table."""
    by_name = packages(root)
    rows = [
        f"| `{name}` | {package.modules} | {package.lines:,} | {', '.join(map(_short, sorted(package.imports)))} |"
        for name, package in by_name.items()
    ]
    modules, lines = sum(p.modules for p in by_name.values()), sum(p.lines for p in by_name.values())
    total = f"| all {len(by_name)} packages | {modules} | {lines:,} | |"
    return "\n".join(["| package | modules | lines | imports |", "|---|---:|---:|---|", *rows, total, ""])


def _short(name: str) -> str:
    return name.removeprefix("tirgemm.")


def structure(text: str) -> list[list[str]]:
    """The cells of a table without those of the column of lines, which every change changes."""
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    return [row[:3] + row[4:] for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--print", type=Path, metavar="DIR", dest="other")
    options = parser.parse_args()
    if options.other:
        print(table(options.other))
        return 0
    page = PAGE.read_text()
    block = BLOCK.search(page)
    if block is None:
        sys.exit(f"{PAGE.name} has no markers of the package map")
    live = table(ROOT)
    if options.check:
        same = structure(block[2]) == structure(live)
        print("the map is as the source is" if same else "the map is out of date; run scripts/package_map.py")
        return 0 if same else 1
    PAGE.write_text(page[: block.start(2)] + live + page[block.end(2) :])
    return 0


if __name__ == "__main__":
    sys.exit(main())
