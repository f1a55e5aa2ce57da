"""Log records as JSON lines, with the ids of the request, the job, the API key and the trace that they are about; and
lines about refused requests, of which a client can cause any number."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

from tirgemm.tuning.process.spans import traceparent

LogFormat = Literal["text", "json"]
_service_logger = logging.getLogger("tirgemm.service")

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
key_id: ContextVar[str | None] = ContextVar("key_id", default=None)
_job_id: ContextVar[str | None] = ContextVar("job_id", default=None)
# How the log names the job that a thread without a context, such as a timer's, tells of.
_NAMED_JOB = re.compile(r"job ([0-9a-f]{16})\b")


# The shortest time between two lines about refusals of one kind.
REFUSAL_SECONDS = 10.0


class RefusalLog:
    """Log lines about refusals, of which a hostile client can cause any number: of each kind a few a minute, with how
    many there were between. For one thread."""

    def __init__(self) -> None:
        self._untold: Counter[object] = Counter()
        self._told_at: dict[object, float] = {}

    def note(self, kind: object, what: str, why: str, level: int = logging.INFO) -> None:
        """That ``what``, such as "a connection of ADDRESS was refused with 431", happened, and ``why``."""
        self._untold[kind] += 1
        now = time.monotonic()
        if now - self._told_at.get(kind, float("-inf")) >= REFUSAL_SECONDS:
            count, self._told_at[kind] = self._untold.pop(kind), now
            since = "" if count == 1 else f", and {count - 1} before it"
            _service_logger.log(level, "%s%s: %s", what, since, why)


@contextmanager
def about_job(job_id: str) -> Iterator[None]:
    """What this thread logs within the block is about a job."""
    token = _job_id.set(job_id)
    try:
        yield
    finally:
        _job_id.reset(token)


class JsonLines(logging.Formatter):
    """One JSON object a record: ``time`` (ISO 8601 in UTC), ``level``, ``logger``, ``message``; the ids ``request``,
    ``job``, ``key`` and ``trace`` where the record is about one; ``traceback`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        named, parent = _NAMED_JOB.match(message), traceparent()
        members = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
            "request": request_id.get(),
            "job": named[1] if named else _job_id.get(),
            "key": key_id.get(),
            "trace": parent.split("-")[1] if parent else None,
            "traceback": self.formatException(record.exc_info) if record.exc_info else None,
        }
        return json.dumps({name: value for name, value in members.items() if value is not None})


def log_to_stderr(*, verbose: bool, log_format: LogFormat = "text") -> None:
    """One line a record; ours from INFO on, everybody else's from WARNING on unless ``verbose``."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if log_format == "json" else text)
    logging.basicConfig(handlers=[handler], level=logging.INFO if verbose else logging.WARNING)
    logging.getLogger("tirgemm").setLevel(logging.INFO)
