"""Options that would do nothing beside another one, each refused by its name."""

from __future__ import annotations

from tirgemm.errors import InvalidRequest


def require_unused(why: str, *options: tuple[str, object]) -> None:
    """Raise InvalidRequest for the first of these options that was given; what is false or None was not."""
    for name, value in options:
        if value:
            raise InvalidRequest(f"{why}: leave out {name}")
