"""Event streams, and answers that are waited for, of keys that end meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import httpx
import pytest

from tests.service.pages.search_events import race
from tests.service.support import AUTHORITIES, CPU, ODD, Event, Service, queueing, serving, sse
from tests.waiting import PATIENCE_S, until
from tirgemm.errors import StoreUnavailable
from tirgemm.gemm import Gemm
from tirgemm.service.access import access_control
from tirgemm.service.http import events
from tirgemm.tuning_db import JobRequest
from tirgemm.tuning_db.access.api_keys import Scope
from tirgemm.tuning_db.queue.batches import WantedProblem

# More beats than can be on their way when a stream ends.
MANY = 100


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service whose keys are read again only where the test says so, and whose streams beat often."""
    monkeypatch.setattr(access_control, "CACHE_SECONDS", 1e9)
    monkeypatch.setattr(events, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(events, "CHECK_SECONDS", 0.05)
    # What says nothing for long fails the test.
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 1e9)
    with queueing(tmp_path) as actual:
        yield actual


def key(service: Service, scope: Scope = "read", expires_days: float | None = None) -> tuple[str, str]:
    """A new key's id and its secret, known to the service."""
    made, secret = service.state.access.table.create("team", scope, expires_days=expires_days)
    service.state.access.read()
    return made.id, secret


def revoke(service: Service, key_id: str) -> None:
    service.state.access.table.revoke(key_id)
    service.state.access.read()


def streams(service: Service) -> tuple[str, str]:
    """The paths of the streams of a job and of a batch that wait."""
    job, _ = service.queue.submit(JobRequest(Gemm.parse(ODD), CPU))
    batch = service.state.batches.submit([WantedProblem(JobRequest(Gemm.parse("7x5x3"), CPU))], asked=1)
    return f"/v1/jobs/{job.id}/events", f"/v1/batches/{batch.id}/events"


@contextmanager
def following(service: Service, path: str, secret: str | None) -> Iterator[Iterator[Event]]:
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    with service.http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200
        yield sse(response.iter_lines())


def kinds(stream: Iterator[Event]) -> set[str]:
    """The kinds of what a stream still says until it ends."""
    rest = list(islice(stream, MANY))
    assert len(rest) < MANY, "it does not end"
    return {kind for _, kind, _ in rest}


@pytest.mark.parametrize("of", [0, 1])
def test_a_stream_that_beats_ends_when_its_key_is_revoked(service: Service, of: int) -> None:
    path = streams(service)[of]
    key_id, secret = key(service)
    with following(service, f"{path}?alive=true", secret) as stream:
        until(lambda: next(stream)[1] == "alive", lambda: None)
        revoke(service, key_id)
        assert kinds(stream) <= {"alive", "progress"}, "and no end, for the job goes on"
    answer = service.http.get(path, headers={"Authorization": f"Bearer {secret}"})
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")


@pytest.mark.parametrize("of", [0, 1])
def test_a_silent_stream_ends_when_its_key_is_revoked(service: Service, of: int) -> None:
    path = streams(service)[of]
    key_id, secret = key(service)
    with following(service, path, secret) as stream:
        revoke(service, key_id)
        assert kinds(stream) <= {"progress"}


def test_no_event_is_told_to_a_key_that_was_revoked_before_it(service: Service) -> None:
    path, _ = streams(service)
    job_id = path.split("/")[3]
    key_id, secret = key(service)
    service.queue.add_event(job_id, race())
    with following(service, path, secret) as stream:
        assert next(stream)[1] == "race"
        revoke(service, key_id)
        service.queue.add_event(job_id, race())
        assert kinds(stream) == set()


def test_a_stream_ends_when_its_key_expires(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in streams(service):
        _, secret = key(service, expires_days=1.0)
        with monkeypatch.context() as patch, following(service, f"{path}?alive=true", secret) as stream:
            assert next(stream)[1] == "alive"
            patch.setattr(service.state.access, "now", lambda: time.time() + 90000)
            assert kinds(stream) <= {"alive", "progress"}


def test_a_stream_without_a_key_ends_when_the_first_key_is_made(service: Service) -> None:
    path, _ = streams(service)
    with following(service, f"{path}?alive=true", None) as stream:
        assert next(stream)[1] == "alive"
        key(service)
        assert kinds(stream) <= {"alive"}


def test_a_key_that_another_process_revokes_ends_its_streams(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = streams(service)
    key_id, secret = key(service)
    monkeypatch.setattr(access_control, "CACHE_SECONDS", 0.1)
    with following(service, path, secret) as stream:
        service.state.access.table.revoke(key_id)
        assert kinds(stream) == set()


@contextmanager
def asking(service: Service, path: str, body: dict[str, object], secret: str) -> Iterator[list[httpx.Response]]:
    """A request that waits beside the block; its answer is there behind it."""
    answers: list[httpx.Response] = []
    headers = {"Authorization": f"Bearer {secret}", "Prefer": "wait=100"}

    def ask() -> None:
        with httpx.Client(base_url=service.url, timeout=PATIENCE_S, verify=AUTHORITIES) as http:
            answers.append(http.post(path, json=body, headers=headers))

    asker = threading.Thread(target=ask)
    asker.start()
    yield answers
    asker.join(PATIENCE_S)


def test_a_kernel_that_is_awaited_is_not_told_to_a_key_that_was_revoked_meanwhile(service: Service) -> None:
    key_id, secret = key(service, "tune")
    with asking(service, "/v1/kernels", {"gemm": ODD}, secret) as answers:
        until(lambda: service.state.watch.followers == 1)
        revoke(service, key_id)
    (answer,) = answers
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")
    assert "was revoked or has expired while its request waited" in answer.json()["detail"]
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert [job.status for job in service.queue.jobs()] == ["queued"], "the job goes on"


@pytest.mark.parametrize(("path", "body"), [("/v1/kernels", {"gemm": ODD}), ("/v1/batches", {"gemms": [ODD]})])
def test_a_key_that_was_revoked_while_a_worker_was_awaited_makes_no_job(
    tmp_path: Path, path: str, body: dict[str, object]
) -> None:
    with serving(tmp_path) as starting:
        key_id, secret = key(starting, "tune")
        with asking(starting, path, body, secret) as answers:
            until(lambda: starting.state.watch._worker.followers == 1)
            revoke(starting, key_id)
            starting.queue.register_worker("elsewhere:1:0", [CPU])
        assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(401, "invalid_key")]
        assert starting.queue.jobs() == []


def test_a_stream_outlives_a_database_that_does_not_answer(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = streams(service)
    key_id, secret = key(service)
    refused = 0

    def away() -> None:
        nonlocal refused
        refused += 1
        raise StoreUnavailable("the database does not answer")

    with following(service, f"{path}?alive=true", secret) as stream:
        with monkeypatch.context() as patch:
            patch.setattr(access_control, "CACHE_SECONDS", 0.0)
            patch.setattr(service.state.access, "read", away)
            until(lambda: refused > 0, lambda: next(stream))
            assert next(stream)[1] == "alive"
        revoke(service, key_id)
        assert kinds(stream) <= {"alive"}


def test_a_stream_beats_while_the_database_hangs(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = streams(service)
    key_id, secret = key(service)
    asked, goes_on = threading.Event(), threading.Event()

    def hangs() -> None:
        asked.set()
        assert goes_on.wait(PATIENCE_S)

    monkeypatch.setattr(access_control, "PATIENCE_SECONDS", 0.01)
    with following(service, f"{path}?alive=true", secret) as stream:
        try:
            with monkeypatch.context() as patch:
                patch.setattr(access_control, "CACHE_SECONDS", 0.0)
                patch.setattr(service.state.access, "read", hangs)
                until(asked.is_set, lambda: next(stream))
                assert [next(stream)[1] for _ in range(3)] == ["alive"] * 3
                assert not goes_on.is_set()
        finally:
            goes_on.set()
        revoke(service, key_id)
        assert kinds(stream) <= {"alive"}
