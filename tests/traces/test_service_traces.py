"""Traces of the service: from the request to the job that works on it; and nothing at all where they are off."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.support import CPU, ODD, Service, kernel_record, serving
from tests.traces.kept_spans import KeptSpans, kept_spans
from tests.traces.trace_collector import collecting
from tests.waiting import PATIENCE_S
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.service import traces
from tirgemm.service.log_lines import JsonLines
from tirgemm.service.settings import Settings
from tirgemm.tuning.process import spans
from tirgemm.tuning_db import JobRequest

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def kept() -> Iterator[KeptSpans]:
    with kept_spans() as kept:
        yield kept


@pytest.fixture
def traced(kept: KeptSpans, tmp_path: Path) -> Iterator[tuple[Service, KeptSpans]]:
    with serving(tmp_path) as service:
        yield service, kept


def test_a_caller_s_trace_goes_on_from_the_request_to_the_job(traced: tuple[Service, KeptSpans]) -> None:
    service, kept = traced
    service.engine.gate.set()
    service.engine.fallback_gate.set()
    with service.worker():
        answer = service.post(headers={"traceparent": CALLER, "Prefer": "wait=100"})
        assert answer.status_code == 200
        (job,) = service.queue.jobs()
        service.wait_for(job.id, "done")
    request, worked = kept.one("POST /v1/kernels"), kept.one("job")
    assert {f"{span.context.trace_id:032x}" for span in (request, worked)} == {CALLER.split("-")[1]}
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == CALLER.split("-")[2]
    assert kept.path(worked) == ["job", "submit", "POST /v1/kernels"]
    assert worked.attributes is not None
    assert request.attributes is not None
    assert worked.attributes["tirgemm.job"] == request.attributes["tirgemm.job"] == job.id
    assert request.attributes["tirgemm.request"] == answer.headers["x-request-id"]
    assert worked.attributes["tirgemm.gemm"] == ODD


def test_a_known_answer_is_a_span_with_its_route(traced: tuple[Service, KeptSpans]) -> None:
    service, kept = traced
    kernel_record(service.store, JobRequest(Gemm.parse(ODD), CPU), search={"effort": "standard"})
    for _ in range(2):
        assert service.post(device=CPU.key).status_code == 200
    from_database_and_from_memory = kept.named("POST", 2)
    assert kept.names() == {"POST"}
    for attributes in [span.attributes or {} for span in from_database_and_from_memory]:
        assert (attributes["http.route"], attributes["http.response.status_code"]) == ("/v1/kernels", 200)


def test_a_job_that_fails_is_marked_so(traced: tuple[Service, KeptSpans]) -> None:
    service, kept = traced
    service.engine.gate.set()
    service.engine.fallback_gate.set()
    with service.worker():
        (job,) = [service.post("129x13x31:f16:nt", headers={"Prefer": "wait=0"}).json()["job"]]
        service.wait_for(job["id"], "failed")
    worked = kept.one("job")
    assert worked.status.status_code.name == "ERROR"
    assert worked.attributes is not None
    assert worked.attributes["error.type"] == "BuildFailed"
    assert not worked.events, "no message: it may hold paths"


def test_neither_probes_nor_addresses_with_keys_are_traced(traced: tuple[Service, KeptSpans]) -> None:
    service, kept = traced
    for path in ("/healthz", "/readyz", "/metrics", "/v1/jobs?api_key=abc"):
        service.http.get(path)
    service.http.get("/v1/jobs?limit=3")
    kept.one("GET /v1/jobs")
    assert kept.names() == {"GET /v1/jobs"}


def test_log_lines_name_the_trace(kept: KeptSpans) -> None:
    record = logging.LogRecord("tirgemm.worker", logging.INFO, __file__, 1, "words", None, None)
    assert '"trace"' not in JsonLines().format(record)
    with spans.under(CALLER):
        assert f'"trace": "{CALLER.split("-")[1]}"' in JsonLines().format(record)
    assert not kept.names()


def test_without_an_endpoint_nothing_is_loaded_and_a_span_is_nothing() -> None:
    code = """
import sys
import tirgemm.service.server.process, tirgemm.service.jobs.worker, tirgemm.tuning.set_tuning
from tirgemm.tuning.process import spans
from tirgemm.service import traces
from tirgemm.service.settings import Settings
with traces.traces_of(Settings(traces_endpoint=""), "process"):
    assert spans.installed() is None and spans.traceparent() is None
    assert spans.span("a", b=1) is spans.span("c") is spans.under(None)
    assert not traces.request_telemetry(lambda scope: False)["tracing"]
loaded = [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_collector_that_does_not_answer_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traces, "FLUSH_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = Settings.load(traces_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with traces.traces_of(settings, "process"), spans.span("work"):
            assert spans.traceparent() is not None
        assert "did not take the last ones within 0.2 s" in caplog.text
    assert spans.installed() is None


def test_what_is_left_at_the_end_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "FLUSH_SECONDS", PATIENCE_S)
    with collecting() as collector:
        settings = Settings.load(traces_endpoint=collector.url)
        with traces.traces_of(settings, "process"), spans.span("work"):
            assert collector.spans == []
        assert [(span.service, span.name) for span in collector.spans] == [("process", "work")]


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"TIRGEMM_TRACES_ENDPOINT\) is 'ftp://collector'"):
        Settings.load(traces_endpoint="ftp://collector")
