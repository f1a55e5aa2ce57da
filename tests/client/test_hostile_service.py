"""A server that wants to exhaust its client, or to speak to its terminal: every attack ends in a typed error."""

from __future__ import annotations

import gzip
import itertools
import json
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_samples import SIGNER, certified
from tests.helpers.fake_service import JOB, FakeService, sse
from tests.helpers.raw_service import Script, answer, answering, head_of
from tests.waiting import PATIENCE_S
from tirgemm import Client, Gemm
from tirgemm._client import artifact_source, server_events
from tirgemm._client import http as http_layer
from tirgemm._client.server_events import StreamAllowance, parse_events, read_lines
from tirgemm.artifact import Signer
from tirgemm.errors import CorruptArtifact, ServiceError, ServiceUnreachable, TirgemmError, UntrustedArtifact
from tirgemm.progress import ProgressTracker

GEMM = Gemm.parse("33x17x19:f32:nt")
SHA256 = "0" * 64
CLEAR = "\x1b[2J\x1b]0;owned\x07\x9b31m"


def client(url: str, folder: Path, **options: Any) -> Client:
    usual: dict[str, Any] = {"trust": SIGNER.public, "cache_dir": folder, "timeout": PATIENCE_S, "patience": 0.0}
    return Client(url, **usual | options)


@contextmanager
def connected(script: Script, folder: Path, **options: Any) -> Iterator[Client]:
    """A client of a server that answers with ``script``."""
    with answering(script) as (url, _), client(url, folder, **options) as actual:
        yield actual


def saying(data: bytes) -> Script:
    return lambda _head: [data]


def again_and_again(piece: bytes, first: bytes = b"") -> Script:
    """A server that sends one thing for ever."""
    return lambda _head: itertools.chain([first], itertools.repeat(piece))


def slowly(data: bytes, first: bytes = b"") -> Script:
    """A server that sends a byte every hundredth of a second, and so meets every timeout of a single read."""
    pause = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield first
        for byte in itertools.cycle(data):
            pause.wait(0.01)
            yield bytes([byte])

    return lambda _head: pieces()


# -- bodies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip", "GZIP"])
def test_nothing_compressed_is_asked_for_or_unpacked(tmp_path: Path, encoding: str) -> None:
    bomb = gzip.compress(gzip.compress(bytes(50_000_000)))
    assert len(bomb) < 7000
    with (
        answering(lambda _head: [answer(bomb, f"Content-Encoding: {encoding}")]) as (url, heads),
        client(url, tmp_path) as actual,
    ):
        tracemalloc.start()
        try:
            for call in (actual.meta, lambda: actual.artifact(SHA256), lambda: list(actual.events(JOB))):
                with pytest.raises(ServiceError, match=r"Content-Encoding .* was not asked for; it is not read"):
                    call()
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()
    assert all(b"accept-encoding: identity" in head.lower() for head in heads)


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
def test_a_document_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    monkeypatch.setattr(http_layer, "MAX_DOCUMENT_BYTES", 2_000_000)
    head = head_of("Content-Type: application/json", status=status)
    with answering(again_and_again(b'"' + b"x" * 65535, head)) as (url, _), client(url, tmp_path) as actual:
        tracemalloc.start()
        try:
            with pytest.raises(ServiceError, match=r"answered with more than 2,000,000 bytes|answered 500: Internal"):
                actual.meta()
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("length", ["Content-Length: 1000000000000", "Transfer-Encoding: chunked"])
def test_an_artifact_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: str) -> None:
    monkeypatch.setattr(artifact_source, "MAX_ARTIFACT_BYTES", 100_000)
    endless = again_and_again(b"1000\r\n" + b"x" * 4096 + b"\r\n", head_of(length))
    with connected(endless, tmp_path) as actual, pytest.raises(CorruptArtifact, match="it is not downloaded"):
        actual.artifact(SHA256)
    assert not list(tmp_path.glob("*"))


# -- time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [b"", b"HTTP/1.1 200 OK\r\nX: ", head_of("Content-Length: 1000000"), head_of("Content-Type: text/event-stream")],
    ids=["status line", "header", "body", "body without length"],
)
def test_a_byte_now_and_then_does_not_put_the_deadline_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(http_layer, "SLOWEST_BYTES_PER_SECOND", 2**40)
    with answering(slowly(b"H", first)) as (url, _), client(url, tmp_path, timeout=0.2) as actual:
        for call in (actual.meta, actual.keys, lambda: actual.document(GEMM), lambda: actual.artifact(SHA256)):
            with pytest.raises(ServiceUnreachable):
                call()


def test_interim_answers_without_end_do_not_put_the_deadline_off(tmp_path: Path) -> None:
    endless = again_and_again(b"HTTP/1.1 100 Continue\r\n\r\n")
    with connected(endless, tmp_path, timeout=0.2) as actual, pytest.raises(ServiceUnreachable):
        actual.meta()


@pytest.mark.parametrize("data", [b"x", b": still here\n\n", b"data: 1\n"])
def test_events_that_come_a_byte_at_a_time_end_with_the_wait(tmp_path: Path, data: bytes) -> None:
    fake = FakeService()
    stream = slowly(data, head_of("Content-Type: text/event-stream"))

    def script(head: bytes) -> Any:
        path = head.split()[1].decode()
        if path.endswith("/events"):
            return stream(head)
        if path == "/v1/kernels":
            return [answer(json.dumps(fake.pending({})[1]).encode(), status="202 Accepted")]
        if path.startswith("/v1/artifacts/"):
            return [answer(fake.blobs[path.rpartition("/")[2]])]
        if path == "/v1/revocations":
            return [answer(b"{}", status="404 Not Found")]
        document = fake.job() if path.startswith("/v1/jobs/") else fake.kernels["fa11"]
        return [answer(json.dumps(document).encode())]

    with answering(script) as (url, _), client(url, tmp_path) as actual:
        assert actual.kernel(GEMM, wait=0.2).manifest.role == "fallback"


def test_whoever_can_do_without_an_answer_does_not_wait_for_a_body_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_layer, "QUICK_READ_SECONDS", 0.1)
    for first in (b"", head_of("Content-Length: 10")):
        hung, over = threading.Event(), time.monotonic() + PATIENCE_S / 2

        def silent(_head: bytes, first: bytes = first, hung: threading.Event = hung) -> Iterator[bytes]:
            yield first
            hung.wait(PATIENCE_S)

        with connected(silent, tmp_path) as actual:
            try:
                with pytest.raises(ServiceUnreachable, match="no answer from"):
                    actual._session.download("/v1/revocations", 100, quick=True)
            finally:
                hung.set()
        assert time.monotonic() < over


# -- events ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [b": x\n" * 100, b"data: 1\n\n" * 100, sse(1, "started"), b"\n" * 1000])
def test_events_without_end_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(server_events, "MAX_STREAM_BYTES", 300_000)
    head = head_of("Content-Type: text/event-stream")
    endless, words = again_and_again(piece, head), "sent more than 300,000 bytes of events for one job"
    with connected(endless, tmp_path) as actual, pytest.raises(ServiceError, match=words):
        for _event in actual.events(JOB):
            pass


def test_events_that_are_told_a_few_a_connection_without_end_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_events, "MAX_STREAM_BYTES", 2_000)
    numbers = itertools.count(1)

    def script(head: bytes) -> list[bytes]:
        if b"/events" in head:
            return [head_of("Content-Type: text/event-stream") + sse(next(numbers), "phase", detail="x" * 100)]
        return [answer(b'{"status": "running"}')]

    monkeypatch.setattr("tirgemm._client.watch.backoff", lambda _attempt: 0.0)
    with (
        connected(script, tmp_path, patience=100.0) as actual,
        pytest.raises(ServiceError, match="sent more than 2,000 bytes"),
    ):
        for _event in actual.events(JOB):
            pass


def test_a_batch_that_is_told_the_same_on_each_connection_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count(1)
    summary = {
        "id": "ba7c",
        "status": "running",
        "states": {"queued": 1},
        "gain": {"geomean": None, "kernels": 0},
        "created_at": "2026-01-02T03:04:05Z",
    }

    def script(head: bytes) -> list[bytes]:
        if b"/events" in head:
            return [head_of("Content-Type: text/event-stream") + sse(next(numbers), "progress", **summary)]
        return [answer(b'{"status": "running"}')]

    monkeypatch.setattr("tirgemm._client.watch.backoff", lambda _attempt: 0.0)
    monkeypatch.setattr("tirgemm._client.watch.STEADY_SECONDS", PATIENCE_S)
    with (
        connected(script, tmp_path, patience=0.2) as actual,
        pytest.raises(ServiceUnreachable, match="ended the event stream of batch ba7c before the batch did"),
    ):
        for _summary in actual.batch_progress("ba7c"):
            pass


@pytest.mark.parametrize("text", ["x", "data: y\n", "data\n"])
def test_a_line_and_an_event_are_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_events, "MAX_EVENT_BYTES", 10_000)
    chunks = itertools.repeat(text.encode())
    with pytest.raises(ServiceError, match="more than 10,000 bytes"):
        list(parse_events(read_lines(chunks, StreamAllowance("http://x"))))


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_lines_end_as_the_standard_says_wherever_the_stream_is_cut(size: int) -> None:
    data = "a\r\nb\rc\n\n\r\r\né\nlast".encode()
    chunks = (data[at : at + size] for at in range(0, len(data), size))
    assert list(read_lines(chunks, StreamAllowance("http://x"))) == ["a", "b", "c", "", "", "", "é"]


# -- odd documents and headers -----------------------------------------------------------------------

DEEP = b"[" * 200_000 + b"]" * 200_000
ODD = [
    DEEP,
    b'{"a": ' * 100_000 + b"1" + b"}" * 100_000,
    b'{"kernels": [' + b"9" * 100_000 + b"]}",
    b'{"id": ' + b"9" * 400 + b', "role": NaN}',
    b"\xff\xfe\x00",
    b"null",
    b'{"kernels": 7, "jobs": {"a": 1}, "keys": "x"}',
    b'{"kernels": [7], "jobs": [[]], "keys": [null]}',
    b'{"artifact": 7, "job": 7}',
    b'{"job": {"id": {"x": 1}}, "status": [1], "error": 7, "kernel": 7, "fallback": [1]}',
]


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("status", ["200 OK", "202 Accepted", "404 Not Found", "503 Service Unavailable"])
def test_a_document_that_makes_no_sense_is_a_typed_error(tmp_path: Path, body: bytes, status: str) -> None:
    with answering(lambda _head: [answer(body, status=status)]) as (url, _), client(url, tmp_path) as actual:
        for call in (
            lambda: actual.kernel(GEMM),
            actual.jobs,
            actual.kernels,
            actual.keys,
            lambda: list(actual.events(JOB)),
        ):
            with pytest.raises(TirgemmError):
                call()


@pytest.mark.parametrize(
    "header",
    [
        "Retry-After: \xb2",
        "Retry-After: " + "9" * 5000,
        "Retry-After: -1",
        "Content-Type: \xff\xfe",
        "Content-Encoding: \x1b[2J",
        "Set-Cookie: a=b; Domain=\xff",
        "Location: \xff:::",
        "Transfer-Encoding: gzip",
        "Content-Length: 0x10",
        "Content-Length: \xb2",
        "X: " + "y" * 200_000,
    ],
)
@pytest.mark.parametrize("status", ["200 OK", "301 Moved", "503 Service Unavailable", "99 Odd", "abc"])
def test_an_odd_header_is_a_typed_error(tmp_path: Path, header: str, status: str) -> None:
    odd = head_of(header, "Connection: close", status=status) + b"[]"
    with connected(lambda _head: [odd], tmp_path) as actual:
        for call in (actual.meta, lambda: actual.artifact(SHA256), lambda: list(actual.events(JOB))):
            with pytest.raises(TirgemmError) as caught:
                call()
            assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        DEEP,
        b'{"us": 1e999}',
        b'{"us": ' + b"9" * 400 + b"}",
        b'{"status": [1], "phase": {}}',
        b'{"best_us": NaN}',
        b"7",
    ],
)
@pytest.mark.parametrize("kind", ["started", "phase", "candidate", "batch", "fallback", "done", "\x1b[2J", "job"])
def test_an_odd_event_is_read_as_far_as_it_makes_sense(data: bytes, kind: str) -> None:
    stream = b"event: " + kind.encode() + b"\nid: \xc2\xb2\ndata: " + data + b"\n\n"
    (received,) = parse_events(read_lines(iter([stream]), StreamAllowance("http://x")))
    tracker = ProgressTracker("x")
    tracker(received.event)
    assert received.id == 0
    assert "\x1b" not in received.kind


def test_pages_without_end_are_given_up(tmp_path: Path) -> None:
    pages = json.dumps({"kernels": [], "next": "ff"}).encode()
    with answering(lambda _head: [answer(pages)]) as (url, heads), client(url, tmp_path) as actual:
        assert actual.kernels() == []
    assert len(heads) == 1
    long = json.dumps({"kernels": [FakeService().kernels["70ed"]] * 500, "next": "ff"}).encode()
    with answering(lambda _head: [answer(long)]) as (url, _), client(url, tmp_path) as actual:
        assert len(actual.kernels(limit=7)) == 7


# -- the terminal ------------------------------------------------------------------------------------


def test_nothing_that_a_server_says_steers_the_terminal(tmp_path: Path) -> None:
    evil, fake = {"id": CLEAR, CLEAR: [CLEAR]}, FakeService()
    documents = {"kernels": [fake.kernels["70ed"] | evil], "jobs": [fake.job() | evil], "next": None}
    body = json.dumps(documents, ensure_ascii=False).encode()
    with answering(lambda _head: [answer(body)]) as (url, _), client(url, tmp_path) as actual:
        for listed in (actual.kernels(), actual.jobs(), [actual.meta()]):
            text = json.dumps(listed, ensure_ascii=False)
            assert "owned" in text
            assert not [escape for escape in ("\x9b", "u001b", "u0007") if escape in text]
    problem = json.dumps({"detail": CLEAR * 1000, "code": CLEAR}).encode()
    for status, content in (("409 Conflict", problem), (f"500 {CLEAR[1:4]}\x9b31m", b"")):
        script = saying(answer(content, status=status))
        with connected(script, tmp_path) as actual, pytest.raises(ServiceError) as caught:
            actual.meta()
        assert not set("\x1b\x07\x9b") & set(str(caught.value) + str(caught.value.problem))
        assert len(str(caught.value)) < 3000


def test_a_key_that_is_none_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    body = json.dumps({"keys": [{"key": CLEAR}, {"key": f"ed25519:{CLEAR}"}, {"key": 7}, {}]}).encode()
    with answering(lambda _head: [answer(body)]) as (url, _), Client(url, cache_dir=tmp_path) as actual:
        assert actual.keys() == ()
        with pytest.raises(UntrustedArtifact, match="shows no signing key"):
            actual.kernel(GEMM)


# -- the cache ---------------------------------------------------------------------------------------


def test_what_nobody_trusts_is_not_kept(tmp_path: Path) -> None:
    fake = FakeService(signer=Signer.generate())
    fake.answer = fake.ready
    with Client("http://service.test", trust=SIGNER.public, cache_dir=tmp_path, transport=fake) as actual:
        with pytest.raises(UntrustedArtifact):
            actual.kernel(GEMM)
        assert actual.artifact(fake.kernels["70ed"]["artifact"]["sha256"])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_document_that_is_mostly_junk_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeService()
    fake.answer = lambda _body: (200, fake.kernels["70ed"] | {"junk": "x" * 2_000_000})
    with Client("http://service.test", trust=SIGNER.public, cache_dir=tmp_path, transport=fake) as actual:
        assert actual.kernel(GEMM).gemm == GEMM
        assert actual.cached(GEMM) is None
    assert "it is not kept in the cache" in caplog.text
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 2 * len(certified(GEMM)) + 100_000
