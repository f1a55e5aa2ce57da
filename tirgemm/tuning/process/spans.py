"""Spans: the named stretches of time of a trace, over the processes that work on one request.

Code says what it does with ``span``; who wants to know installs a ``Recorder``. Without one a span is nothing. A child
process records into a ``SpanList``, which it sends with its answer: nothing is exported while it measures. One that
has children of its own takes their spans over first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
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
    """The spans of a child process, which does one thing at a time, in whatever threads. ``parent`` is the traceparent
    of what asked for them, where its own children are to record theirs, too."""

    def __init__(self, parent: str | None = None) -> None:
        self.spans: list[ChildSpan] = []
        self._parent = parent
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

    def traceparent(self) -> str | None:
        return self._parent

    def under(self, traceparent: str) -> AbstractContextManager[None]:
        del traceparent  # who asked for the list continues its trace
        return _NOTHING

    def adopt(self, spans: Sequence[ChildSpan]) -> None:
        first = len(self.spans)
        self.spans += [
            replace(span, parent=self._current if span.parent < 0 else first + span.parent) for span in spans
        ]


_recorder: Recorder | None = None


def install(recorder: Recorder | None) -> None:
    """Have ``recorder`` keep this process's spans from now on; None: nobody."""
    global _recorder
    _recorder = recorder


def installed() -> Recorder | None:
    """Who keeps the spans of this process."""
    return _recorder


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
    return None if _recorder is None else _recorder.traceparent()


def under(parent: str | None) -> AbstractContextManager[None]:
    """Continue the trace of a ``traceparent`` within the block."""
    return _NOTHING if _recorder is None or parent is None else _recorder.under(parent)


def adopt(spans: Sequence[ChildSpan]) -> None:
    """Take a child process's spans over, into the current one."""
    if _recorder is not None:
        _recorder.adopt(spans)


@contextmanager
def listed(parent: str | None = None) -> Iterator[list[ChildSpan]]:
    """The spans of the block, for the process that asked for them; with its ``traceparent`` those of the processes that
    are asked within the block, too."""
    before, spans = _recorder, SpanList(parent)
    install(spans)
    try:
        yield spans.spans
    finally:
        install(before)


def relayed(parent: str | None) -> AbstractContextManager[list[ChildSpan]]:
    """As ``listed``, between the process that asked and those that are asked; nothing is kept where there is no
    trace."""
    return nullcontext([]) if parent is None else listed(parent)
