"""Log records as JSON lines: one object a record, with the ids of request, job and API key."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.support import CPU, ODD, kernel_record, serving
from tirgemm.errors import StoreError
from tirgemm.gemm import Gemm
from tirgemm.service.log_lines import JsonLines, about_job
from tirgemm.tuning_db import JobRequest

logger = logging.getLogger("tirgemm.worker")


class Lines:
    """What was logged since it was looked at last."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def read(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        self.stream.seek(0)
        self.stream.truncate()
        return lines


@pytest.fixture
def logged() -> Iterator[Lines]:
    lines = Lines()
    handler = logging.StreamHandler(lines.stream)
    handler.setFormatter(JsonLines())
    ours = logging.getLogger("tirgemm")
    ours.addHandler(handler)
    yield lines
    ours.removeHandler(handler)


def test_a_record_is_one_line_with_its_job_and_its_traceback(logged: Lines) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        with about_job("00000000000000aa"):
            logger.exception("failed \N{SNOWMAN}\nand more")
    (line,) = logged.read()
    assert (line["level"], line["logger"], line["job"]) == ("ERROR", "tirgemm.worker", "00000000000000aa")
    assert line["message"] == "failed \N{SNOWMAN}\nand more"
    assert line["traceback"].endswith("ValueError: two\nlines")
    assert "request" not in line
    logger.warning("job %s: its worker is dead", "00000000000000bb")
    logger.warning("registration failed")
    named, nameless = logged.read()
    assert named["job"] == "00000000000000bb"
    assert "job" not in nameless


def test_what_fails_in_a_request_is_logged_with_its_ids(
    tmp_path: Path, logged: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as service:
        kernel_id = kernel_record(service.store, JobRequest(Gemm.parse(ODD), CPU)).id
        key, secret = service.state.access.table.create("team", "read")
        service.state.access.read()
        headers = {"Authorization": f"Bearer {secret}"}
        whole = service.http.get(f"/v1/kernels/{kernel_id}", headers=headers)
        assert logged.read() == [], "requests are not logged"

        def fail(_kernel_id: str) -> None:
            raise StoreError("the table is gone")

        monkeypatch.setattr(service.store, "kernel_by_id", fail)
        failed = service.http.get(f"/v1/kernels/{kernel_id}", headers=headers)
        assert failed.status_code == 500
        (line,) = logged.read()
        assert (line["request"], line["key"]) == (failed.headers["X-Request-Id"], key.id)
        assert failed.headers["X-Request-Id"] != whole.headers["X-Request-Id"]
        assert service.http.get("/healthz").headers["X-Request-Id"]
