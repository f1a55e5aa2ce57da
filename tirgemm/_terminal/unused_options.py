"""Options that would do nothing beside another one, each refused by its name."""

from __future__ import annotations

from pathlib import Path

from tirgemm.errors import InvalidRequest


def require_unused(why: str, *options: tuple[str, object]) -> None:
    """Raise InvalidRequest for those of these options that were given; what is false or None was not."""
    given = [
        f"{name} {value}" if isinstance(value, int | str | Path) and value is not True else name
        for name, value in options
        if value
    ]
    if given:
        raise InvalidRequest(f"{why}: leave out {', '.join(given)}")
