"""A real server on a free loopback port, in this process, with a worker whose engine the test drives."""

from __future__ import annotations

import hashlib
import json
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.waiting import PATIENCE_S, until
from tirgemm.config import Config
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, Cancelled
from tirgemm.events import CandidateRecorded, EventHandler, KernelSelected, SearchStarted
from tirgemm.events import Event as TuningEvent
from tirgemm.service.http.state import ServiceState
from tirgemm.service.jobs.worker import Worker
from tirgemm.service.server.http_server import HttpServer
from tirgemm.service.settings import Settings
from tirgemm.status import Status
from tirgemm.timings import SearchSummary, Timing, Timings
from tirgemm.tuning.records import Certificate, KernelRecord
from tirgemm.tuning.records.store import Store
from tirgemm.tuning_db import JobQueue, JobRequest, SqlStore
from tirgemm.tuning_db.data_folder import open_database

CPU = detect_device("cpu")
ODD = "129x67x31:f16:nt"
# Read once for the clients of all tests, which need none: it takes 20 ms.
AUTHORITIES = httpx.create_ssl_context()


def kernel_record(
    store: Store,
    request: JobRequest,
    role: Any = "tuned",
    salt: str = "",
    device: Device | None = None,
    search: dict[str, Any] | None = None,
    timing: Timing | None = None,
    artifact: bytes = b"",
) -> KernelRecord:
    """A stored kernel that spent the trials of ``request``, whose artifact is by default a few bytes: the service looks
    into it only where something is revoked. ``timing`` is that of its regime."""
    blob = artifact or f"artifact of {request.gemm} {role} {salt}".encode() * 9
    sha256 = store.put_blob(blob)
    kernel_sha256 = hashlib.sha256(blob + b"kernel").hexdigest()
    certificate = Certificate(
        kernel_sha256, True, ({"test": "exact", "error": 0.0},), "numpy", {"python": "3"}, "2026-01-01T00:00:00Z"
    )
    record = KernelRecord(
        gemm=request.gemm,
        device=device or request.device,
        regime=request.regime,
        role=role,
        config=Config("x86", (("tile_m", 8), ("pack", True))),
        kernel_sha256=kernel_sha256,
        artifact_sha256=sha256,
        artifact_bytes=len(blob),
        certificate=None if role == "unverified" else certificate,
        timings=Timings(
            {request.regime: timing or Timing(12.5)}, search=SearchSummary.from_json(search) if search else None
        ),
        trials=request.trials,
        created_at="2026-01-01T00:00:00Z",
    )
    return store.put_kernel(record)


@dataclass
class ScriptedEngine:
    """An Engine whose pace the test sets: ``gate`` holds the search, ``fallback_gate`` the fallback; a search that is
    held tells the ``events`` that the test puts there."""

    store: SqlStore
    devices_here: list[Device] = field(default_factory=lambda: [CPU])
    candidates: int = 3
    gate: threading.Event = field(default_factory=threading.Event)
    fallback_gate: threading.Event = field(default_factory=threading.Event)
    calls: list[tuple[str, str]] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    fail_with: Exception | None = None
    unusable: Exception | None = None
    events: queue.SimpleQueue[TuningEvent] = field(default_factory=queue.SimpleQueue)

    def engines(self) -> list[ScriptedEngine]:
        """Also a fleet: of this one."""
        return [self]

    def devices(self) -> list[Device]:
        return self.devices_here

    def measuring_seconds(self) -> list[float]:
        return [0.0 for _ in self.devices_here]

    def warm(self) -> None:
        self.calls.append(("warm", ""))

    def require_usable(self, cancel: threading.Event) -> None:
        del cancel
        self.calls.append(("open", ""))
        if self.unusable is not None:
            raise self.unusable

    def prepare(self, waiting: Sequence[JobRequest], bare: Sequence[JobRequest]) -> list[JobRequest]:
        self.prepared = [str(request.gemm) for request in waiting]
        self.bare = [str(request.gemm) for request in bare]
        return list(bare)

    def claiming(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def holding(self, request: JobRequest) -> Iterator[None]:
        self.held.append(str(request.gemm))
        yield
        self.held.remove(str(request.gemm))

    def fallback(
        self,
        request: JobRequest,
        cancel: threading.Event,
        on_event: EventHandler | None = None,
    ) -> KernelRecord:
        del on_event
        _hold(self.fallback_gate, cancel)
        self.calls.append(("fallback", str(request.gemm)))
        return kernel_record(self.store, request, "fallback")

    def tune(
        self,
        request: JobRequest,
        on_event: EventHandler,
        cancel: threading.Event,
        between_batches: Callable[[], None],
    ) -> KernelRecord:
        self.calls.append(("tune", str(request.gemm)))
        on_event(SearchStarted(gemm=str(request.gemm)))
        for number in range(self.candidates):
            on_event(CandidateRecorded(trials=number + 1, status=Status.MEASURED))
            between_batches()
        while not self.gate.wait(0.02):
            between_batches()
            while not self.events.empty():
                on_event(self.events.get())
            if cancel.is_set():
                raise Cancelled("stopped")
        if self.fail_with is not None:
            raise self.fail_with
        if request.gemm.n == 13:
            raise BuildFailed("every candidate of this problem fails to build")
        on_event(KernelSelected(config="x86"))
        return kernel_record(self.store, request, "tuned", search={"effort": request.effort.value})

    def cross_compile(self, request: JobRequest, on_event: EventHandler, cancel: threading.Event) -> KernelRecord:
        del cancel
        self.calls.append(("cross_compile", str(request.gemm)))
        on_event(SearchStarted(device=request.device.key))
        return kernel_record(self.store, request, "unverified")

    def close(self) -> None:
        self.calls.append(("close", ""))


def _hold(gate: threading.Event, cancel: threading.Event) -> None:
    while not gate.wait(0.02):
        if cancel.is_set():
            raise Cancelled("stopped")


@dataclass
class Service:
    """One running service and the means to look behind it."""

    url: str
    http: httpx.Client
    state: ServiceState
    engine: ScriptedEngine
    server: HttpServer

    @property
    def queue(self) -> JobQueue:
        return self.state.queue

    @property
    def store(self) -> SqlStore:
        return self.state.store

    def post(self, gemm: Any = ODD, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        return self.http.post("/v1/kernels", json={"gemm": gemm, **body}, headers=headers or {})

    def wait_for(self, job_id: str, status: str) -> dict[str, Any]:
        job: dict[str, Any] = {}

        def reached() -> bool:
            job.update(self.http.get(f"/v1/jobs/{job_id}").json())
            assert job["status"] in (status, "queued", "running"), job
            return bool(job["status"] == status)

        until(reached)
        return job

    @contextmanager
    def worker(self, name: str = "") -> Iterator[Worker]:
        """A worker on the scripted engine, in a thread, whose leases run out in no test."""
        worker = Worker(self.queue, self.store, self.engine, lease_s=600.0, name=name)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            until(lambda: bool(self.queue.live_workers(600.0)))
            yield worker
        finally:
            worker.stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "the worker does not stop"


@contextmanager
def serving(data: Path, listen_at: int = 0, **options: Any) -> Iterator[Service]:
    """The application under uvicorn in a thread, on a data folder of its own; at a free port, or at that of a service
    that has ended. A worker that a test has registered by hand counts as alive for longer than any test takes, and no
    machine is too busy for a default kernel within its time: a test that waits for none says so."""
    usual = {"data": data, "lock_dir": data / "locks", "fallback_seconds": 60.0, "lease_seconds": 600.0}
    settings = Settings.load(**usual | options)
    database = open_database(settings.data, settings.db or None)
    state = ServiceState(settings, database, "ed25519:" + "A" * 43 + "=")
    listener = socket.create_server(("127.0.0.1", listen_at))
    server = HttpServer(state)
    server.config.timeout_graceful_shutdown = 1
    # After its five seconds a connection is closed, perhaps just when a busy client sends its next request over it.
    server.config.timeout_keep_alive = round(10 * PATIENCE_S)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with httpx.Client(base_url=url, timeout=PATIENCE_S, verify=AUTHORITIES) as http:
        yield Service(url, http, state, ScriptedEngine(state.store), server)
    server.handle_exit(signal.SIGTERM, None)
    thread.join(PATIENCE_S)
    listener.close()
    state.explainer.close()
    database.close()


Event = tuple[int | None, str, dict[str, Any]]


def sse(lines: Iterator[str]) -> Iterator[Event]:
    """Events of a stream as (id, kind, data)."""
    current: dict[str, str] = {}
    for line in lines:
        if line == "":
            if "data" in current:
                number = int(current["id"]) if "id" in current else None
                yield number, current.get("event", "message"), json.loads(current["data"])
            current = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            current[name] = value


def read_events(http: httpx.Client, job_id: str, after: int | None = None) -> list[Event]:
    """All events of a job until its stream ends, from behind an event id if given."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    with http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(sse(response.iter_lines()))


@contextmanager
def queueing(folder: Path) -> Iterator[Service]:
    """A service without a worker process, which believes that there is one."""
    with serving(folder, worker=False) as service:
        service.queue.register_worker("elsewhere:1:0", [CPU])
        yield service
