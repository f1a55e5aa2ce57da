"""``noted``: a function of each of whose calls something is told first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def noted(function: Callable[..., Any], note: Callable[..., object]) -> Callable[..., Any]:
    """``function``, behind ``note`` of the same arguments."""

    def call(*given: Any, **named: Any) -> Any:
        note(*given, **named)
        return function(*given, **named)

    return call
