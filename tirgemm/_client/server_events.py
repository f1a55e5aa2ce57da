"""Server-sent events of a service, parsed as they come, within bounds on lines, events and the whole stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tirgemm._client.service_json import parse_json, whole_number
from tirgemm._terminal.plain_text import plain
from tirgemm.errors import ServiceError
from tirgemm.events import Event, event_from_json

MAX_EVENT_BYTES = 2**20
# Of one job, over all of its connections: the largest search tells of 100,000 candidates in 1 KB each.
MAX_STREAM_BYTES = 2**28
_NEWLINE = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """One server-sent event of a job: its number, its kind, and its data as JSON; ``event`` is what they say."""

    id: int
    kind: str
    data: dict[str, Any]

    @property
    def event(self) -> Event:
        return event_from_json(self.kind, self.data)


class StreamAllowance:
    """How many bytes of events one job may still send. ``take`` raises ServiceError when they are used up."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._left = MAX_STREAM_BYTES

    def take(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            raise ServiceError(f"{self._url} sent more than {MAX_STREAM_BYTES:,} bytes of events for one job")


def read_lines(chunks: Iterator[bytes], allowance: StreamAllowance) -> Iterator[str]:
    """The lines of a stream. Raises ServiceError for a line of more than MAX_EVENT_BYTES."""
    parts: list[bytes] = []
    size, after_return = 0, False
    for chunk in chunks:
        allowance.take(len(chunk))
        if after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        after_return = chunk.endswith(b"\r") or (after_return and not chunk)
        *whole, rest = _NEWLINE.split(chunk)
        for piece in whole:
            yield b"".join([*parts, piece]).decode("utf-8", "replace")
            parts.clear()
            size = 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_EVENT_BYTES:
            raise ServiceError(f"the service sent a line of more than {MAX_EVENT_BYTES:,} bytes in an event stream")


def parse_events(lines: Iterator[str]) -> Iterator[ReceivedEvent]:
    """Events of a text/event-stream as WHATWG's HTML standard, section 9.2, parses it; comments and retries skipped."""
    kind, last, size = "message", 0, 0
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield ReceivedEvent(last, kind, _event_data("\n".join(data)))
            kind, data, size = "message", [], 0
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = plain(value)
        elif name == "data":
            size += len(value) + 1
            if size > MAX_EVENT_BYTES:
                raise ServiceError(f"the service sent an event of more than {MAX_EVENT_BYTES:,} bytes")
            data.append(value)
        elif name == "id":
            number = whole_number(value)
            last = last if number is None else number


def _event_data(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError:
        return {"text": plain(text)}
    return value if isinstance(value, dict) else {"value": value}
