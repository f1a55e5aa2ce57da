"""Spans: the named stretches of time of a trace, over the processes that work on one request.

Code says what it does with ``span``; who wants to know installs a ``Recorder``. Without one a span is nothing. A child
process records into a ``SpanList``, which it sends with its answer: nothing is exported while it measures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Attribute = str | int | float | bool
_NOTHING = nullcontext()


@dataclass(slots=True)
class ChildSpan:
    """A span of a child process, in nanoseconds since 1970. ``parent`` is the place in the list of the span that it is
    within, -1 where there is none; ``error`` names the exception that ended it."""

    name: str
    parent: int
    start_ns: int
    end_ns: int = 0
    error: str = ""
    attributes: dict[str, Attribute] = field(default_factory=dict)


class Recorder(Protocol):
    """Who keeps the spans of a process. What is current is current in a thread or task."""

    def span(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[None]:
        """A span for as long as the block runs, within the current one."""
        ...

    def annotate(self, attributes: Mapping[str, Attribute]) -> None:
        """Say more of the current span."""
        ...

    def traceparent(self) -> str | None:
        """The current span as the header ``traceparent`` of W3C Trace Context has it; None where there is none."""
        ...

    def under(self, traceparent: str) -> AbstractContextManager[None]:
        """What begins within the block belongs to the span of this header."""
        ...

    def adopt(self, spans: Sequence[ChildSpan]) -> None:
        """Take a child process's spans over, into the current one."""
        ...


class SpanList:
    """The spans of a child process, which does one thing at a time and knows nothing of its trace."""

    def __init__(self) -> None:
        self.spans: list[ChildSpan] = []
        self._current = -1

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Attribute]) -> Iterator[None]:
        own = ChildSpan(name, self._current, time.time_ns(), attributes={**attributes, "process.pid": os.getpid()})
        self._current = len(self.spans)
        self.spans.append(own)
        try:
            yield
        except BaseException as error:
            own.error = type(error).__name__
            raise
        finally:
            own.end_ns, self._current = time.time_ns(), own.parent

    def annotate(self, attributes: Mapping[str, Attribute]) -> None:
        if self._current >= 0:
            self.spans[self._current].attributes.update(attributes)


_recorder: Recorder | SpanList | None = None


def install(recorder: Recorder | SpanList | None) -> None:
    """Have ``recorder`` keep this process's spans from now on; None: nobody."""
    global _recorder
    _recorder = recorder


def installed() -> Recorder | None:
    """Who keeps the traces of this process."""
    return None if isinstance(_recorder, SpanList) else _recorder


def span(name: str, **attributes: Attribute) -> AbstractContextManager[None]:
    """A span for as long as the block runs."""
    return _NOTHING if _recorder is None else _recorder.span(name, attributes)


def spanned(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose every call is a span."""

    def of(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with span(name):
                return function(*args, **kwargs)

        return call

    return of


def annotate(**attributes: Attribute) -> None:
    """Say more of the current span."""
    if _recorder is not None:
        _recorder.annotate(attributes)


def traceparent() -> str | None:
    """Where a trace is to be continued, in another thread or process; None where none is kept."""
    recorder = installed()
    return None if recorder is None else recorder.traceparent()


def under(parent: str | None) -> AbstractContextManager[None]:
    """Continue the trace of a ``traceparent`` within the block."""
    recorder = installed()
    return _NOTHING if recorder is None or parent is None else recorder.under(parent)


def adopt(spans: Sequence[ChildSpan]) -> None:
    """Take a child process's spans over, into the current one."""
    recorder = installed()
    if recorder is not None:
        recorder.adopt(spans)


@contextmanager
def listed() -> Iterator[list[ChildSpan]]:
    """The spans of the block, for the process that asked for them."""
    before, spans = _recorder, SpanList()
    install(spans)
    try:
        yield spans.spans
    finally:
        install(before)
