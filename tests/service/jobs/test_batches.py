"""/v1/batches: problems that are asked for together, over HTTP, by the client and by the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.command_line import own_folders, runner
from tests.service.support import CPU, ODD, Service, kernel_record, queueing, serving, sse
from tests.waiting import PATIENCE_S
from tirgemm.artifact import Trust
from tirgemm.client import Client
from tirgemm.gemm import Gemm
from tirgemm.service.http import events
from tirgemm.service.http.routes.parameters import repeatable_id
from tirgemm.tuning_db import JobRequest

TRUSTED = "ed25519:" + "A" * 43 + "="


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with queueing(Path(tmp_path_factory.mktemp("batches"))) as service:
        yield service


@pytest.fixture
def service(shared: Service) -> Iterator[Service]:
    yield shared
    for job in shared.queue.jobs():
        shared.queue.cancel(job.id)


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url, trust=TRUSTED, patience=PATIENCE_S) as client:
        yield client


def post(service: Service, **body: Any) -> httpx.Response:
    return service.http.post("/v1/batches", json=body)


def test_equal_problems_are_one_and_the_likeliest_gain_is_first(service: Service) -> None:
    shapes = [[67, 31], [1021, 1027]]
    answer = post(service, gemms=["129x67x31", {"m": 7, "n": 5, "k": 3}], shapes=shapes, problem={"m": 129})
    assert answer.status_code == 202
    batch = answer.json()
    assert answer.headers["location"] == f"/v1/batches/{batch['id']}"
    assert (batch["asked"], batch["states"], batch["status"]) == (4, {"queued": 3}, "queued")
    gains = [item["expected_gain"] for item in batch["items"]]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > gains[-1]
    assert batch["items"][-1]["gemm"] == "129x1021x1027:f16:nt"
    assert service.http.get(answer.headers["location"]).json() == batch
    claimed = [service.queue.claim("w", [CPU.key], 60.0) for _ in gains]
    assert [str(job.request.gemm) for job in claimed if job] == [item["gemm"] for item in batch["items"]]
    assert service.http.get(f"/v1/jobs/{batch['items'][0]['job']}").json()["batch"] == batch["id"]


def test_shapes_may_have_a_range_of_rows(service: Service) -> None:
    batch = post(service, shapes=[[67, 31], [41, 37]], problem={"m": "1..64", "dtype": "f32"}).json()
    assert batch["states"] == {"queued": 2}
    assert {item["gemm"] for item in batch["items"]} == {"1..64x67x31:f32:nt", "1..64x41x37:f32:nt"}


def test_known_kernels_are_hits_whether_or_not_a_worker_lives(service: Service) -> None:
    request = JobRequest(Gemm.parse("11x67x31"), CPU)
    known = kernel_record(service.store, request, search={"effort": "standard"})
    answer = post(service, gemms=["11x67x31"], device=CPU.key)
    assert answer.status_code == 200
    batch = answer.json()
    assert (batch["status"], batch["states"], batch["items"][0]["kernel"]) == ("done", {"hit": 1}, known.id)
    assert batch["links"]["self"] in service.http.get("/v1/batches").text
    more = post(service, gemms=["11x67x31"], effort="exhaustive").json()
    job = service.http.get(f"/v1/jobs/{more['items'][0]['job']}").json()
    assert (job["effort"], job["fallback_id"]) == ("exhaustive", known.id), "it goes on from what is recorded"
    service.queue.remove_worker("elsewhere:1:0")
    try:
        assert post(service, gemms=["11x67x31"], device=CPU.key).status_code == 200
        assert post(service, gemms=["13x67x31"], device=CPU.key).json()["code"] == "device_unavailable"
    finally:
        service.queue.register_worker("elsewhere:1:0", [CPU])


def test_a_batch_asks_for_records_of_other_devices_as_one_kernel_does(service: Service, client: Client) -> None:
    origin = {"device": "cuda:sm_90a:nvidia-h200:132", "environment": {}, "same": False, "other_device": True}
    request = JobRequest(Gemm.parse("17x67x31"), CPU)
    other = kernel_record(service.store, request, search={"ended": "shipped", "shipped": origin, "effort": "standard"})
    asked = ["17x67x31", "27x67x31"]
    unasked = client.submit_batch(asked, device=CPU.key)
    assert unasked["states"] == {"queued": 2}, "a kernel of another device's configs answers only who asks for it"
    batch = client.submit_batch(asked, device=CPU.key, other_devices=True)
    items = {item["gemm"]: item for item in batch["items"]}
    hit, queued = items["17x67x31:f16:nt"], items["27x67x31:f16:nt"]
    assert (hit["state"], hit["kernel"]) == ("hit", other.id)
    assert queued["job"] not in {item["job"] for item in unasked["items"]}, "another request's job"
    assert service.http.get(f"/v1/jobs/{queued['job']}").json()["other_devices"] is True
    refused = post(service, gemms=asked, other_devices=1)
    assert (refused.status_code, "other_devices" in refused.json()["detail"]) == (422, True)


def test_one_budget_is_divided_by_the_expected_gain(service: Service) -> None:
    batch = post(service, gemms=["129x67x31", "1023x1021x1027"], budget={"trials": 40, "seconds": 30}).json()
    assert batch["budget"] == {"trials": 40, "seconds": 30.0}
    first = service.queue.claim("w", [CPU.key], 60.0)
    assert first is not None
    job = service.http.get(f"/v1/jobs/{first.id}").json()
    assert 20 < job["budget"]["trials"] < 40
    spent = service.http.get(f"/v1/batches/{batch['id']}").json()["spent"]
    assert (spent["trials"], spent["reserved_trials"]) == (0, job["budget"]["trials"])


def test_a_thousand_problems_with_every_field_go_into_a_queue_that_has_others(tmp_path: Path) -> None:
    """Under the settings that a service has by itself, and with an API key."""
    largest = Gemm.parse("1..8192x4096x4096:bf16:nt:bias:act=gelu:deterministic:invariant").to_json()
    gemms = [largest | {"n": 4096 + 8 * number} for number in range(1000)]
    with serving(tmp_path, worker=False) as service:
        service.queue.register_worker("elsewhere:1:0", [CPU])
        secret = service.state.access.table.create("ci", "tune")[1]
        service.state.access.read()
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        assert service.post(headers=headers | {"Prefer": "wait=0"}).status_code == 202
        body = json.dumps({"gemms": gemms}, indent=4)
        assert len(body) > 500_000
        answer = service.http.post("/v1/batches", content=body, headers=headers)
        assert answer.status_code == 202, answer.text
        assert (answer.json()["states"], answer.json()["asked"]) == ({"queued": 1000}, 1000)
        assert {job.key_id for job in service.queue.jobs(2000)} == {job.key_id for job in service.queue.jobs(1)}
        assert len(service.queue.jobs(2000)) == 1001


def test_a_batch_without_room_is_told_how_many_wait_and_one_that_never_has_room_is_no_request(tmp_path: Path) -> None:
    with serving(tmp_path, worker=False, max_queued=3) as service:
        service.queue.register_worker("elsewhere:1:0", [CPU])
        assert service.post(headers={"Prefer": "wait=0"}).status_code == 202
        answer = post(service, gemms=["7x5x3", "9x5x3", "11x5x3"])
        assert (answer.status_code, answer.json()["code"]) == (503, "queue_full")
        assert "1 job waits already, this request adds 3, and at most 3 may wait" in answer.json()["detail"]
        answer = post(service, gemms=["7x5x3", "9x5x3", "11x5x3", "13x5x3"])
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert "4 new jobs are more than the 3 that may wait" in answer.json()["detail"]
        assert post(service, gemms=["7x5x3", "9x5x3", ODD]).status_code == 202, "what is joined needs no room"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, "0 problems; it must have 1 to 1000"),
        ({"gemms": [ODD] * 1001}, 422, "gemms"),
        ({"gemms": [ODD, "0x67x31"]}, 422, "gemms.1: "),
        ({"gemms": [ODD], "shapes": [[5, 3]], "problem": {"m": 0}}, 422, "shapes.0: "),
        ({"shapes": [[5, 3]]}, 422, "problem is missing"),
        ({"gemms": [ODD], "problem": {"m": 3}}, 422, "problem is given without shapes"),
        ({"shapes": [[5, 3]], "problem": {"m": 3, "n": 5}}, 422, "names n or k"),
        ({"shapes": [[5, 3, 1]], "problem": {"m": 3}}, 422, "shapes.0"),
        ({"gemms": [ODD], "budget": {"trials": 4097}}, 422, "from 1 to 4096 for each"),
        ({"gemms": [ODD, "7x5x3"], "budget": {"trials": 1}}, 422, "budget trials is 1 for 2 problems"),
        ({"gemms": [ODD], "budget": {"hours": 1}}, 422, "budget.hours: no such member; there are trials, seconds"),
        ({"gemms": [ODD], "retune": True}, 422, "no such member; there are gemms, shapes, problem"),
        ({"gemms": [ODD], "device": "sm_80"}, 409, "sm_80"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    service: Service, body: dict[str, Any], status: int, words: str
) -> None:
    before = len(service.http.get("/v1/batches", params={"limit": 100}).json()["batches"])
    answer = post(service, **body)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
    assert len(service.http.get("/v1/batches", params={"limit": 100}).json()["batches"]) == before
    assert service.queue.jobs(status="queued") == []


def test_a_batch_is_followed_to_its_end_and_cancelled_as_one(service: Service, client: Client) -> None:
    batch = client.submit_batch(["129x67x31", "131x67x31"], device=CPU.key, queue={"priority": 3})
    progress = client.batch_progress(batch["id"])
    assert next(progress)["states"] == {"queued": 2}
    job = service.queue.claim("w", [CPU.key], 60.0)
    assert job is not None
    assert job.request.priority == 3
    assert next(progress)["states"] == {"queued": 1, "running": 1}
    kernel = kernel_record(service.store, job.request)
    assert service.queue.finish(job.id, "w", "done", kernel_id=kernel.id)
    assert next(progress)["states"] == {"done": 1, "queued": 1}
    assert client.cancel_batch(batch["id"])["status"] == "cancelled"
    assert [told["status"] for told in progress] == ["cancelled"]
    assert client.batch(batch["id"])["states"] == {"done": 1, "cancelled": 1}
    path = f"/v1/batches/{batch['id']}/events"
    with service.http.stream("GET", path, headers={"Last-Event-ID": "3"}) as response:
        text = response.read().decode()
    assert ("id: 4" in text, "event: cancelled" in text) == (True, True), "told again to whoever comes back"


def test_the_stream_of_a_batch_beats_for_who_asks(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BEAT_SECONDS", 0.05)
    batch = client.submit_batch(["129x67x31", "131x67x31"], device=CPU.key)
    with service.http.stream("GET", f"/v1/batches/{batch['id']}/events?alive=true") as response:
        stream = sse(response.iter_lines())
        kinds = [next(stream)[1] for _ in range(5)]
        assert (kinds[0], kinds.count("alive"), kinds.count("progress")) == ("alive", 4, 1)
        client.cancel_batch(batch["id"])
        assert [kind for _, kind, _ in stream if kind != "alive"] == ["cancelled"]


def test_a_batch_that_is_done_is_neither_followed_for_long_nor_cancelled(service: Service, client: Client) -> None:
    kernel_record(service.store, JobRequest(Gemm.parse("17x67x31"), CPU), search={"effort": "standard"})
    batch = client.submit_batch(["17x67x31"], device=CPU.key)
    assert [told["status"] for told in client.batch_progress(batch["id"])] == ["done"]
    answer = service.http.delete(f"/v1/batches/{batch['id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "job_finished")
    assert service.http.get("/v1/batches/nope").json()["code"] == "batch_not_found"
    assert client.batches(1)[0]["id"] == batch["id"]


def test_whose_batch_it_is(tmp_path: Path) -> None:
    with serving(tmp_path, worker=False) as service:
        service.queue.register_worker("elsewhere:1:0", [CPU])
        table = service.state.access.table
        secrets = {name: table.create(name, scope)[1] for name, scope in SCOPES.items()}
        service.state.access.read()

        def send(name: str, method: str, path: str, body: object = None) -> httpx.Response:
            return service.http.request(method, path, json=body, headers={"Authorization": f"Bearer {secrets[name]}"})

        assert send("reader", "POST", "/v1/batches", {"gemms": [ODD]}).json()["code"] == "insufficient_scope"
        urgent = {"gemms": [ODD], "queue": {"priority": 99}}
        assert send("tuner", "POST", "/v1/batches", urgent).json()["code"] == "priority_refused"
        path = send("tuner", "POST", "/v1/batches", {"gemms": [ODD]}).headers["location"]
        assert repeatable_id("a", "tuner", b"{}") != repeatable_id("a", "other", b"{}")
        assert send("reader", "GET", path).json()["status"] == "queued"
        assert send("other", "DELETE", path).json()["code"] == "not_your_job"
        assert send("admin", "DELETE", path).json()["status"] == "cancelled"
        log = [(stored.entry.action, stored.entry.object) for stored in service.state.access.audit.entries(5)]
    assert log == [
        ("DELETE", path),
        ("DELETE", path),
        ("POST", path),
        ("POST", "/v1/batches"),
        ("POST", "/v1/batches"),
    ]


SCOPES = {"reader": "read", "tuner": "tune", "other": "tune", "admin": "admin"}


def test_the_commands_submit_a_model_file_and_show_what_becomes_of_it(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_folders(tmp_path, monkeypatch)
    Trust.of_user().add(TRUSTED, service.url)
    call = runner(capsys, "batches")
    url = ("--url", service.url)
    file = tmp_path / "model.toml"
    file.write_text(f'device = "{CPU.key}"\n[kernels]\nqkv = "19x67x31"\n"mlp/up" = {{m = 23, n = 67, k = 31}}\n')
    code, out, _ = call("submit", file, *url, "--trials", 30, "--window", "00:00-23:59", "--other-devices", "--json")
    batch = json.loads(out)
    assert (code, batch["states"], batch["budget"]["trials"]) == (0, {"queued": 2}, 30)
    assert all(job.request.other_devices for job in service.queue.jobs() if job.batch_id == batch["id"])
    assert "2 queued" in call("list", *url)[1]
    shown = call("show", batch["id"], *url)[1]
    assert ("19x67x31:f16:nt" in shown, "23x67x31:f16:nt" in shown) == (True, True)
    assert "is cancelled: 2 cancelled" in call("cancel", batch["id"], *url)[1]
    code, out, _ = call("watch", batch["id"], *url)
    assert (code, "is cancelled" in out) == (1, True)


def test_a_batch_whose_problems_ended_without_a_kernel_fails_the_watching_and_names_them(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_folders(tmp_path, monkeypatch)
    watch = runner(capsys, "batches", "watch")
    known = kernel_record(service.store, JobRequest(Gemm.parse("27x67x31"), CPU), search={"effort": "standard"})
    gemms = [f"{m}x67x31:f16:nt" for m in range(29, 35)]
    first = post(service, gemms=gemms).json()
    joined = post(service, gemms=[*gemms, "27x67x31"]).json()
    assert {item["job"] for item in first["items"]} <= {item["job"] for item in joined["items"]}
    service.http.delete(first["links"]["self"])
    code, out, err = watch(joined["id"], "--url", service.url)
    assert (code, f"batch {joined['id']} is done: 6 cancelled, 1 hit" in out) == (1, True)
    (said,) = [line for line in err.splitlines() if line.startswith("without a kernel: ")]
    assert said.startswith("without a kernel: 6 cancelled (")
    assert said.endswith(", ...)")
    named = [gemm for gemm in gemms if gemm in said]
    assert (len(named), "27x67x31" in said) == (5, False)
    hits = post(service, gemms=["27x67x31"]).json()
    code, _, err = watch(hits["id"], "--url", service.url)
    assert (code, "without a kernel" in err) == (0, False)
    service.store.delete_kernel(known.id)
    code, out, err = watch(hits["id"], "--url", service.url, "--json")
    assert (code, json.loads(out)["states"]) == (1, {"deleted": 1})
    assert err.splitlines()[-1] == "without a kernel: 1 deleted (27x67x31:f16:nt)"


def test_a_finished_job_whose_kernel_was_deleted_fails_the_watching_of_its_batch(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_folders(tmp_path, monkeypatch)
    batch = post(service, gemms=["53x67x31"]).json()
    job = service.queue.claim("w", [CPU.key], 60.0)
    assert job is not None
    kernel = kernel_record(service.store, job.request)
    assert service.queue.finish(job.id, "w", "done", kernel_id=kernel.id)
    watch = runner(capsys, "batches", "watch", batch["id"], "--url", service.url)
    assert watch()[0] == 0
    service.store.delete_kernel(kernel.id)
    code, _, err = watch()
    assert (code, err.splitlines()[-1]) == (1, "without a kernel: 1 deleted (53x67x31:f16:nt)")
