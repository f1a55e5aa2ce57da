"""Spans that are kept in memory, for as long as a test looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.waiting import until
from tirgemm.service.traces import kept_by


class KeptSpans:
    """The spans that have ended. One that another thread ends may do so after its work was seen: a request's ends after
    its answer was read."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    def names(self) -> set[str]:
        return {span.name for span in self.exporter.get_finished_spans()}

    def named(self, name: str, count: int) -> list[ReadableSpan]:
        """The ``count`` spans of a name, in the order in which they began, once they have ended. Raises AssertionError
        where there are more, or after a long wait for fewer."""
        until(lambda: len(self._ended(name)) >= count)
        spans = self._ended(name)
        assert len(spans) == count
        return sorted(spans, key=lambda span: span.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name, 1)
        return span

    def _ended(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def path(self, span: ReadableSpan) -> list[str]:
        """The names of a span and of those that it is within, as far as they have ended."""
        by_id = {known.context.span_id: known for known in self.exporter.get_finished_spans() if known.context}
        names = [span.name]
        while span.parent is not None and span.parent.span_id in by_id:
            span = by_id[span.parent.span_id]
            names.append(span.name)
        return names


@contextmanager
def kept_spans() -> Iterator[KeptSpans]:
    """Have this process's spans kept within the block."""
    kept, provider = KeptSpans(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept.exporter))
    with kept_by(provider):
        yield kept
