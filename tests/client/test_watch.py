"""The events of a job as the client follows them: streams that break, that end too soon, that are not there."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.helpers.artifact_samples import SIGNER
from tests.helpers.fake_service import EVENTS, JOB, FakeService, sse
from tests.waiting import PATIENCE_S
from tirgemm import Client
from tirgemm._client import http as http_layer
from tirgemm._client import watch
from tirgemm.errors import ClientClosed, ServiceUnreachable

STREAM = f"/v1/jobs/{JOB}/events"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@pytest.fixture
def fake() -> FakeService:
    return FakeService()


@pytest.fixture
def client(fake: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """One whose pauses are a millisecond."""
    for module in (http_layer, watch):
        monkeypatch.setattr(module, "backoff", lambda _attempt: 0.001)
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.001)
    with Client(
        "http://service.test", trust=SIGNER.public, cache_dir=tmp_path, patience=PATIENCE_S, transport=fake
    ) as actual:
        yield actual


def test_a_stream_that_breaks_is_resumed_where_it_broke(client: Client, fake: FakeService) -> None:
    lost = httpx.ReadError("connection reset")
    fake.streams = [[*EVENTS[:2], lost], [EVENTS[1], EVENTS[2]], [lost], [*EVENTS[3:]]]
    fake.broken[STREAM] = []
    events = list(client.events(JOB))
    assert [event.id for event in events] == [1, 2, 3, 4, 5], "each event comes once, whatever is sent again"
    assert [r.headers.get("last-event-id") for r in fake.sent("GET", STREAM)] == [None, "2", "3", "3"]


def test_streams_that_end_at_once_are_followed_while_they_bring_news_and_then_given_up(
    client: Client, fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STEADY_SECONDS", PATIENCE_S)
    monkeypatch.setattr(client._session, "patience", 0.0)
    fake.streams = [[sse(number, "phase", phase="measuring", detail=str(number))] for number in range(1, 50)]
    followed = client.events(JOB)
    assert [next(followed).id for _ in range(1, 50)] == list(range(1, 50))
    monkeypatch.setattr(client._session, "patience", 0.05)
    with pytest.raises(ServiceUnreachable, match=f"stream of job {JOB} before the job did.* put up with for 0.05 s"):
        next(followed)


def test_streams_that_stay_open_are_followed_though_nothing_happens(
    client: Client, fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STEADY_SECONDS", 0.0)
    monkeypatch.setattr(client._session, "patience", 0.0)
    fake.streams = [*[[b": keep-alive\n\n"] for _ in range(50)], list(EVENTS)]
    assert [event.kind for event in client.events(JOB)][-1] == "done"


def test_a_stream_is_not_steady_for_the_time_that_its_document_takes(
    client: Client, fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams that end at once, of a job whose document comes after a second: the clock is the watch's own."""
    now = 100.0

    def slow_document(*_: object) -> dict[str, str]:
        nonlocal now
        now += 2 * watch.STEADY_SECONDS
        assert now < 200, "it is followed as if its streams had been open for so long"
        return {"status": "running"}

    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(watch, "live_document", slow_document)
    monkeypatch.setattr(client._session, "patience", 5 * watch.STEADY_SECONDS)
    fake.streams = [[b": keep-alive\n\n"] for _ in range(20)]
    with pytest.raises(ServiceUnreachable, match="before the job did"):
        list(client.events(JOB))


def test_an_end_is_told_whatever_its_id(client: Client, fake: FakeService) -> None:
    """That of a job that ended under an older service has the id of the event before it."""
    fake.streams = [[*EVENTS[:-1], sse(4, "done", kernel="70ed")]]
    assert [event.kind for event in client.events(JOB)][-2:] == ["selected", "done"]
    fake.streams = [[sse(4, "done", kernel="70ed")]]
    assert [event.kind for event in client.events(JOB, after=4)] == ["done"]


def polled_until_done(client: Client, fake: FakeService) -> list[str]:
    """The kinds of the events of a job that is done once three have come."""
    seen: list[str] = []
    for event in client.events(JOB):
        seen.append(event.kind)
        if len(seen) == 3:
            fake.status = "done"
    return seen


def test_where_there_is_no_stream_the_job_is_polled(client: Client, fake: FakeService) -> None:
    fake.stream_status = 404
    assert polled_until_done(client, fake) == ["job", "job", "job", "job", "done"]


def test_where_a_proxy_keeps_the_stream_the_job_is_polled(client: Client, fake: FakeService) -> None:
    fake.broken[STREAM] = [httpx.ReadTimeout("timed out")]
    assert polled_until_done(client, fake) == ["job", "job", "job", "job", "done"]
    assert len(fake.sent("GET", STREAM)) == 1


def test_a_stream_that_was_there_is_asked_for_again_after_a_timeout(client: Client, fake: FakeService) -> None:
    late = httpx.ReadTimeout("timed out")

    def cut() -> Iterator[bytes | BaseException]:
        yield EVENTS[0]
        fake.broken[STREAM] = [late]
        yield late

    fake.streams = [cut(), EVENTS[1:]]
    assert [event.id for event in client.events(JOB)] == [1, 2, 3, 4, 5]


def test_a_service_that_answers_nothing_is_not_polled_for_ever(
    client: Client, fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client._session, "patience", 0.05)
    fake.broken = {path: [httpx.ReadTimeout("timed out")] * 10_000 for path in (STREAM, f"/v1/jobs/{JOB}")}
    with pytest.raises(ServiceUnreachable, match="timed out"):
        list(client.events(JOB))


def test_a_stream_that_is_asked_for_too_often_is_asked_for_again_when_the_service_says(
    client: Client, fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = {"code": "rate_limited", "detail": "the key was used too often"}
    refusals = [httpx.Response(429, json=problem, headers={"retry-after": "7"})]
    stream = fake._stream
    pauses: list[float] = []
    monkeypatch.setattr(fake, "_stream", lambda: refusals.pop() if refusals else stream())
    monkeypatch.setattr(client._session, "pause", pauses.append)
    assert [event.id for event in islice(client.events(JOB), 5)] == [1, 2, 3, 4, 5]
    assert pauses == [7.0]


def test_a_stream_that_ends_early_does_not_hide_the_end_of_the_job(client: Client, fake: FakeService) -> None:
    fake.streams = [[*EVENTS[:3]], []]
    fake.status = "done"
    assert client.kernel("33x17x19:f32:nt").manifest.role == "tuned"


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + EVENTS[0]])
def test_closing_a_client_ends_a_read_that_another_thread_waits_in(sent: bytes, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool, socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client, seen = Client(url, trust=[], cache_dir=tmp_path, timeout=20 * PATIENCE_S), queue.SimpleQueue[Any]()

        def read() -> None:
            for event in client.events(JOB):
                seen.put(event)

        reading = pool.submit(read)
        connection, _ = listener.accept()
        with connection:
            while not connection.recv(4096).endswith(b"\r\n\r\n"):
                pass
            connection.sendall(sent)
            if sent.endswith(EVENTS[0]):
                seen.get(timeout=PATIENCE_S)
            client.close()
            with pytest.raises(ClientClosed, match="was closed"):
                reading.result(PATIENCE_S)


def test_a_client_that_is_closed_while_a_job_is_followed_says_so(client: Client, fake: FakeService) -> None:
    def cut() -> Iterator[bytes | BaseException]:
        yield EVENTS[0]
        client.close()
        yield httpx.ReadError("connection reset")

    fake.streams = [cut()]
    with pytest.raises(ClientClosed, match="was closed"):
        list(client.events(JOB))
