"""docs/adding-a-family.md names every member that a family must have or may have, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tirgemm.families import base

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-a-family.md"


def members(protocol: Any) -> set[str]:
    """The methods and properties that a protocol itself defines."""
    return {name for name in vars(protocol) if not name.startswith("_")}


def optional_protocols() -> list[Any]:
    """What a family may say beside the contract: the runtime-checkable protocols of ``base`` but ``Family``."""
    checkable = [each for each in vars(base).values() if getattr(each, "_is_runtime_protocol", False)]
    return [each for each in checkable if each.__module__ == base.__name__ and each is not base.Family]


def documented(head: str) -> list[str]:
    """The members in the first column of the page's table with this head, in order."""
    rows = PAGE.read_text().partition(f"{head}\n")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", rows, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_every_optional_member_is_described() -> None:
    protocols = optional_protocols()
    assert base.WithShortlist in protocols
    names = [name for protocol in protocols for name in members(protocol)]
    assert sorted(documented("| member | what it is for | without it |")) == sorted(names)


def test_every_required_member_is_described() -> None:
    assert sorted(documented("| member | what it says |")) == sorted(members(base.Family))
