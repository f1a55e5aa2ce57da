"""``observed``: a function whose calls a test observes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def observed(function: Callable[..., Any], observer: Callable[..., object]) -> Callable[..., Any]:
    """Calls ``observer`` with the same arguments, then ``function``, whose result it returns."""

    def call(*given: Any, **named: Any) -> Any:
        observer(*given, **named)
        return function(*given, **named)

    return call
