"""Attacks on the server's sockets: headers without end, connections without number, readers that do not read."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.service.support import AUTHORITIES, CPU, ODD, Service, kernel_record, serving
from tests.waiting import PATIENCE_S, until
from tirgemm.gemm import Gemm
from tirgemm.service import log_lines
from tirgemm.service.server import limited_protocol
from tirgemm.service.server.connection_limits import RESERVED
from tirgemm.service.server.limited_protocol import LimitedProtocol
from tirgemm.service.settings import REQUEST_SECONDS
from tirgemm.tuning_db import JobRequest
from tirgemm.tuning_db.blobs import BlobStore

# The end of an answer of /healthz.
HEALTHY = b'{"status":"ok"}'


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Service]:
    """A service that takes eight connections."""
    with serving(tmp_path, max_connections=8) as actual:
        yield actual


def connect(service: Service, source: str = "127.0.0.1") -> socket.socket:
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S, source_address=(source, 0))


def answer_of(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of what the server says before it closes the connection."""
    data = b""
    while piece := receive(connection):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


def receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """What the server says up to ``end``, which may come in any number of pieces."""
    data = b""
    while end not in data:
        piece = receive(connection)
        assert piece, data
        data += piece
    return data


def check_problem(connection: socket.socket, status: int, code: str) -> dict[str, str]:
    actual, headers, body = answer_of(connection)
    document = json.loads(body)
    assert (actual, document["status"], document["code"]) == (status, status, code)
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert {"type", "title", "detail", "instance"} <= document.keys()
    return headers


@pytest.mark.parametrize("start", [b"GET /" + b"a" * 100, b"GET /healthz HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n"])
def test_headers_without_end_are_cut_off_at_64_kib(service: Service, start: bytes) -> None:
    line = b"X-A: b\r\n" if start.endswith(b"\n") else b"a" * 4096
    with connect(service) as connection:
        connection.sendall(start)
        sent = 0
        try:
            while sent < 300_000_000:
                connection.sendall(line * 100)
                sent += len(line) * 100
        except (BrokenPipeError, ConnectionResetError):
            sent = -1
        assert sent == -1, "the server reads on"
    assert service.http.get("/healthz").status_code == 200


def test_what_is_too_long_is_told_as_a_problem(service: Service) -> None:
    with connect(service) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"a" * (65 * 1024))
        check_problem(connection, 431, "headers_too_large")
    answer = service.http.get("/healthz", headers={f"X-{n}": "a" * 1000 for n in range(70)})
    assert (answer.status_code, answer.json()["code"]) == (431, "headers_too_large")
    assert service.http.get("/healthz", headers={f"X-{n}": "a" * 1000 for n in range(50)}).status_code == 200


def test_refused_connections_are_counted_and_told_a_few_times_a_minute(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(count: int) -> list[str]:
        caplog.clear()
        for _ in range(count):
            with connect(service) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"a" * (65 * 1024))
                check_problem(connection, 431, "headers_too_large")
        return [line for line in caplog.messages if "was refused" in line]

    caplog.set_level("INFO", "tirgemm.service")
    monkeypatch.setattr(log_lines, "REFUSAL_SECONDS", 1e9)
    (line,) = refuse(3)
    assert line.startswith("a connection of 127.0.0.1 was refused with 431: the headers are over")
    monkeypatch.setattr(log_lines, "REFUSAL_SECONDS", 0.0)
    assert " was refused with 431, and 2 before it: " in refuse(1)[0]
    assert refused(service, 431) == 4


def test_uvicorn_has_no_line_for_each_request_that_is_none(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(log_lines, "REFUSAL_SECONDS", 1e9)
    for _ in range(3):
        with connect(service) as connection:
            connection.sendall(b"hello\r\n\r\n")
            check_problem(connection, 400, "bad_request")
        with ask(service, "/healthz", "Connection: upgrade, close\r\nUpgrade: websocket\r\n") as connection:
            assert answer_of(connection)[0] == 200
    told = [record.name for record in caplog.records if record.levelname != "DEBUG" and "refused" in record.message]
    assert told == ["tirgemm.service"]
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []


def refused(service: Service, status: int) -> float:
    """How many connections /metrics says were refused with this status."""
    with ask(service, "/metrics", "Connection: close\r\n") as connection:
        told = answer_of(connection)[2].decode()
    counted = rf'^tirgemm_requests_total{{method="none",route="refused",status="{status}"}} (.*)$'
    return sum(map(float, re.findall(counted, told, re.MULTILINE)))


@pytest.mark.parametrize("start", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: y"])
def test_headers_that_do_not_come_are_408(service: Service, monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    assert LimitedProtocol.header_seconds == 30.0
    monkeypatch.setattr(LimitedProtocol, "header_seconds", 0.1)
    with connect(service) as connection:
        connection.sendall(start)
        check_problem(connection, 408, "request_timeout")
    monkeypatch.undo()
    assert refused(service, 408) == 1


def test_headers_that_come_a_byte_at_a_time_are_408(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.02):
            try:
                connection.sendall(b"a")
            except OSError:
                return

    with connect(service) as connection:
        connection.sendall(whole)
        assert b"200" in read_until(connection, HEALTHY), "the second request of a connection has as long as the first"
        monkeypatch.setattr(LimitedProtocol, "header_seconds", 0.3)
        connection.sendall(b"GET /")
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            read_until(connection, b" 408 ")
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01", b"hello\r\n\r\n", b"GET /a b HTTP/1.1", b"\0" * 50])
def test_what_is_no_http_is_a_problem_too(service: Service, data: bytes) -> None:
    with connect(service) as connection:
        connection.sendall(data + b"\r\n\r\n")
        check_problem(connection, 400, "bad_request")


def test_one_connection_more_than_the_limit_is_refused_and_a_free_one_is_taken_again(
    small: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitedProtocol, "reserved_seconds", 0.1)
    with ExitStack() as stack:
        held = [stack.enter_context(connect(small)) for _ in range(8)]
        for connection in held:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in read_until(connection, HEALTHY)
            connection.sendall(b"GET /")  # so that it is not idle
        for _ in range(3):
            with connect(small) as one_more:
                assert check_problem(one_more, 503, "too_many_connections")["retry-after"] == "1"
        held.pop().close()
        with httpx.Client(base_url=small.url, timeout=PATIENCE_S, verify=AUTHORITIES) as http:
            statuses = {http.get("/v1/keys").status_code for _ in range(1)}
            while statuses == {503}:
                statuses = {http.get("/v1/keys").status_code}
        assert statuses == {200}


def ask(service: Service, path: str, headers: str = "", source: str = "127.0.0.1") -> socket.socket:
    """A connection of its own, from a loopback address, with a request for ``path``."""
    connection = connect(service, source)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
    return connection


def status_of(service: Service, path: str, **options: str) -> int:
    with ask(service, path, **options) as connection:
        return int(read_until(connection, b"\r\n").split()[1])


def test_probes_are_answered_however_many_connections_are_held(small: Service) -> None:
    small.queue.register_worker("elsewhere:1:0", [CPU])
    with ExitStack() as stack:
        held = [stack.enter_context(connect(small)) for _ in range(8 + 3 * RESERVED)]
        for path in ("/healthz", "/readyz", "/metrics") * RESERVED:
            with ask(small, path) as probe:
                status, headers, _ = answer_of(probe)
                assert (status, headers["connection"]) == (200, "close"), path
        before = refused(small, 503)
        for path in ("/", "/v1/keys", "/healthz/", "/v1/jobs?healthz"):
            with ask(small, path) as other:
                assert check_problem(other, 503, "too_many_connections")["retry-after"] == "1"
        assert refused(small, 503) == before + 4
        for connection in held[8 : 8 + 2 * RESERVED]:
            check_problem(connection, 503, "too_many_connections")


@pytest.mark.parametrize("header", ["Content-Length: 9\r\n", "Transfer-Encoding: chunked\r\n"])
def test_a_connection_of_the_reserve_waits_for_no_body(small: Service, header: str) -> None:
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connect(small))
        with ask(small, "/healthz", header) as connection:
            check_problem(connection, 503, "too_many_connections")


def test_a_connection_of_the_reserve_that_asks_nothing_is_refused(
    small: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LimitedProtocol.reserved_seconds == 2.0
    monkeypatch.setattr(LimitedProtocol, "reserved_seconds", 0.1)
    monkeypatch.setattr(LimitedProtocol, "header_seconds", 1e6)
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connect(small))
        with connect(small) as silent:
            silent.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
            check_problem(silent, 503, "too_many_connections")


def test_one_address_cannot_take_all_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_protocol, "counted_address", lambda client: client[0])
    with serving(tmp_path, max_connections=8, max_connections_per_address=3) as service, ExitStack() as stack:
        held = [stack.enter_context(connect(service)) for _ in range(3)]
        with ask(service, "/v1/keys") as one_more:
            status, _, body = answer_of(one_more)
        assert status == 503
        assert json.loads(body)["detail"].startswith(
            "127.0.0.1 has 3 connections, which is the limit for one address ("
        )
        assert status_of(service, "/healthz") == 200, "a proxy probes from the address that it asks from"
        assert status_of(service, "/v1/keys", source="127.0.0.2") == 200
        held.pop().close()
        until(lambda: status_of(service, "/v1/keys") == 200)


def test_loopback_may_take_all_connections_as_a_proxy_may_stand_there(tmp_path: Path) -> None:
    with serving(tmp_path, max_connections=8, max_connections_per_address=3) as service, ExitStack() as stack:
        for _ in range(7):
            stack.enter_context(connect(service))
        assert status_of(service, "/v1/keys") == 200


def test_a_reader_that_does_not_read_is_cut_off(small: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedProtocol, "send_seconds", 0.2)
    gone = threading.Event()
    lost = LimitedProtocol.connection_lost

    def connection_lost(self: LimitedProtocol, error: Exception | None) -> None:
        lost(self, error)
        gone.set()

    sha256 = small.store.put_blob(bytes(30_000_000))
    monkeypatch.setattr(LimitedProtocol, "connection_lost", connection_lost)
    with connect(small) as connection:
        connection.sendall(f"GET /v1/artifacts/{sha256} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert gone.wait(PATIENCE_S), "the server waits for ever"
    assert LimitedProtocol.send_seconds == 0.2
    assert REQUEST_SECONDS == 30.0


def test_ranges_hash_the_file_once_and_hold_a_piece_of_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    record = kernel_record(service.store, JobRequest(Gemm.parse(ODD), CPU))
    url = f"/v1/artifacts/{record.artifact_sha256}"
    hashed: list[str] = []
    whole = BlobStore.get

    def get(store: BlobStore, sha256: str) -> bytes:
        hashed.append(sha256)
        return whole(store, sha256)

    monkeypatch.setattr(BlobStore, "get", get)
    data = service.http.get(url).content
    for first in range(0, 100, 7):
        assert service.http.get(url, headers={"Range": f"bytes={first}-{first + 6}"}).content == data[first : first + 7]
    assert service.http.head(url).headers["content-length"] == str(len(data))
    assert hashed == [record.artifact_sha256]


def test_many_headers_do_not_hold_the_others_up(service: Service) -> None:
    """While one connection sends what it can, the loop answers another."""

    async def attack() -> int:
        host, port = service.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"a" * 30_000_000)
        async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_S) as http:
            status = (await http.get("/healthz")).status_code
        writer.close()
        return status

    assert asyncio.run(attack()) == 200
