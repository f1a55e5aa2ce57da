"""Spans of a child process, and those of its own children."""

from __future__ import annotations

import os

import pytest

from tirgemm.tuning.process import spans


def test_the_spans_of_a_child_process_are_listed_with_what_they_are_within() -> None:
    with spans.listed() as recorded:
        with spans.span("outer", level="full"):
            with spans.span("inner"):
                spans.annotate(count=3)
            with pytest.raises(ValueError, match="wrong"), spans.span("failing"):
                raise ValueError("wrong")
        assert spans.traceparent() is None
    assert [(span.name, span.parent, span.error) for span in recorded] == [
        ("outer", -1, ""),
        ("inner", 0, ""),
        ("failing", 0, "ValueError"),
    ]
    outer, inner, _ = recorded
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
    assert outer.attributes == {"level": "full", "process.pid": os.getpid()}
    assert inner.attributes == {"count": 3, "process.pid": os.getpid()}
    assert spans.installed() is None


def test_a_function_is_a_span_at_every_call() -> None:
    @spans.spanned("work")
    def work(value: int) -> int:
        return value + 1

    assert work(1) == 2
    with spans.listed() as recorded:
        assert work(2) + work(3) == 7
    assert [span.name for span in recorded] == ["work", "work"]
