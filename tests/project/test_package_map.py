"""The map of docs/architecture.md is as the source is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.scripts import script

package_map = script("scripts/package_map.py")


def checkout(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_page_shows_the_packages_as_they_are() -> None:
    block = package_map.BLOCK.search(package_map.PAGE.read_text())
    assert package_map.structure(block[2]) == package_map.structure(package_map.table(package_map.ROOT))


def test_imports_are_of_packages_and_counted_anywhere_in_a_module(tmp_path: Path) -> None:
    root = checkout(
        tmp_path,
        {
            "tirgemm/__init__.py": "",
            "tirgemm/low/__init__.py": "",
            "tirgemm/low/a.py": "x = 1\n",
            "service/b.py": "from tirgemm.low import a\n",
            "service/deep/c.py": "def f():\n    import tirgemm.service.b\n",
        },
    )
    packages = package_map.packages(root)
    assert {name: sorted(p.imports) for name, p in packages.items()} == {
        "tirgemm": [],
        "tirgemm.low": [],
        "tirgemm.service": ["tirgemm.low"],
        "tirgemm.service.deep": ["tirgemm.service"],
    }
    assert (packages["tirgemm.low"].modules, packages["tirgemm.service.deep"].lines) == (1, 2)


@pytest.mark.parametrize(("change", "same"), [("x = 1\ny = 2\n", True), ("import tirgemm.low.d\n", False)])
def test_lines_may_differ_and_imports_may_not(tmp_path: Path, change: str, same: bool) -> None:
    root = checkout(tmp_path, {"tirgemm/low/a.py": "x = 1\n", "tirgemm/high/b.py": "x = 1\n", "tirgemm/low/d.py": ""})
    before = package_map.structure(package_map.table(root))
    (root / "tirgemm/high/b.py").write_text(change)
    assert (package_map.structure(package_map.table(root)) == before) is same
