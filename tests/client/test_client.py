"""The client against a service that answers, breaks and lies: what is returned, retried, resumed and refused."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest

from tests.helpers.artifact_samples import SIGNER, operands
from tests.helpers.fake_service import EVENTS, JOB, FakeService, sse
from tests.waiting import PATIENCE_S
from tirgemm import Client, Gemm, Range
from tirgemm._client import http as http_layer
from tirgemm._client import watch
from tirgemm._client.arguments import Trusted
from tirgemm._client.server_events import parse_events
from tirgemm.artifact import Signer, Trust
from tirgemm.detect import device
from tirgemm.errors import (
    Cancelled,
    CorruptArtifact,
    InvalidGemm,
    InvalidRequest,
    MismatchedArtifact,
    ServiceError,
    ServiceUnreachable,
    UntrustedArtifact,
)
from tirgemm.events import Downloaded, Event

URL = "http://service.test"
SHAPE: dict[str, Any] = {"m": 33, "n": 17, "k": 19, "dtype": "f32"}
STREAM = f"/v1/jobs/{JOB}/events"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a millisecond, so that retries cost nothing."""
    for module in (http_layer, watch):
        monkeypatch.setattr(module, "backoff", lambda _attempt: 0.001)
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.001)


@pytest.fixture
def fake() -> FakeService:
    return FakeService()


@pytest.fixture
def client(fake: FakeService, tmp_path: Path) -> Iterator[Client]:
    with Client(URL, trust=SIGNER.public, cache_dir=tmp_path, patience=PATIENCE_S, transport=fake) as actual:
        yield actual


def test_a_kernel_that_is_there_is_loaded_and_right(client: Client, fake: FakeService) -> None:
    fake.answer = fake.ready
    kernel = client.kernel(**SHAPE)
    tensors, product = operands(fake.gemm)
    assert np.array_equal(kernel(tensors["a"], tensors["b"]), product)
    (request,) = fake.sent("POST", "/v1/kernels")
    assert request.read()
    assert b'"gemm":"33x17x19:f32:nt"' in request.content
    assert device("cpu").key.encode() in request.content
    assert b"budget" not in request.content
    assert b"verify" not in request.content


def test_a_second_request_comes_from_the_cache(client: Client, fake: FakeService) -> None:
    fake.answer = fake.ready
    told: list[Event] = []
    client.kernel(fake.gemm, on_event=told.append)
    sha256 = fake.kernels["70ed"]["artifact"]["sha256"]
    size = len(fake.blobs[sha256])
    assert [event.bytes for event in told if isinstance(event, Downloaded)] == [1000, size]
    client.kernel(str(fake.gemm))
    assert len(fake.sent("GET", f"/v1/artifacts/{sha256}")) == 1


def test_a_damaged_cache_is_downloaded_again(
    client: Client, fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answer = fake.ready
    client.kernel(**SHAPE)
    (file,) = client.cache.folder.glob("*.tirgemm")
    file.write_bytes(file.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        client.kernel(**SHAPE)
    assert "is damaged" in caplog.text
    assert len(file.read_bytes()) == fake.kernels["70ed"]["artifact"]["bytes"]


def test_a_cache_that_cannot_be_written_only_warns(
    fake: FakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answer = fake.ready
    (tmp_path / "file").write_text("no folder")
    with Client(URL, trust=SIGNER.public, cache_dir=tmp_path / "file" / "cache", transport=fake) as client:
        assert client.kernel(**SHAPE).gemm == fake.gemm
    assert "is not kept in the cache" in caplog.text


def test_what_was_swapped_on_the_way_is_refused_and_not_kept(client: Client, fake: FakeService) -> None:
    fake.answer = fake.ready
    sha256 = fake.kernels["70ed"]["artifact"]["sha256"]
    fake.blobs[sha256] = fake.blobs[fake.kernels["fa11"]["artifact"]["sha256"]]
    with pytest.raises(CorruptArtifact, match="damaged or swapped"):
        client.kernel(**SHAPE)
    assert not list(client.cache.folder.glob("*"))


def test_a_batch_whose_answer_is_lost_is_sent_again_as_the_same_request(client: Client, fake: FakeService) -> None:
    fake.broken["/v1/batches"] = [httpx.ReadError("reset"), 503]
    assert client.submit_batch([fake.gemm])["id"] == "ba7c"
    lost, refused, answered = fake.sent("POST", "/v1/batches")
    keys = [request.headers["idempotency-key"] for request in (lost, refused, answered)]
    assert keys == [keys[0]] * 3
    assert re.fullmatch(r"[0-9a-f]{32}", keys[0])
    assert lost.content == answered.content
    client.submit_batch([fake.gemm])
    assert fake.sent("POST", "/v1/batches")[-1].headers["idempotency-key"] != keys[0], "another request"


@pytest.mark.parametrize(
    ("first", "is_deleted"),
    [(httpx.ReadError("reset"), True), (502, True), (503, False), (httpx.ConnectError("refused"), False), (404, False)],
    ids=["reset", "gateway", "busy", "not sent", "answered"],
)
def test_a_kernel_that_is_gone_was_deleted_where_the_answer_to_that_was_lost(
    tmp_path: Path, first: Exception | int, is_deleted: bool
) -> None:
    answers = [404, first]

    def answer(_request: httpx.Request) -> httpx.Response:
        status = answers.pop()
        if isinstance(status, Exception):
            raise status
        return httpx.Response(status, json={"code": "kernel_not_found", "detail": "there is no kernel 'aa'"})

    expected = nullcontext() if is_deleted else pytest.raises(ServiceError, match="there is no kernel 'aa'")
    with Client(URL, cache_dir=tmp_path, transport=httpx.MockTransport(answer)) as client, expected:
        client.delete("aa")


def test_a_kernel_for_another_problem_is_refused(client: Client, fake: FakeService) -> None:
    fake.answer = fake.ready
    with pytest.raises(MismatchedArtifact, match="request for 34x17x19:f32:nt with a kernel for 33x17x19:f32:nt"):
        client.kernel(34, 17, 19, dtype="f32")


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, "ab", "", "f" * 64 + "\n"])
def test_an_artifact_name_that_is_no_hash_never_becomes_a_path(client: Client, name: str) -> None:
    with pytest.raises(CorruptArtifact, match="is not a SHA-256"):
        client.artifact(name)


def test_a_body_without_end_is_not_downloaded(
    client: Client, fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tirgemm._client.artifact_source.MAX_ARTIFACT_BYTES", 999)
    with pytest.raises(CorruptArtifact, match="it is not downloaded"):
        client.artifact(fake.kernels["70ed"]["artifact"]["sha256"])


def test_nobody_is_trusted_until_the_user_says_so(
    fake: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    fake.answer = fake.ready
    client = Client(URL, cache_dir=tmp_path, transport=fake)
    with pytest.raises(UntrustedArtifact, match=re.escape(f"tirgemm trust add {URL} {SIGNER.public}")):
        client.kernel(**SHAPE)
    with pytest.raises(UntrustedArtifact, match="not with"):
        client.trust_server(Signer.generate().public)
    assert not Trust.default().keys
    assert client.trust_server() == (SIGNER.public,)
    assert client.kernel(**SHAPE).gemm == fake.gemm
    assert Client(URL, cache_dir=tmp_path, transport=fake).kernel(**SHAPE).gemm == fake.gemm


def test_trust_is_a_key_keys_a_file_or_nobody(tmp_path: Path) -> None:
    other = Signer.generate().public
    file = tmp_path / "keys"
    Trust.file(file).add(other)
    cases: list[tuple[Trusted, set[str]]] = [
        (SIGNER.public, {SIGNER.public}),
        ([SIGNER.public, other], {SIGNER.public, other}),
        (str(file), {other}),
        (file, {other}),
        ([], set()),
        (Trust.of(other), {other}),
    ]
    for given, keys in cases:
        assert Client(URL, trust=given, cache_dir=tmp_path).trust.keys == keys


def test_a_job_is_followed_to_its_kernel(client: Client, fake: FakeService) -> None:
    told: list[str] = []
    kernel = client.kernel(
        **SHAPE, budget={"trials": 4, "seconds": 9}, seed=5, on_event=lambda event: told.append(event.kind)
    )
    assert kernel.manifest.role == "tuned"
    assert told[:5] == ["started", "fallback", "candidate", "selected", "done"]
    (request,) = fake.sent("POST", "/v1/kernels")
    assert b'"budget":{"trials":4,"seconds":9}' in request.content
    assert b'"seed":5' in request.content


@pytest.mark.parametrize(
    "seconds", [{"timeout": -1}, {"timeout": 0}, {"timeout": float("inf")}, {"timeout": "x"}, {"patience": -1}]
)
def test_seconds_that_nobody_can_wait_are_refused(tmp_path: Path, seconds: dict[str, Any]) -> None:
    ((name, value),) = seconds.items()
    with pytest.raises(InvalidRequest, match=f"{name} is {value!r}; it must be a number of seconds"):
        Client(URL, cache_dir=tmp_path, **seconds)


def test_progress_is_shown_on_request_beside_the_caller_s_own_handler(
    client: Client, fake: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    client.kernel(**SHAPE, progress=True, on_event=lambda event: told.append(event.kind))
    said = capsys.readouterr()
    assert "33x17x19:f32:nt: starting\n" in said.err
    assert "done, the search's best 9.50 us" in said.err
    assert "downloading" in said.err
    assert said.out == ""
    assert told[:5] == ["started", "fallback", "candidate", "selected", "done"]
    fake.status, fake.streams = "running", [list(EVENTS)]
    client.kernel(**SHAPE)
    assert capsys.readouterr().err == "", "a script is not talked to unasked"


def test_a_service_that_restarts_is_waited_for(client: Client, fake: FakeService) -> None:
    refused = httpx.ConnectError("connection refused")
    fake.broken = {"/v1/kernels": [refused, 503], STREAM: [refused, 502], f"/v1/jobs/{JOB}": [503]}
    assert client.kernel(**SHAPE).manifest.role == "tuned"


def test_a_service_that_stays_away_is_a_clear_error(fake: FakeService, tmp_path: Path) -> None:
    fake.broken = {path: [httpx.ConnectError("connection refused")] * 10_000 for path in ("/v1/kernels", STREAM)}
    client = Client(URL, trust=[], cache_dir=tmp_path, patience=0.6, transport=fake)
    with pytest.raises(ServiceError, match=r"no answer from http://service.test within 1 s \(connection refused\)"):
        client.kernels()
    with pytest.raises(ServiceError, match="no answer from"):
        list(client.events(JOB))


def test_a_download_that_breaks_begins_again(client: Client, fake: FakeService) -> None:
    fake.answer = fake.ready
    fake.broken[fake.kernels["70ed"]["artifact"]["url"]] = [httpx.ReadError("reset"), 503]
    assert client.kernel(**SHAPE).gemm == fake.gemm


def test_the_fallback_is_taken_as_soon_as_it_is_there(client: Client, fake: FakeService) -> None:
    assert client.kernel(**SHAPE, wait="fallback").manifest.role == "fallback"
    assert not fake.sent("GET", f"/v1/jobs/{JOB}"), "the event named it"
    fake.answer = lambda body: (202, fake.pending(body)[1] | {"fallback": fake.kernels["fa11"]})
    streams = len(fake.sent("GET", STREAM))
    assert client.kernel(**SHAPE, wait="fallback").manifest.role == "fallback"
    assert len(fake.sent("GET", STREAM)) == streams, "the answer held it"


def test_after_some_seconds_the_fallback_is_taken(client: Client, fake: FakeService) -> None:
    def slow() -> Iterator[bytes]:
        yield EVENTS[0]
        while True:
            time.sleep(0.02)
            yield b": keep-alive\n\n"

    fake.streams = [slow()]
    started = time.monotonic()
    assert client.kernel(**SHAPE, wait=0.2).manifest.role == "fallback", "though the stream never ends"
    assert time.monotonic() - started > 0.15


def test_a_job_that_fails_or_is_cancelled_says_so(client: Client, fake: FakeService) -> None:
    fake.streams, fake.status = [[sse(1, "failed")]], "failed"
    fake.error = {"code": "unsupported", "detail": "no family writes it"}
    with pytest.raises(ServiceError, match="failed: no family writes it") as caught:
        client.kernel(**SHAPE)
    assert caught.value.problem["code"] == "unsupported"
    fake.streams = [[sse(1, "cancelled")]]
    assert client.cancel(JOB)["status"] == "cancelled"
    with pytest.raises(Cancelled, match=f"job {JOB} for 33x17x19"):
        client.kernel(**SHAPE)


def test_a_problem_document_comes_with_the_error(client: Client, fake: FakeService) -> None:
    fake.answer = lambda _body: (409, {"code": "device_unavailable", "detail": "no worker has it", "status": 409})
    with pytest.raises(ServiceError, match="answered 409: no worker has it") as caught:
        client.kernel(**SHAPE)
    assert (caught.value.http_status, caught.value.problem["code"]) == (409, "device_unavailable")
    with pytest.raises(ServiceError, match="there is no such kernel"):
        client.kernel_document("beef")
    with pytest.raises(ServiceError, match="404"):
        list(client.events("absent"))


def test_what_is_no_tirgemm_service_is_named(tmp_path: Path) -> None:
    page = httpx.MockTransport(lambda _request: httpx.Response(200, text="<html>hello</html>"))
    with pytest.raises(ServiceError, match="is it a tirgemm service"):
        Client(URL, trust=[], cache_dir=tmp_path, transport=page).meta()
    gone = httpx.MockTransport(lambda _request: httpx.Response(500, text="oops"))
    with pytest.raises(ServiceError, match="answered 500: Internal Server Error"):
        Client(URL, trust=[], cache_dir=tmp_path, transport=gone).meta()
    for url in ("service.test", "ftp://x", "http://", "http://[", ""):
        with pytest.raises(InvalidRequest, match="is not a URL"):
            Client(url, trust=[], cache_dir=tmp_path)


def test_an_answer_that_lacks_what_it_must_name_is_refused(client: Client, fake: FakeService) -> None:
    fake.answer = lambda _body: (202, {"status": "building"})
    with pytest.raises(ServiceError, match="named no job"):
        client.kernel(**SHAPE)
    fake.answer = lambda _body: (200, {"id": "1"})
    with pytest.raises(ServiceError, match="names no artifact"):
        client.kernel(**SHAPE)


def test_bad_input_is_refused_before_anything_is_sent(client: Client, fake: FakeService) -> None:
    with pytest.raises(InvalidGemm, match="must be from 1"):
        client.kernel(0, 3, 5)
    with pytest.raises(InvalidGemm, match="dtype is 'f8'"):
        client.kernel(1, 3, 5, dtype="f8")
    with pytest.raises(InvalidGemm, match="unknown gemm field 'colour'"):
        client.kernel(1, 3, 5, colour="red")
    with pytest.raises(InvalidGemm):
        client.kernel(cast(Any, 2.5), 3, 5)
    with pytest.raises(InvalidRequest, match="n and k are missing"):
        client.kernel(7, n=9)
    with pytest.raises(InvalidRequest, match="not both"):
        client.kernel("7x9x11", dtype="f16")
    with pytest.raises(InvalidRequest, match=r"m \(number or Range\), n, k"):
        client.kernel("1..7", 9, 11)
    with pytest.raises(InvalidRequest, match="regime is 'fast'"):
        client.kernel(1, 3, 5, regime="fast")
    for wait in (-1, "soon", None):
        with pytest.raises(InvalidRequest, match="wait is"):
            client.kernel(1, 3, 5, wait=cast(Any, wait))
    assert not fake.requests


def test_sizes_may_be_numpy_integers_and_m_a_range(client: Client, fake: FakeService) -> None:
    fake.answer = lambda body: (409, {"detail": body["gemm"]})
    with pytest.raises(ServiceError, match=r"33x17x19:f32:nt"):
        client.kernel(np.int64(33), np.int32(17), np.uint8(19), dtype="f32")
    with pytest.raises(ServiceError, match=r"1\.\.33x17x19:f16:nn:alpha"):
        client.kernel(Range(1, 33), 17, 19, layout="nn", alpha=True, device="sm_90a")
    with pytest.raises(ServiceError, match=r"5x7x9:f16:tt"):
        client.kernel(Gemm(5, 7, 9, layout="tt"), device=device("sm_80"))
    sent = fake.sent("POST", "/v1/kernels")
    assert [b'"sm_90a"' in sent[1].content, b'"sm_80"' in sent[2].content] == [True, True]


def test_what_may_be_waited_for_is_said(client: Client, fake: FakeService) -> None:
    client.submit(fake.gemm)
    client.submit(fake.gemm, prefer_wait=7)
    client.submit(fake.gemm, prefer_wait=None, retune=True, verify=False)
    sent = fake.sent("POST", "/v1/kernels")
    assert [request.headers.get("prefer") for request in sent] == ["wait=0", "wait=7", None]
    bodies = [json.loads(request.content) for request in sent]
    assert "retune" not in bodies[0]
    assert "verify" not in bodies[0]
    assert (bodies[2]["retune"], bodies[2]["verify"]) == (True, False)


def test_every_page_of_kernels_is_read_up_to_the_limit(client: Client) -> None:
    assert [kernel["id"] for kernel in client.kernels()] == ["70ed", "fa11"]
    assert [kernel["id"] for kernel in client.kernels(1)] == ["70ed"]


def test_events_are_parsed_as_the_standard_says() -> None:
    text = (
        ': hello\nid: 7\nevent: a\ndata: {"x":\ndata: 1}\n\ndata:plain\nretry: 5\nunknown: 3\n\nid: '
        "8\n\nid: nine\nevent: b\ndata: [2]\n\ndata: {}"
    )
    events = list(parse_events(iter(text.split("\n"))))
    assert [(e.id, e.kind, e.data) for e in events] == [
        (7, "a", {"x": 1}),
        (7, "message", {"text": "plain"}),
        (8, "b", {"value": [2]}),
    ]


def test_a_client_may_be_closed_while_it_waits(fake: FakeService, tmp_path: Path) -> None:
    client = Client(URL, trust=[], cache_dir=tmp_path, transport=fake)
    assert client.meta() == {"version": "0.1.0"}
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.meta()
    with pytest.raises(ServiceUnreachable, match=r"this client of .* was closed"):
        client.meta()
