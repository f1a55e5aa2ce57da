"""Who waits, and for whom: known kernels wait for nobody, and many who wait cost what one does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert

from tests.contract.storage.databases import candidate
from tests.service.support import AUTHORITIES, CPU, ODD, Service, kernel_record, queueing, read_events, serving, sse
from tests.waiting import PATIENCE_S, until
from tirgemm.errors import StoreUnavailable
from tirgemm.events import BatchProposed
from tirgemm.gemm import Gemm
from tirgemm.service.http import events
from tirgemm.service.http.state import ServiceState
from tirgemm.service.http.watch import FAILED_POLL_SECONDS, Watch
from tirgemm.service.server.app import create_app
from tirgemm.tuning_db import JobProgress, JobQueue, JobRequest
from tirgemm.tuning_db.models import EventRow
from tirgemm.tuning_db.queue.batches import WantedProblem

REQUEST = JobRequest(Gemm.parse(ODD), CPU)
NO_WAIT = {"Prefer": "wait=0"}


def counted(service: Service, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each of the queue's reads is asked for, from now on."""
    counts = dict.fromkeys(("job", "events", "progress", "live_workers"), 0)

    def count(name: str) -> None:
        real = getattr(service.queue, name)

        def read(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(service.queue, name, read)

    for name in counts:
        count(name)
    return counts


@pytest.mark.parametrize("device", [CPU.key, "cpu", None])
def test_a_known_kernel_does_not_wait_for_a_worker_that_hangs(tmp_path: Path, device: str | None) -> None:
    with serving(tmp_path, fallback_seconds=60) as service:
        known = kernel_record(service.store, REQUEST)
        JobQueue(service.queue.db, lambda: time.time() - 3600.0).register_worker("hung:1:0", [CPU])
        began = time.monotonic()
        where: dict[str, Any] = {"device": device} if device else {}
        answer = service.post(**where)
        assert time.monotonic() - began < service.state.settings.fallback_seconds
        assert (answer.status_code, answer.json()["id"]) == (200, known.id)


def test_what_a_starting_worker_could_do_waits_for_it_without_holding_anybody_up(tmp_path: Path) -> None:
    with serving(tmp_path, fallback_seconds=60) as service:
        known = kernel_record(service.store, REQUEST)
        answers: list[int] = []

        def ask(m: int) -> None:
            with httpx.Client(base_url=service.url, timeout=PATIENCE_S, verify=AUTHORITIES) as http:
                answers.append(http.post("/v1/kernels", json={"gemm": f"{m}x67x31"}).status_code)

        threads = [threading.Thread(target=ask, args=(m,)) for m in range(200, 264)]
        for thread in threads:
            thread.start()
        until(lambda: service.state.watch._worker.followers == len(threads))
        assert service.post(device=CPU.key).json()["id"] == known.id
        assert service.http.get("/v1/jobs").status_code == 200
        assert answers == []
        service.engine.fallback_gate.set()
        service.engine.gate.set()
        with service.worker():
            for thread in threads:
                thread.join(PATIENCE_S)
        assert set(answers) <= {200, 202}
        assert len(answers) == len(threads)


def test_a_kernel_whose_search_was_interrupted_is_answered_and_gone_on_with(service: Service) -> None:
    known = kernel_record(service.store, REQUEST, search={"ended": "interrupted", "seconds": 120.0})
    assert service.post(device=CPU.key).json()["id"] == known.id
    assert service.queue.jobs() == [], "nobody could go on with it"
    with service.worker():
        answer = service.post()
        assert (answer.status_code, answer.json()["id"]) == (200, known.id)
        (job,) = service.queue.jobs()
        assert job.fallback_id == known.id
        service.engine.gate.set()
        done = service.wait_for(job.id, "done")
        assert done["kernel_id"] not in (None, known.id)
        assert service.post().json()["id"] == done["kernel_id"]
    assert len(service.queue.jobs()) == 1


def test_many_listeners_cost_the_database_what_one_does(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = service.queue.submit(REQUEST)[0].id
    heard: list[list[str]] = []

    def listen() -> None:
        with httpx.Client(base_url=service.url, timeout=PATIENCE_S, verify=AUTHORITIES) as http:
            heard.append([kind for _, kind, _ in read_events(http, job_id)])

    threads = [threading.Thread(target=listen) for _ in range(50)]
    for thread in threads:
        thread.start()
    until(lambda: service.state.watch.followers == len(threads))
    counts = counted(service, monkeypatch)
    for number in range(5):
        service.queue.add_event(job_id, BatchProposed(trials=number))
    until(lambda: counts["events"] > 0)
    began = counts["progress"]
    until(lambda: counts["progress"] >= began + 5)
    assert counts["events"] <= 5, "once for all listeners, however many"
    assert counts["job"] == 0
    service.queue.cancel(job_id)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert heard == [["batch"] * 5 + ["cancelled"]] * len(threads)
    # A stream is left after its last event was read.
    until(lambda: service.state.watch.followers == 0)
    until(lambda: not service.state.watch.polling)


def test_many_listeners_of_a_batch_cost_the_database_what_one_does(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = service.state.batches
    batch = batches.submit([WantedProblem(JobRequest(Gemm.parse(f"{m}x67x31"), CPU)) for m in (3, 5, 7)], asked=3)
    heard: list[list[tuple[str, dict[str, Any]]]] = [[] for _ in range(40)]

    def listen(told: list[tuple[str, dict[str, Any]]]) -> None:
        with (
            httpx.Client(base_url=service.url, timeout=PATIENCE_S, verify=AUTHORITIES) as http,
            http.stream("GET", f"/v1/batches/{batch.id}/events") as response,
        ):
            told += ((kind, data) for _, kind, data in sse(response.iter_lines()))

    def all_have_heard(events: int) -> bool:
        return all(len(told) == events for told in heard)

    threads = [threading.Thread(target=listen, args=(told,)) for told in heard]
    for thread in threads:
        thread.start()
    until(lambda: all_have_heard(1))
    looked: list[str] = []
    for name in ("batch", "totals"):
        monkeypatch.setattr(batches, name, _noting(getattr(batches, name), name, looked))
    for number in (2, 3, 4):
        assert service.queue.claim("w", [CPU.key], 600.0) is not None
        until(partial(all_have_heard, number))
    batches.cancel(batch.id)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert looked == ["totals"] * 4, "once a change for all listeners, however many"
    assert [kind for kind, _ in heard[0]] == ["progress"] * 4 + ["cancelled"]
    assert [data["states"] for _, data in heard[0]][-2:] == [{"running": 3}, {"cancelled": 3}]
    assert heard == [heard[0]] * len(threads)
    until(lambda: service.state.watch.followers == 0)


def _noting(real: Callable[..., Any], name: str, calls: list[str]) -> Callable[..., Any]:
    """``real``, whose calls are noted by its name."""

    def noted(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        return real(*arguments, **options)

    return noted


def test_who_follows_a_batch_later_is_told_how_it_is_by_then(service: Service) -> None:
    """What it has spent, too, which changes while its states do not."""
    request = JobRequest(Gemm.parse("3x67x31"), CPU)
    batch = service.state.batches.submit([WantedProblem(request)], asked=1)
    path = f"/v1/batches/{batch.id}/events"
    with service.http.stream("GET", path) as response:
        stream = sse(response.iter_lines())
        assert next(stream)[2]["spent"]["trials"] == 0
        service.store.add_candidate(candidate(1, gemm=request.gemm, device_key=CPU.key))
        with service.http.stream("GET", path) as later:
            assert next(sse(later.iter_lines()))[2]["spent"]["trials"] == 1
        service.state.batches.cancel(batch.id)
        assert [kind for _, kind, _ in stream] == ["cancelled"], "nothing changed for whom was told before"


def test_a_listener_that_comes_later_or_is_far_behind_misses_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tirgemm.service.http.watch.KEPT_EVENTS", 3)
    job_id = service.queue.submit(REQUEST)[0].id
    heard: dict[int, list[int]] = {}

    def listen(name: int) -> None:
        with httpx.Client(base_url=service.url, timeout=PATIENCE_S, verify=AUTHORITIES) as http:
            heard[name] = [data["trials"] for _, kind, data in read_events(http, job_id) if kind == "batch"]

    def followed_by(count: int) -> bool:
        return service.state.watch.followers == count

    threads = []
    for name in range(4):
        threads.append(threading.Thread(target=listen, args=(name,)))
        threads[-1].start()
        until(partial(followed_by, name + 1))
        for number in range(7):
            service.queue.add_event(job_id, BatchProposed(trials=7 * name + number))
    service.queue.cancel(job_id)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert heard == {name: list(range(28)) for name in range(4)}


def test_more_events_between_two_looks_than_one_read_takes_are_all_told(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = service.queue.submit(REQUEST)[0].id
    real, looks = service.queue.progress, threading.Event()
    heard: list[str] = []
    with httpx.Client(base_url=service.url, timeout=PATIENCE_S, verify=AUTHORITIES) as http:
        listener = threading.Thread(target=lambda: heard.extend(k for _, k, _ in read_events(http, job_id)))
        listener.start()
        until(lambda: any(feed.seen for feed in service.state.watch._feeds.values()))

        def held(job_ids: list[str]) -> Any:
            assert looks.wait(PATIENCE_S)
            return real(job_ids)

        monkeypatch.setattr(service.queue, "progress", held)
        events = [{"job_id": job_id, "kind": "batch", "data": {}, "at": ""} for _ in range(2500)]
        with service.state.database.write() as connection:
            connection.execute(insert(EventRow), events)
        service.queue.cancel(job_id)
        looks.set()
        listener.join(PATIENCE_S)
    assert (len(heard), heard[-1]) == (2501, "cancelled")


@pytest.mark.parametrize("path", ["wait", "events"])
def test_a_closed_connection_is_waited_for_no_longer(service: Service, path: str) -> None:
    with service.worker():
        job_id = service.post(headers=NO_WAIT).json()["job"]["id"]
        with httpx.Client(base_url=service.url, timeout=PATIENCE_S, verify=AUTHORITIES) as http:
            if path == "events":
                with http.stream("GET", f"/v1/jobs/{job_id}/events"):
                    until(lambda: service.state.watch.followers == 1)
            else:
                impatient = httpx.Timeout(PATIENCE_S, read=0.5)
                with pytest.raises(httpx.ReadTimeout):
                    http.post("/v1/kernels", json={"gemm": ODD}, headers={"Prefer": "wait=100"}, timeout=impatient)
        until(lambda: service.state.watch.followers == 0)
        assert service.queue.job(job_id) is not None


def test_a_client_that_leaves_while_events_wait_to_be_sent_is_no_fault_of_the_service(service: Service) -> None:
    job_id = service.queue.submit(REQUEST)[0].id
    for number in range(10):
        service.queue.add_event(job_id, BatchProposed(trials=number))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": f"/v1/jobs/{job_id}/events",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
    }
    told: list[bytes] = []

    async def follow() -> None:
        left = asyncio.Event()
        request = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if request:
                return request.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message.get("body"):
                told.append(message["body"])
                # The next events wait behind this one by the time that all that can go on has.
                for _ in range(1000):
                    await asyncio.sleep(0)
                left.set()
                await asyncio.Event().wait()

        state = ServiceState(service.state.settings, service.state.database, service.state.public_key)
        await create_app(state)(scope, receive, send)

    asyncio.run(follow())
    assert len(told) == 1


def test_a_database_that_does_not_answer_is_logged_once_until_it_does(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[bool] = []

    def progress(_jobs: list[str]) -> dict[str, JobProgress]:
        looks.append(len(looks) not in (3, 4))
        if looks[-1]:
            raise StoreUnavailable("the database server restarts")
        return {}

    async def follow() -> None:
        with watch.follow("1"):
            while len(looks) < 7:
                await asyncio.sleep(0.01)

    monkeypatch.setattr(service.queue, "progress", progress)
    watch = Watch(service.queue, service.state.batches, 60.0, asyncio.Event())
    began = time.monotonic()
    asyncio.run(follow())
    assert time.monotonic() - began > 4 * FAILED_POLL_SECONDS
    assert caplog.text.count("the database server restarts") == 2


def test_followers_of_a_job_that_was_put_back_leave_the_database_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(events, "CHECK_SECONDS", 0.02)
    with queueing(tmp_path) as service:
        job, _ = service.queue.submit(REQUEST)
        service.queue.cancel(job.id)
        service.queue.retry(job.id)
        counts = counted(service, monkeypatch)
        with service.http.stream("GET", f"/v1/jobs/{job.id}/events?alive=true") as response:
            followed = sse(response.iter_lines())
            assert [next(followed)[1] for _ in range(10)] == ["alive"] * 10
            assert counts["events"] <= 1
            service.queue.add_event(job.id, BatchProposed(trials=3))
            until(lambda: next(followed)[1] == "batch", lambda: None)
