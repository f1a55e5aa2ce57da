"""The client against the real service over a socket: jobs followed, kernels loaded and called, errors as documents."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.helpers.artifact_samples import CONFIG, SIGNER, certified, operands
from tests.service.support import CPU, ScriptedEngine, Service, serving
from tests.waiting import PATIENCE_S
from tirgemm import Client, Device, Gemm
from tirgemm.errors import Cancelled, MismatchedArtifact, ServiceError
from tirgemm.events import CandidateRecorded, Done, Event
from tirgemm.service import cli
from tirgemm.timings import SearchSummary, Timing, Timings
from tirgemm.tuning.records import Certificate, KernelRecord
from tirgemm.tuning_db import JobQueue, JobRequest, SqlStore

SHAPE = Gemm.parse("33x17x19:f32:nt")


def packed_record(
    store: SqlStore,
    request: JobRequest,
    role: Any = "tuned",
    salt: str = "",
    device: Device | None = None,
    search: dict[str, Any] | None = None,
) -> KernelRecord:
    """A stored kernel with a real artifact, which says which role it has."""
    del salt
    timings = Timings(
        {"sustained": Timing(12.5)}, search=SearchSummary.from_json(search) if search is not None else None
    )
    data = certified(request.gemm, config=CONFIG, timings=timings, regime=request.regime, role=role)
    certificate = Certificate("0" * 64, True, ({"name": "exact"},), "numpy fp64")
    record = KernelRecord(
        gemm=request.gemm,
        device=device or request.device,
        regime=request.regime,
        role=role,
        config=CONFIG,
        kernel_sha256=certificate.kernel_sha256,
        artifact_sha256=store.put_blob(data),
        artifact_bytes=len(data),
        certificate=certificate,
        timings=timings,
        trials=request.trials,
        created_at="2026-01-01T00:00:00Z",
    )
    return store.put_kernel(record)


@pytest.fixture
def engine(service: Service, monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    monkeypatch.setattr("tests.service.support.kernel_record", packed_record)
    return service.engine


@pytest.fixture
def client(service: Service, tmp_path: Path) -> Iterator[Client]:
    with Client(service.url, trust=SIGNER.public, cache_dir=tmp_path / "cache", patience=PATIENCE_S) as actual:
        yield actual


def test_a_kernel_is_tuned_followed_loaded_and_called(service: Service, engine: ScriptedEngine, client: Client) -> None:
    engine.fallback_gate.set()
    told: list[str] = []

    def on_event(event: Event) -> None:
        told.append(event.kind)
        if isinstance(event, CandidateRecorded):
            engine.gate.set()

    with service.worker():
        kernel = client.kernel(SHAPE, on_event=on_event)
    assert kernel.manifest.role == "tuned"
    assert told.count("candidate") == 3
    assert told.index("started") < told.index("candidate") < told.index("done") < told.index("download")
    tensors, product = operands(SHAPE)
    assert np.array_equal(kernel(tensors["a"], tensors["b"]), product)
    answer = client.submit(SHAPE)
    assert answer.kernel is not None, "the second request is answered from the database"
    assert client.kernel_document(answer.kernel["id"]) == answer.kernel
    assert {k["role"] for k in client.kernels(limit=5)} == {"tuned", "fallback"}
    assert len(client.kernels(limit=1)) == 1


def test_the_fallback_is_used_while_the_search_goes_on(
    service: Service, engine: ScriptedEngine, client: Client
) -> None:
    engine.fallback_gate.set()
    with service.worker():
        assert client.kernel(SHAPE, wait="fallback").manifest.role == "fallback"
        assert client.kernel(SHAPE, wait=0.3).manifest.role == "fallback", "though the search does not end"
        engine.gate.set()
        assert client.kernel(SHAPE).manifest.role == "tuned"


def test_submitting_waits_for_nobody(tmp_path: Path) -> None:
    with serving(tmp_path / "data", fallback_seconds=60) as service:
        # Read for less than a single fallback is waited for: a submit that waited would fail.
        with Client(service.url, trust=[], cache_dir=tmp_path / "cache", timeout=50, patience=0.0) as client:
            with pytest.raises(ServiceError, match="no worker is alive"):
                client.submit(SHAPE)
            service.queue.register_worker("elsewhere:1:0", [CPU])
            answers = [client.submit(SHAPE.with_(m=m)) for m in range(1, 51)]
        assert all(answer.job is not None and answer.job["status"] == "queued" for answer in answers)
        assert len({answer.job_id for answer in answers}) == 50 == len(service.queue.jobs())


def test_without_a_worker_the_default_is_for_who_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    with (
        serving(tmp_path / "data", worker=False, fallback_seconds=0.1) as service,
        Client(service.url, trust=SIGNER.public, cache_dir=tmp_path / "cache", patience=PATIENCE_S) as client,
    ):
        JobQueue(service.queue.db, lambda: time.time() - 3600.0).register_worker("gone:1:0", [CPU])
        packed_record(service.store, JobRequest(SHAPE, CPU), role="fallback")
        for wanted in ({"wait": "fallback"}, {"wait": 5.0}, {"effort": "none"}):
            assert client.kernel(SHAPE, **wanted).manifest.role == "fallback"
        with pytest.raises(MismatchedArtifact, match="as where no worker has the device"):
            client.kernel(SHAPE)
        service.state.public_key = SIGNER.public
        options = ["--url", service.url, "-o", str(tmp_path / "k.tirgemm"), "--trust", SIGNER.public]
        assert cli.main(["get", str(SHAPE), *options]) == 1
        assert "--default, --wait SECONDS or --effort none takes it" in " ".join(capsys.readouterr().err.split())
        assert cli.main(["get", str(SHAPE), *options, "--default"]) == 0


@pytest.mark.parametrize("has_default", [False, True])
def test_a_worker_that_is_still_starting_is_waited_for(
    service: Service, engine: ScriptedEngine, client: Client, has_default: bool
) -> None:
    if has_default:
        packed_record(service.store, JobRequest(SHAPE, CPU), role="fallback")
    engine.fallback_gate.set()
    engine.gate.set()
    posts: list[str] = []

    def register(request: httpx.Request) -> None:
        if request.method == "POST":
            posts.append(request.headers.get("prefer", ""))
            if len(posts) == 2:
                starting.start()

    with contextlib.ExitStack() as stack:
        starting = threading.Timer(0.1, lambda: stack.enter_context(service.worker()))
        client._session._http.event_hooks = {"request": [register]}
        assert client.kernel(SHAPE).manifest.role == "tuned"
        starting.join()
    assert posts == ["wait=0", ""], "first at once, then as long as the service waits"


def test_a_larger_budget_and_retune_go_on_with_the_search(
    service: Service, engine: ScriptedEngine, client: Client
) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    with service.worker():
        for trials, retune, jobs in ((4, False, 1), (4, False, 1), (8, False, 2), (8, True, 3)):
            client.kernel(SHAPE, budget={"trials": trials}, retune=retune)
            assert len(service.queue.jobs()) == jobs, (trials, retune)
        client.kernel(SHAPE)
        assert len(client.jobs()) == 3
    engine.gate.clear()
    with service.worker():
        answer = client.submit(SHAPE, retune=True)
        assert answer.fallback is not None, "what is there answers meanwhile"
        assert answer.fallback["role"] == "tuned"
        assert client.kernel(SHAPE, budget={"trials": 99}, wait="fallback").manifest.role == "tuned"
        service.wait_for(answer.job_id, "running")
        assert [job["status"] for job in client.jobs(2, gemm=SHAPE, device=CPU)] == ["queued", "running"]
        assert [job["id"] for job in client.jobs(status="running")] == [answer.job_id]


def test_a_deleted_kernel_is_asked_for_anew(service: Service, engine: ScriptedEngine, client: Client) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    with service.worker():
        first = client.document(SHAPE)
        client.delete(first["id"])
        with pytest.raises(ServiceError, match="there is no kernel"):
            client.delete(first["id"])
        assert client.kernels(gemm=SHAPE, device=CPU, regime="sustained")[0]["role"] == "fallback"
        assert client.document(SHAPE)["id"] != first["id"]


def test_a_kernel_that_is_deleted_when_its_job_ends_is_told(
    service: Service, engine: ScriptedEngine, client: Client
) -> None:
    engine.fallback_gate.set()
    engine.gate.set()

    def delete(event: Event) -> None:
        if isinstance(event, Done) and event.kernel:
            client.delete(event.kernel)

    with (
        service.worker(),
        pytest.raises(ServiceError, match="is done, but its kernel was deleted or revoked; ask again"),
    ):
        client.kernel(SHAPE, on_event=delete)


def test_events_go_on_where_they_were_left(service: Service, engine: ScriptedEngine, client: Client) -> None:
    engine.fallback_gate.set()
    with service.worker():
        job_id = client.submit(SHAPE).job_id
        first = []
        for event in client.events(job_id):
            first.append(event)
            if len(first) == 3:
                break
        engine.gate.set()
        rest = list(client.events(job_id, after=first[-1].id))
    numbers = [event.id for event in (*first, *rest)]
    assert numbers == sorted(set(numbers))
    assert rest[-1].kind == "done"
    assert [event.id for event in client.events(job_id)] == numbers, "what is past can be read again"


def test_a_cancelled_job_ends_the_wait(service: Service, engine: ScriptedEngine, client: Client) -> None:
    engine.fallback_gate.set()
    with service.worker():
        job_id = client.submit(SHAPE).job_id

        def cancel(event: Event) -> None:
            if event.kind == "started":
                client.cancel(job_id)

        with pytest.raises(Cancelled, match=job_id):
            client.kernel(SHAPE, on_event=cancel)


def test_errors_come_with_the_services_document(
    service: Service, engine: ScriptedEngine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried = service.state.settings.model_copy(update={"fallback_seconds": 0.1})
    monkeypatch.setattr(service.state, "settings", hurried)
    with pytest.raises(ServiceError, match="no worker is alive") as caught:
        client.kernel(SHAPE)
    assert (caught.value.http_status, caught.value.problem["code"]) == (409, "device_unavailable")
    with pytest.raises(ServiceError) as caught:
        client.job("nothing")
    assert caught.value.http_status == 404
    with pytest.raises(ServiceError) as caught:
        list(client.events("12345678"))
    assert caught.value.http_status == 404
    with pytest.raises(ServiceError) as caught:
        client.artifact("0" * 64)
    assert caught.value.http_status == 404
    engine.gate.set()
    engine.fallback_gate.set()
    with service.worker(), pytest.raises(ServiceError, match="every candidate of this problem fails"):
        client.kernel(33, 13, 19, dtype="f32", wait=True)
    with service.worker(), pytest.raises(ServiceError, match="budget") as caught:
        client.submit(SHAPE, budget={"trials": 0})
    assert caught.value.http_status == 422


def test_meta_and_keys_are_the_services(service: Service, client: Client) -> None:
    assert client.meta()["version"] == "0.1.0"
    assert client.keys() == (service.state.public_key,)


def test_get_writes_the_artifact_of_a_running_service(
    service: Service,
    engine: ScriptedEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    service.state.public_key = SIGNER.public  # which this test's kernels are signed with
    engine.gate.set()
    engine.fallback_gate.set()
    out = tmp_path / "k.tirgemm"
    with service.worker():
        code = cli.main(["get", str(SHAPE), "--url", service.url, "-o", str(out), "--trust", SIGNER.public, "--json"])
    said = capsys.readouterr()
    assert (code, json.loads(said.out)["kernel"]["role"]) == (0, "tuned")
    assert cli.main(["call", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
