"""Options of ``tirgemm get`` that cannot be given together with ``--locked``, each refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirgemm.errors import InvalidRequest


def refuse_search_options(
    waiting: Mapping[str, Any], searching: Mapping[str, Any], queueing: Mapping[str, Any]
) -> None:
    """Raise InvalidRequest where one of these options was given, with the value and the reason of each; None and False
    are of those that were not."""
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
