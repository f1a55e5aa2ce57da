"""HTTP exchanges with a tirgemm service: retries on connection loss, problem documents, bounded bodies and events."""

from __future__ import annotations

import math
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar

from tirgemm._client.api_key import LOG, KeyHeader, key_advice
from tirgemm._client.deadline import Deadline
from tirgemm._client.http_client import checked_url, http_client
from tirgemm._client.server_events import ReceivedEvent, StreamAllowance, parse_events, read_lines
from tirgemm._client.service_documents import Document, Form, checked
from tirgemm._client.service_json import parse_json, whole_number
from tirgemm._extras import needed_by
from tirgemm._terminal.plain_text import plain
from tirgemm.artifact.closing import Closing
from tirgemm.artifact.known_servers import without_user
from tirgemm.errors import ClientClosed, CorruptArtifact, ServiceError, ServiceUnreachable

with needed_by("tirgemm.Client"):
    import httpx

RETRIED_STATUSES = frozenset({502, 503, 504})
# For whoever can do without an answer. A service may take its time to read, as long as it waits for a fallback.
QUICK_CONNECT_SECONDS, QUICK_READ_SECONDS, QUICK_PATIENCE_SECONDS = 2.0, 15.0, 0.5
TELL_AFTER_SECONDS = 1.0
MAX_DOCUMENT_BYTES = 16 * 2**20
MAX_REASON = 2000
SLOWEST_BYTES_PER_SECOND = 2**20

_REQUESTS = re.compile(r"; (?:(?:GET|POST|PUT|PATCH|DELETE) )?/(?:v1|openapi)\S* .*$")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer whose body was a JSON object."""

    status: int
    body: dict[str, Any]


class ServiceConnection(Closing):
    """What one service is asked with; every request has a connection of its own.

    ``timeout`` bounds connecting, and the whole of an answer, in seconds. Bodies are asked for as they are (identity)
    and read as they come, each within a limit. Where the connection is lost, refused, or answered with
    502, 503 or 504, or with 429 as ``key`` was used too often within a second, a request is sent again with growing
    pauses until ``patience`` seconds have passed, and the log is told; every request of this interface may be repeated,
    and an error says whether it was: what is to be deleted is gone where the first answer was lost.
    ``offline``: nothing is ever sent. Raises ServiceError, and ServiceUnreachable where there is no answer.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        patience: float = 30.0,
        offline: bool = False,
        transport: httpx.BaseTransport | None = None,
        key: KeyHeader | None = None,
    ) -> None:
        whole = checked_url(url)
        self.url = without_user(whole)
        self.offline = offline
        self.timeout = timeout
        self.patience = patience
        self._closing = threading.Event()
        self._exchanges: set[Deadline] = set()
        self._http = http_client(
            whole,
            timeout=timeout,
            transport=transport,
            headers={"user-agent": "tirgemm", "accept-encoding": "identity"},
            auth=None if key is None else key.add,
            # What a redirect says is an error: the key is sent to nobody but the service.
            follow_redirects=False,
            limits=httpx.Limits(max_keepalive_connections=0),
            event_hooks={"response": [partial(_refuse_redirect, self.url)]},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )

    def close(self) -> None:
        self._closing.set()
        for exchange in tuple(self._exchanges):  # to close a socket wakes nobody who reads of it
            exchange.end()
        self._http.close()

    def pause(self, seconds: float) -> None:
        """Sleep, but no longer than this session is open."""
        self._closing.wait(max(0.0, seconds))

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: dict[str, Any] | None = None,
        prefer_wait: int | None = None,
        quick: bool = False,
        once: bool = False,
    ) -> Answer:
        """One request with its JSON answer. ServiceError for a status of 400 or above, with the problem document, and
        for a redirect.

        ``prefer_wait``: the seconds that the answer may take; None leaves that to the service. ``quick`` is for whoever
        can do without an answer: a service that is away is given up within a second or two. ``once``: with a
        key by which the service knows the request again that would otherwise make something each time it is sent.
        """
        headers = {} if prefer_wait is None else {"prefer": f"wait={prefer_wait}"}
        if once:
            headers["idempotency-key"] = secrets.token_hex(16)
        connect, read = self._seconds(quick, prefer_wait or 0)
        timeout = httpx.Timeout(self.timeout, connect=connect, read=read)

        def send() -> Answer:
            options = {"json": body, "params": params, "headers": headers, "timeout": timeout}
            with self._exchange(method, path, connect + read, **options) as (response, deadline):
                return Answer(response.status_code, _object(response, deadline, self.url))

        return self._patiently(send, min(self.patience, QUICK_PATIENCE_SECONDS) if quick else self.patience)

    def document(self, method: str, path: str, form: Form, *, body: Any = None, once: bool = False) -> Document:
        """The document that a request is answered with. ServiceError, too, for one that is not of ``form``."""
        answer = self.request(method, path, body=body, once=once)
        return checked(answer.body, form, f"{self.url}{path}")

    def download(
        self,
        path: str,
        limit: int,
        on_bytes: Callable[[int, int], None] = lambda _done, _total: None,
        *,
        if_none_match: str = "",
        quick: bool = False,
    ) -> bytes:
        """A body of at most ``limit`` bytes; ``on_bytes(so far, total or 0)`` as it comes in. Empty where it is still
        the one of the tag ``if_none_match``.

        It may take ``timeout`` seconds, and a second more for each MiB of ``limit``. ``quick`` is as for ``request``.
        """
        headers = {"if-none-match": if_none_match} if if_none_match else {}
        connect, read = self._seconds(quick)
        timeout = httpx.Timeout(self.timeout, connect=connect, read=read)

        def receive() -> bytes:
            data = bytearray()
            seconds = read + limit / SLOWEST_BYTES_PER_SECOND
            with self._exchange("GET", path, seconds, headers=headers, timeout=timeout) as (response, deadline):
                total = whole_number(response.headers.get("content-length", "")) or 0
                if total > limit:
                    raise CorruptArtifact(f"{self.url}{path} has {total} bytes, over {limit}; it is not downloaded")
                for chunk in _chunks(response, deadline):
                    data += chunk
                    if len(data) > limit:
                        raise CorruptArtifact(f"{self.url}{path} sends more than {limit} bytes; it is not downloaded")
                    on_bytes(len(data), total)
            return bytes(data)

        return self._patiently(receive, min(self.patience, QUICK_PATIENCE_SECONDS) if quick else self.patience)

    @contextmanager
    def events(
        self, path: str, after: int, allowance: StreamAllowance, deadline: float = math.inf
    ) -> Iterator[Iterator[ReceivedEvent]]:
        """One event stream, from behind the event ``after``, until the server ends it or ``deadline`` has passed.

        Raises ServiceError with ``http_status`` where there is no such stream, or where it sends more than is allowed;
        httpx.TransportError on loss.
        """
        self._refuse_offline()
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if after:
            headers["last-event-id"] = str(after)
        left = max(0.01, deadline - time.monotonic())
        timeout = httpx.Timeout(self.timeout, read=min(self.timeout, left))
        # The headers are to come soon, whatever the events may take.
        soon = min(2 * self.timeout, left)
        with self._exchange("GET", path, soon, headers=headers, timeout=timeout) as (response, due):
            if "text/event-stream" not in response.headers.get("content-type", ""):
                raise ServiceError(f"{self.url}{path} is not an event stream", http_status=response.status_code)
            due.set(deadline - time.monotonic())
            yield parse_events(read_lines(_chunks(response, due), allowance))

    def _seconds(self, quick: bool, wait: float = 0.0) -> tuple[float, float]:
        """How long connecting may take, and an answer that may take ``wait`` seconds by itself."""
        connect, read = self.timeout, self.timeout + wait
        return (min(connect, QUICK_CONNECT_SECONDS), min(read, QUICK_READ_SECONDS)) if quick else (connect, read)

    @contextmanager
    def _exchange(
        self, method: str, path: str, seconds: float, **options: Any
    ) -> Iterator[tuple[httpx.Response, Deadline]]:
        """An answer of a status below 300, or 304, to be read within the block; all of it must have come within
        ``seconds``.

        Raises ServiceError for any other status, httpx.TransportError on loss and at the deadline.
        """
        with Deadline(seconds) as deadline:
            self._exchanges.add(deadline)
            self.refuse_closed()  # which it may have been before it could see this exchange
            try:
                with self._http.stream(method, path, extensions=deadline.extensions, **options) as response:
                    _refuse_encoding(response, self.url)
                    _raise_for_problem(response, deadline, self.url)
                    yield response, deadline
            except httpx.TransportError as error:
                if deadline.passed and not isinstance(error, httpx.TimeoutException):
                    raise _late(None, deadline) from error
                raise
            except RuntimeError as error:  # httpx's words for a client that was closed meanwhile
                self.refuse_closed(error)
                raise
            finally:
                self._exchanges.discard(deadline)

    def _refuse_offline(self) -> None:
        if self.offline:
            raise ServiceUnreachable(f"this client is offline; {self.url} is asked for nothing")

    def refuse_closed(self, cause: Exception | None = None) -> None:
        """Raise ClientClosed where this connection was closed."""
        if self._closing.is_set():
            raise ClientClosed(
                f"this client of {self.url} was closed; keep it open for as long as kernels are to come of it"
            ) from cause

    def _patiently(self, send: Callable[[], T], patience: float) -> T:
        self._refuse_offline()
        self.refuse_closed()
        started, attempt, is_lost = time.monotonic(), 0, False
        outage = Outage(self.url, patience)
        while True:
            try:
                return send()
            except httpx.TransportError as error:
                failure: Exception = error
                wait = backoff(attempt)
                is_lost = is_lost or not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            except ServiceError as error:
                error.repeated = is_lost
                if not is_temporary(error):
                    raise
                failure, wait = error, max(backoff(attempt), retry_after(error))
                is_lost = is_lost or error.http_status in (502, 504)  # of a gateway's
            self.refuse_closed(failure)
            attempt += 1
            away = time.monotonic() - started
            if away + wait > patience:
                raise unreachable(self.url, failure, max(patience, away)) from failure
            outage.tell(failure, away)
            self.pause(wait)
            self.refuse_closed(failure)


class Outage:
    """Tells the log, once, that a service does not answer, and how long it is tried again."""

    def __init__(self, url: str, patience: float) -> None:
        self._url = url
        self._patience = patience
        self._told = False

    def tell(self, failure: Exception, away: float) -> None:
        """What failed, and for how many seconds nothing else happened: a moment is not worth a word."""
        if away >= TELL_AFTER_SECONDS and not self._told:
            self._told = True
            LOG.warning("no answer from %s (%s); trying again for %.0f s", self._url, _reason(failure), self._patience)


def backoff(attempt: int) -> float:
    """Seconds to pause before the next attempt: 0.1, 0.2, ... 3.2, each by a random factor from 0.75 to 1.25."""
    return float(0.1 * 2 ** min(attempt, 5)) * random.uniform(0.75, 1.25)


def is_temporary(error: ServiceError) -> bool:
    """Whether the same request may be answered a while later: the service is away, or was asked too often."""
    return error.http_status in RETRIED_STATUSES or error.problem.get("code") == "rate_limited"


def retry_after(error: ServiceError) -> float:
    """The seconds that the service asked for with Retry-After, at most 30."""
    seconds = error.problem.get("retry_after", 0)
    return max(0.0, min(seconds, 30.0)) if isinstance(seconds, (int, float)) else 0.0


def unreachable(url: str, error: Exception, seconds: float) -> ServiceUnreachable:
    """The ServiceUnreachable for a service that did not answer within ``seconds``, or only with 502, 503, 504."""
    if isinstance(error, ServiceError):
        return ServiceUnreachable(str(error), error.problem, error.http_status)
    if seconds <= QUICK_PATIENCE_SECONDS:
        return ServiceUnreachable(f"no answer from {url} ({_reason(error)})")
    return ServiceUnreachable(
        f"no answer from {url} within {seconds:.0f} s ({_reason(error)}); check the address and that `tirgemm "
        f"serve` runs there"
    )


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def accepts_unverified(problem: dict[str, object]) -> bool:
    """Whether the service would answer a request that accepts an unverified build."""
    return problem.get("accepts") == {"verify": False}


def _raise_for_problem(response: httpx.Response, deadline: Deadline, url: str) -> None:
    if response.status_code < 400:
        return
    problem: dict[str, object] = {}
    with suppress(ValueError, _TooLong):
        document = parse_json(_body(response, deadline))
        problem = document if isinstance(document, dict) else {}
    seconds = whole_number(response.headers.get("retry-after", ""))
    if seconds is not None:
        problem["retry_after"] = seconds
    words = str(problem.get("detail") or problem.get("title") or plain(response.reason_phrase) or "no reason given")
    # Where in a document a field stood, and which request would help, is the client's business, not its caller's.
    words = _REQUESTS.sub("", words[:MAX_REASON].removeprefix("body."))
    if "code" not in problem and (response.status_code < 500 or response.status_code == 501):
        words = f"{words}; is it a tirgemm service?"
    if accepts_unverified(problem):
        words = f"{words}; verify=False takes a build that nobody has run"
    words += key_advice(problem)
    raise ServiceError(f"{url} answered {response.status_code}: {words}", problem, response.status_code)


def _refuse_redirect(url: str, response: httpx.Response) -> None:
    """Raise ServiceError for a redirect before httpx reads its Location, which may be no URL."""
    if not 300 <= response.status_code < 400 or response.status_code == 304:
        return
    location = response.headers.get("location", "")
    is_path = re.match("/(?!/)", location) is not None
    to = plain(location if is_path else without_user(location))[:MAX_REASON]
    leads = f"to {to}; give the address of the service there" if to else "nowhere; is it a tirgemm service?"
    words = f"{url} answered {response.status_code}, which leads {leads}"
    raise ServiceError(words, http_status=response.status_code)


class _TooLong(Exception):
    """A body that is longer than it may be."""


def _body(response: httpx.Response, deadline: Deadline) -> bytes:
    data = bytearray()
    for chunk in _chunks(response, deadline):
        data += chunk
        if len(data) > MAX_DOCUMENT_BYTES:
            raise _TooLong
    return bytes(data)


def _chunks(response: httpx.Response, deadline: Deadline) -> Iterator[bytes]:
    """The body as it comes, unpacked by nobody: a few bytes of compressed ones may be gigabytes."""
    for chunk in response.iter_bytes():
        if deadline.passed:
            break
        yield chunk
    # A connection that was shut down at the deadline ends as one does whose body has no length.
    if deadline.passed:
        raise _late(response.request, deadline)


def _late(request: httpx.Request | None, deadline: Deadline) -> httpx.ReadTimeout:
    return httpx.ReadTimeout(f"the whole answer was not there after {deadline.seconds:.0f} s", request=request)


def _refuse_encoding(response: httpx.Response, url: str) -> None:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ServiceError(
            f"{url} sent a body with Content-Encoding {plain(encoding)!r:.80}, which was not asked for; it is not read",
            http_status=response.status_code,
        )


def _object(response: httpx.Response, deadline: Deadline, url: str) -> dict[str, Any]:
    try:
        data = _body(response, deadline)
        document = parse_json(data) if data else {}
        if isinstance(document, dict):
            return document
    except ValueError:
        pass
    except _TooLong:
        raise ServiceError(f"{url} answered with more than {MAX_DOCUMENT_BYTES:,} bytes; they are not read") from None
    raise ServiceError(f"{url} answered, but not as a tirgemm service does; is it a tirgemm service?")
