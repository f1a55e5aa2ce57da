"""One HTTP connection to a tirgemm service: retries on connection loss, problem documents, server-sent events."""

from __future__ import annotations

import json
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import httpx

from tirgemm.errors import CorruptArtifact, InvalidRequest, ServiceError

RETRIED_STATUSES = frozenset({502, 503, 504})
MAX_DOCUMENT_BYTES = 16 * 2**20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event of a job: its number, its kind, and its data as JSON."""

    id: int
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer whose body was a JSON object."""

    status: int
    headers: httpx.Headers
    body: dict[str, Any]


class Session:
    """A connection pool to one service.

    ``timeout`` bounds connecting and every read, in seconds. Where the connection is lost, refused, or answered with
    502, 503 or 504, a request is sent again with growing pauses until ``patience`` seconds have passed; every request
    of this interface may be repeated. Raises ServiceError.
    """

    def __init__(
        self, url: str, *, timeout: float = 30.0, patience: float = 30.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url = _base_url(url)
        self.timeout = timeout
        self.patience = patience
        self._closing = threading.Event()
        self._http = httpx.Client(
            base_url=self.url, timeout=timeout, transport=transport, headers={"user-agent": "tirgemm"}
        )

    def close(self) -> None:
        self._closing.set()
        self._http.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    def pause(self, seconds: float) -> None:
        """Sleep, but no longer than this session is open."""
        self._closing.wait(max(0.0, seconds))

    def request(
        self, method: str, path: str, *, body: Any = None, params: dict[str, Any] | None = None, prefer_wait: int = 0
    ) -> Answer:
        """One request with its JSON answer. ServiceError, with the problem document, for a status of 400 or above."""
        headers = {"prefer": f"wait={prefer_wait}"} if prefer_wait else {}
        timeout = httpx.Timeout(self.timeout, read=self.timeout + prefer_wait)

        def send() -> Answer:
            response = self._http.request(method, path, json=body, params=params, headers=headers, timeout=timeout)
            _raise_for_problem(response, self.url)
            return Answer(response.status_code, response.headers, _object(response, self.url))

        return self._patiently(send)

    def download(self, path: str, limit: int, on_bytes: Callable[[int, int], None]) -> bytes:
        """A body of at most ``limit`` bytes; ``on_bytes(so far, total or 0)`` as it comes in."""

        def receive() -> bytes:
            data = bytearray()
            with self._http.stream("GET", path) as response:
                if response.status_code >= 400:
                    response.read()
                    _raise_for_problem(response, self.url)
                total = int(response.headers.get("content-length", 0))
                for chunk in response.iter_bytes():
                    data += chunk
                    if len(data) > limit:
                        raise CorruptArtifact(f"{self.url}{path} sends more than {limit} bytes; it is not downloaded")
                    on_bytes(len(data), total)
            return bytes(data)

        return self._patiently(receive)

    @contextmanager
    def events(self, path: str, after: int, deadline: float = math.inf) -> Iterator[Iterator[Event]]:
        """One event stream, from behind the event ``after``, until the server ends it or ``deadline`` has passed.

        Raises ServiceError with ``http_status`` where there is no such stream; httpx.TransportError on loss.
        """
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if after:
            headers["last-event-id"] = str(after)
        left = min(self.timeout, max(0.01, deadline - time.monotonic()))
        with self._http.stream(
            "GET", path, headers=headers, timeout=httpx.Timeout(self.timeout, read=left)
        ) as response:
            if response.status_code >= 400:
                response.read()
                _raise_for_problem(response, self.url)
            if "text/event-stream" not in response.headers.get("content-type", ""):
                raise ServiceError(f"{self.url}{path} is not an event stream", http_status=response.status_code)
            yield parse_events(_until(response.iter_lines(), deadline))

    def _patiently(self, send: Callable[[], T]) -> T:
        started, attempt = time.monotonic(), 0
        while True:
            try:
                return send()
            except httpx.TransportError as error:
                failure: Exception = error
                wait = backoff(attempt)
            except ServiceError as error:
                if error.http_status not in RETRIED_STATUSES:
                    raise
                failure, wait = error, max(backoff(attempt), retry_after(error))
            attempt += 1
            if self._closing.is_set() or time.monotonic() - started + wait > self.patience:
                if isinstance(failure, ServiceError):
                    raise failure
                raise unreachable(self.url, failure, self.patience) from failure
            self.pause(wait)


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Events of a text/event-stream as WHATWG's HTML standard, section 9.2, parses it; comments and retries skipped."""
    kind, last = "message", 0
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield Event(last, kind, _event_data("\n".join(data)))
            kind, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id" and value.isdigit():
            last = int(value)


def _until(lines: Iterator[str], deadline: float) -> Iterator[str]:
    for line in lines:
        yield line
        if time.monotonic() > deadline:
            return


def backoff(attempt: int) -> float:
    """Seconds to pause before the next attempt: 0.1, 0.2, ... 3.2, each by a random factor from 0.75 to 1.25."""
    return float(0.1 * 2 ** min(attempt, 5)) * random.uniform(0.75, 1.25)


def retry_after(error: ServiceError) -> float:
    """The seconds that the service asked for with Retry-After, at most 30."""
    seconds = error.problem.get("retry_after", 0)
    return min(float(seconds), 30.0) if isinstance(seconds, (int, float)) else 0.0


def unreachable(url: str, error: Exception, patience: float) -> ServiceError:
    """The ServiceError for a service that did not answer within ``patience`` seconds."""
    reason = str(error) or type(error).__name__
    return ServiceError(
        f"no answer from {url} within {patience:.0f} s ({reason}); check the address and that `tirgemm serve` runs there"
    )


def _base_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
        good = parsed.scheme in ("http", "https") and re.fullmatch(r"[\w.:-]+", parsed.host) is not None
    except (httpx.InvalidURL, TypeError):
        good = False
    if not good:
        raise InvalidRequest(f"service address {url!r:.200} is not a URL such as http://127.0.0.1:8000")
    return url.rstrip("/")


def _raise_for_problem(response: httpx.Response, url: str) -> None:
    if response.status_code < 400:
        return
    problem: dict[str, object] = {}
    try:
        found = response.json()
        problem = found if isinstance(found, dict) else {}
    except ValueError:
        pass
    seconds = response.headers.get("retry-after", "")
    if seconds.isdigit():
        problem["retry_after"] = int(seconds)
    words = problem.get("detail") or problem.get("title") or response.reason_phrase or "no reason given"
    raise ServiceError(f"{url} answered {response.status_code}: {words}", problem, response.status_code)


def _object(response: httpx.Response, url: str) -> dict[str, Any]:
    try:
        if len(response.content) <= MAX_DOCUMENT_BYTES:
            found = response.json() if response.content else {}
            if isinstance(found, dict):
                return found
    except ValueError:
        pass
    raise ServiceError(f"{url} answered with something that is no JSON object; is it a tirgemm service?")


def _event_data(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {"text": text}
    return found if isinstance(found, dict) else {"value": found}
