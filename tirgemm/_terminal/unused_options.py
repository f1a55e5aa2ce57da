"""Options that would do nothing beside another one, each refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def refuse_search_options(
    waiting: Mapping[str, Any], searching: Mapping[str, Any], queueing: Mapping[str, Any]
) -> None:
    """Raise InvalidRequest where one of these options was given beside ``--locked``, with the value and the reason of
    each; None and False are of those that were not."""
    kinds = (
        (waiting, "as no tuning is waited for"),
        (searching, "as nothing is searched for"),
        (queueing, "as no job is queued"),
    )
    refused = []
    for options, reason in kinds:
        given = [_words(name, value) for name, value in options.items() if value is not None and value is not False]
        refused += [f"{', '.join(given)} {reason}"] if given else []
    if refused:
        raise InvalidRequest(
            "--locked takes what is locked and tunes nothing: leave out what concerns a search: " + "; ".join(refused)
        )


def _words(name: str, value: Any) -> str:
    return name if value is True else f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
