"""Log records as JSON lines, with the ids of the request, the job, the API key and the trace that they are about."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

from tirgemm.tuning.process.spans import traceparent

LogFormat = Literal["text", "json"]

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
key_id: ContextVar[str | None] = ContextVar("key_id", default=None)
_job_id: ContextVar[str | None] = ContextVar("job_id", default=None)
# How the log names the job that a thread without a context, such as a timer's, tells of.
_NAMED_JOB = re.compile(r"job ([0-9a-f]{16})\b")


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
