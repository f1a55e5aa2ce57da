"""/v1/jobs: looking, cancelling, and following by server-sent events."""

from __future__ import annotations

import signal
import threading

import pytest

from tests.service.support import CPU, ODD, Service, read_events, sse
from tirgemm.events import BatchProposed
from tirgemm.gemm import Gemm
from tirgemm.service.http import events
from tirgemm.tuning_db import JobRequest


def queued(service: Service, gemm: str = ODD) -> str:
    return service.queue.submit(JobRequest(Gemm.parse(gemm), CPU, trials=4))[0].id


def test_a_queued_job_is_shown_and_listed(service: Service) -> None:
    first, second = queued(service), queued(service, "131x67x31")
    job = service.http.get(f"/v1/jobs/{first}").json()
    assert (job["status"], job["gemm"], job["attempts"]) == ("queued", ODD, 0)
    assert (job["fallback"], job["kernel"], job["error"], job["started_at"]) == (None, None, None, None)
    assert [j["id"] for j in service.http.get("/v1/jobs").json()["jobs"]] == [second, first]
    assert service.http.get("/v1/jobs", params={"limit": 1}).json()["jobs"][0]["id"] == second
    assert service.http.get("/v1/jobs", params={"status": "done"}).json()["jobs"] == []

    def listed(**filters: str) -> list[str]:
        return [job["id"] for job in service.http.get("/v1/jobs", params=filters).json()["jobs"]]

    assert listed(gemm="131x67x31") == [second]
    assert listed(device=CPU.key) == [second, first]
    service.store.put_device(CPU)
    assert listed(device="cpu", gemm=ODD) == [first]
    assert listed(device="sm_80") == []


def test_cancelling_twice_is_the_same_as_once(service: Service) -> None:
    job_id = queued(service)
    for _ in range(2):
        answer = service.http.delete(f"/v1/jobs/{job_id}")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert service.http.get(f"/v1/jobs/{job_id}").json()["finished_at"]


def test_cancelling_a_running_job_stops_the_work_and_lets_the_next_run(service: Service) -> None:
    service.engine.fallback_gate.set()
    with service.worker():
        job_id = service.post().json()["job"]["id"]
        service.wait_for(job_id, "running")
        assert service.http.delete(f"/v1/jobs/{job_id}").json()["status"] == "cancelled"
        other = service.post("131x67x31", headers={"Prefer": "wait=0"}).json()["job"]["id"]
        service.wait_for(other, "running")
        assert service.http.get(f"/v1/jobs/{job_id}").json()["status"] == "cancelled"


def test_a_finished_job_cannot_be_cancelled(service: Service) -> None:
    service.engine.fallback_gate.set()
    service.engine.gate.set()
    with service.worker():
        service.post(headers={"Prefer": "wait=100"})
        job_id = service.http.get("/v1/jobs").json()["jobs"][0]["id"]
        answer = service.http.delete(f"/v1/jobs/{job_id}")
        assert (answer.status_code, answer.json()["code"]) == (409, "job_finished")


def test_a_stream_tells_everything_in_order_and_ends_with_the_job(service: Service) -> None:
    service.engine.fallback_gate.set()
    with service.worker():
        job_id = service.post().json()["job"]["id"]
        threading.Timer(0.4, service.engine.gate.set).start()
        events = read_events(service.http, job_id)
    assert [kind for _, kind, _ in events] == [
        "fallback",
        "started",
        "candidate",
        "candidate",
        "candidate",
        "selected",
        "done",
    ]
    ids = [number for number, _, _ in events if number is not None]
    assert ids == sorted(set(ids)), "a client that drops what it has seen would drop an event"
    assert events[-1][2]["kernel"] == service.http.get(f"/v1/jobs/{job_id}").json()["kernel_id"]


def test_a_stream_that_broke_goes_on_behind_the_last_event_seen(service: Service) -> None:
    service.engine.fallback_gate.set()
    with service.worker():
        job_id = service.post().json()["job"]["id"]
        with service.http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
            stream = sse(response.iter_lines())
            seen = [next(stream) for _ in range(3)]
        service.engine.gate.set()
        service.wait_for(job_id, "done")
        rest = read_events(service.http, job_id, after=seen[-1][0])
        everything = read_events(service.http, job_id)
    assert seen + rest == everything
    assert read_events(service.http, job_id, after=10**9)[-1][1] == "done", (
        "the end is told again to who comes back late"
    )


def ended(service: Service, ending: str) -> str:
    """A job that a worker had begun, and that has ended so."""
    job_id = queued(service)
    assert service.queue.claim("elsewhere:1:0.0", [CPU.key], 60.0) is not None
    for number in range(3):
        service.queue.add_event(job_id, BatchProposed(trials=number))
    if ending == "cancelled":
        service.queue.cancel(job_id)
        service.queue.add_event(job_id, BatchProposed(trials=3))  # its worker has not learnt of it yet
    else:
        service.queue.finish(job_id, "elsewhere:1:0.0", "failed", error="internal_error: it fell over")
    return job_id


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
def test_who_has_seen_the_end_gets_all_that_comes_once_the_job_is_put_back(service: Service, ending: str) -> None:
    job_id = ended(service, ending)
    *told, (end, kind, _) = read_events(service.http, job_id)
    assert kind == ending
    assert end is not None
    assert all(number is not None and number < end for number, _, _ in told)
    for _ in range(3):
        assert [event[:2] for event in read_events(service.http, job_id, after=end)] == [(end, ending)]
    assert service.http.post(f"/v1/jobs/{job_id}/retry", json={}).status_code == 200
    later = [service.queue.add_event(job_id, BatchProposed(trials=number)) for number in range(10, 15)]
    service.http.delete(f"/v1/jobs/{job_id}")
    *rest, (last, kind, _) = read_events(service.http, job_id, after=end)
    assert [number for number, _, _ in rest] == later
    assert kind == "cancelled"
    assert last is not None
    assert last > later[-1]
    kinds = [kind for _, kind, _ in read_events(service.http, job_id)]
    assert kinds == ["batch"] * (len(told) + 5) + ["cancelled"], "the first end is over"


def test_the_end_of_a_job_of_before_ends_had_ids_repeats_the_last_one(service: Service) -> None:
    job_id = ended(service, "failed")
    with service.state.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM events WHERE kind = 'failed'")
    newest = service.queue.events(job_id)[-1].id
    for after in (0, newest):
        assert read_events(service.http, job_id, after=after)[-1][:2] == (newest, "failed")


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
def test_a_stream_ends_where_the_job_ends_badly(service: Service, ending: str) -> None:
    service.engine.fallback_gate.set()
    if ending == "failed":
        service.engine.fail_with = RuntimeError("the search fell over")
        service.engine.gate.set()
    with service.worker():
        job_id = service.post(headers={"Prefer": "wait=0"}).json()["job"]["id"]
        cancel = threading.Timer(0.3, lambda: service.http.delete(f"/v1/jobs/{job_id}"))
        if ending == "cancelled":
            cancel.start()
        _, kind, data = read_events(service.http, job_id)[-1]
        if ending == "cancelled":
            cancel.join()  # the client is closed behind this test
    assert kind == ending == data["status"]
    if ending == "failed":
        assert data["error"] == "internal_error: the worker failed; its log says why"
        job = service.http.get(f"/v1/jobs/{job_id}").json()
        assert job["error"] == {"code": "internal_error", "detail": "the worker failed; its log says why"}


def test_an_idle_stream_is_kept_alive(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.1)
    job_id = queued(service)
    with service.http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        assert next(response.iter_lines()).startswith(":")


def test_a_stream_beats_for_who_asks_and_for_nobody_else(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT_SECONDS", 0.05)
    address = f"/v1/jobs/{queued(service)}"
    with service.http.stream("GET", f"{address}/events?alive=true") as response:
        stream = sse(response.iter_lines())
        assert [next(stream) for _ in range(4)] == [(None, "alive", {})] * 4
        service.http.delete(address)
        last = [kind for _, kind, _ in stream if kind != "alive"]
    assert last == ["cancelled"]
    assert "event: alive" not in service.http.get(f"{address}/events").text


def test_open_streams_do_not_hold_up_the_shutdown(service: Service) -> None:
    job_id = queued(service)
    with service.http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        service.server.handle_exit(signal.SIGTERM, None)
        assert list(response.iter_lines()) == [], "else it would go on for as long as the job"


@pytest.mark.parametrize("header", ["abc", "-1", "1.5", "9" * 30])
def test_an_event_id_that_was_never_given_out_is_refused(service: Service, header: str) -> None:
    job_id = queued(service)
    answer = service.http.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": header})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_the_parameter_after_is_looked_at_beside_the_header(service: Service) -> None:
    address = f"/v1/jobs/{queued(service)}/events"
    answer = service.http.get(address, params={"after": "x"}, headers={"Last-Event-ID": "0"})
    assert (answer.status_code, answer.json()["detail"]) == (422, "after is 'x'; it must be the id of an event")
