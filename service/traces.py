"""OpenTelemetry traces of a service's processes, sent to a collector over OTLP; off, nothing of it is loaded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tirgemm._extras import missing_extra
from tirgemm._version import __version__
from tirgemm.tuning.process import spans
from tirgemm.tuning.process.spans import Attribute, ChildSpan

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from tirgemm.service.settings import Settings

logger = logging.getLogger("tirgemm.service")

# How long an end waits until what is left was sent: a collector that does not answer holds nobody up.
FLUSH_SECONDS = 2.0


class OpenTelemetrySpans:
    """Spans as OpenTelemetry's SDK keeps them."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self._tracer = provider.get_tracer("tirgemm", __version__)

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Attribute]) -> Iterator[None]:
        with self._tracer.start_as_current_span(
            name, attributes=_named(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                _fail(span, type(error).__name__)
                raise

    def annotate(self, attributes: Mapping[str, Attribute]) -> None:
        from opentelemetry.trace import get_current_span

        get_current_span().set_attributes(_named(attributes))

    def traceparent(self) -> str | None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier.get("traceparent")

    @contextmanager
    def under(self, traceparent: str) -> Iterator[None]:
        from opentelemetry.context import attach, detach
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        token = attach(TraceContextTextMapPropagator().extract({"traceparent": traceparent}))
        try:
            yield
        finally:
            detach(token)

    def adopt(self, spans: Sequence[ChildSpan]) -> None:
        from opentelemetry.trace import set_span_in_context

        own: list[Span] = []
        for child in spans:
            context = set_span_in_context(own[child.parent]) if child.parent >= 0 else None
            attributes = _named(child.attributes)
            own.append(self._tracer.start_span(child.name, context, attributes=attributes, start_time=child.start_ns))
        for child, span in zip(spans, own, strict=True):
            if child.error:
                _fail(span, child.error)
            span.end(child.end_ns)


def _named(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Attributes of ours under our name; those of OpenTelemetry's conventions have a dot."""
    return {name if "." in name else f"tirgemm.{name}": value for name, value in attributes.items()}


def _fail(span: Span, error: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", error)
    span.set_status(StatusCode.ERROR)


@contextmanager
def traces_of(settings: Settings, process: str) -> Iterator[None]:
    """Send the block's spans to ``settings.traces_endpoint``, if that is set, as those of the service ``process``.

    What the SDK itself reads of the environment holds, such as ``OTEL_TRACES_SAMPLER``. Raises MissingExtra.
    """
    if not settings.traces_endpoint:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise missing_extra("TIRGEMM_TRACES_ENDPOINT", "traces", str(error.name)) from error
    resource = Resource.create({"service.name": process, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    endpoint = f"{settings.traces_endpoint.rstrip('/')}/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    with kept_by(provider):
        try:
            yield
        finally:
            _flush(provider)


@contextmanager
def kept_by(provider: TracerProvider) -> Iterator[None]:
    """Have ``provider`` keep this process's spans within the block."""
    spans.install(OpenTelemetrySpans(provider))
    try:
        yield
    finally:
        spans.install(None)


def _flush(provider: TracerProvider) -> None:
    flusher = threading.Thread(target=provider.force_flush, name="traces", daemon=True)
    flusher.start()
    flusher.join(FLUSH_SECONDS)
    if flusher.is_alive():
        logger.warning("the collector of traces did not take the last ones within %g s", FLUSH_SECONDS)


def request_telemetry(excluded: Callable[[MutableMapping[str, Any]], bool]) -> TelemetryConfig:
    """FastAPI's settings for the spans of requests, which it makes itself: none where traces are off."""
    recorder = spans.installed()
    provider = recorder.provider if isinstance(recorder, OpenTelemetrySpans) else None
    return {
        "tracing": provider is not None,
        "tracer_provider": provider,
        "metrics": False,
        "logs": False,
        "operation_spans": False,
        "auto_configure": False,
        "exclude": excluded,
    }
