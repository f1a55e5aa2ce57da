"""Requests that are sent again because their answer was lost: each does what one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.support import CPU, ODD, Service, kernel_record, queueing
from tests.waiting import PATIENCE_S
from tirgemm.client import Client
from tirgemm.config import Config
from tirgemm.gemm import Gemm
from tirgemm.status import Status
from tirgemm.tuning.records import Candidate
from tirgemm.tuning_db import JobRequest

TRUSTED = "ed25519:" + "A" * 43 + "="


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with queueing(tmp_path) as actual:
        yield actual


class LosingAnswers(httpx.HTTPTransport):
    """Sends what it is given, and loses the first answer to each POST once the service has given it."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[str] = []
        self.before_loss: Callable[[], None] = lambda: None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if request.method == "POST" and request.url.path not in self.lost:
            response.read()
            self.lost.append(request.url.path)
            self.before_loss()
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.", request=request)
        return response


def record_trials(service: Service, gemm: str, count: int) -> None:
    """Have so many candidates of a problem recorded, as a search does that is under way."""
    for number in range(count):
        config = Config("x86", (("tile_m", number),))
        service.store.add_candidate(Candidate(Gemm.parse(gemm), CPU.key, "sustained", config, Status.CRASHED))


def test_a_request_whose_answer_was_lost_does_what_one_does(service: Service) -> None:
    transport, before = LosingAnswers(), len(service.state.batches.batches())
    with Client(service.url, trust=TRUSTED, patience=PATIENCE_S, transport=transport) as client:
        batch = client.submit_batch(["43x67x31", "47x67x31"], device=CPU.key)
        assert transport.lost == ["/v1/batches"]
        assert len(service.state.batches.batches()) == before + 1
        assert client.cancel_batch(batch["id"])["states"] == {"cancelled": 2}, "its jobs are its own"
        job = batch["items"][0]["job"]
        assert client.retry(job, "cancelled by mistake")["retries"] == 1
        assert transport.lost == ["/v1/batches", f"/v1/jobs/{job}/retry"]
        assert client.submit_batch(["43x67x31", "47x67x31"], device=CPU.key)["id"] != batch["id"]


def test_a_search_that_goes_on_though_the_answer_was_lost_is_one(service: Service) -> None:
    transport = LosingAnswers()
    with Client(service.url, trust=TRUSTED, patience=PATIENCE_S, transport=transport) as client:
        kernel_record(service.store, JobRequest(Gemm.parse("53x67x31"), CPU), search={"effort": "standard"})
        transport.before_loss = lambda: record_trials(service, "53x67x31", 100)
        tuned_again = client.submit("53x67x31", device=CPU.key, retune=True)
        assert transport.lost == ["/v1/kernels"]
        assert [job.id for job in service.queue.jobs(gemm=Gemm.parse("53x67x31"))] == [tuned_again.job_id]
        service.queue.cancel(tuned_again.job_id)
        assert client.submit("53x67x31", device=CPU.key, retune=True).job_id != tuned_again.job_id


def test_an_idempotency_key_names_one_request_of_one_api_key(service: Service) -> None:
    def send(key: str, **body: Any) -> httpx.Response:
        return service.http.post("/v1/batches", json=body, headers={"Idempotency-Key": key})

    kernel_record(service.store, JobRequest(Gemm.parse("37x67x31"), CPU), search={"effort": "standard"})
    first = send("a", gemms=["37x67x31", "41x67x31"])
    again = send("a", gemms=["37x67x31", "41x67x31"])
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    others = [send("b", gemms=["37x67x31", "41x67x31"]), send("a", gemms=["41x67x31"])]
    assert len({first.json()["id"], *(other.json()["id"] for other in others)}) == 3
    service.queue.remove_worker("elsewhere:1:0")
    try:
        service.http.delete(first.headers["location"])
        cancelled = send("a", gemms=["37x67x31", "41x67x31"])
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled"), (
            "what it was asked for is over"
        )
    finally:
        service.queue.register_worker("elsewhere:1:0", [CPU])
    for key in ("", "a b", "k" * 129, "é"):
        refused = service.http.post(
            "/v1/batches", json={"gemms": [ODD]}, headers={b"Idempotency-Key": key.encode("latin-1")}
        )
        assert refused.status_code == 422, key
        assert "it must be 1 to 128 visible ASCII characters" in refused.json()["detail"]


def test_a_kernel_s_request_with_an_idempotency_key_is_answered_by_the_job_that_it_made(service: Service) -> None:
    def send(key: str = "a", **body: Any) -> httpx.Response:
        headers = {"Idempotency-Key": key, "Prefer": "wait=0"}
        return service.http.post("/v1/kernels", json={"gemm": "59x67x31", **body}, headers=headers)

    request = JobRequest(Gemm.parse("59x67x31"), CPU)
    first = send(retune=True)
    record_trials(service, "59x67x31", 100)
    assert (send(retune=True).status_code, send(retune=True).json()) == (202, first.json())
    job_id = first.json()["job"]["id"]
    assert send("b", retune=True).json()["job"]["id"] != job_id
    assert service.queue.claim("w", [CPU.key], 60.0)
    kernel = kernel_record(service.store, request, search={"effort": "standard"})
    assert service.queue.finish(job_id, "w", "done", kernel_id=kernel.id)
    assert (send(retune=True).status_code, send(retune=True).json()["id"]) == (200, kernel.id)
    cancelled = send("c", effort="exhaustive").json()["job"]["id"]
    service.queue.cancel(cancelled)
    again = send("c", effort="exhaustive")
    assert (again.status_code, again.json()["code"], again.json()["job"]["id"]) == (409, "cancelled", cancelled)
    assert send("", effort="none").status_code == 422, "of a known kernel, too"
