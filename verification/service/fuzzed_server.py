"""The server that requests at random are sent to: a kernel, an API key, and a worker that ends every job at once.

usage: python -m verification.service.fuzzed_server FOLDER [--open-windows]     prints one JSON object with its port
and an API key; ends with its stdin
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from sqlalchemy import update

from tirgemm.artifact.sign import Signer
from tirgemm.detect import device as detect_device
from tirgemm.errors import StoreError
from tirgemm.events import CandidateRecorded, SearchStarted
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.http.state import ServiceState
from tirgemm.service.jobs.local_fleet import LocalFleet
from tirgemm.service.server.http_server import uvicorn_config
from tirgemm.service.settings import Settings
from tirgemm.status import Status
from tirgemm.tuning_db import JobRequest
from tirgemm.tuning_db.access.api_keys import Quotas
from tirgemm.tuning_db.models import JobRow
from verification.service.served import serve_until_stdin_ends

CPU, GPU = detect_device("cpu"), named_device("sm_90a")
WORKER = "elsewhere:1:0"
# The option with which no job waits for its window to open.
OPEN_WINDOWS = "--open-windows"
PAUSE_SECONDS = 0.02
JOBS_AT_ONCE = 100
# Of a day, which are asked for within minutes.
QUOTAS = Quotas(1e6, 10**6, 10**12, 2**62, 2**62)


def main(folder: Path, *, open_windows: bool) -> None:
    """Serve until stdin ends. ``open_windows``: an event stream of a job that waits for the night lasts until then, and
    so might every request for it."""
    limits = {"fallback_seconds": 0.1, "max_wait_seconds": 0.5, "max_connections": 1024, "max_queued": 100_000}
    # Its worker is believed in on a busy machine, too.
    state = ServiceState.open(Settings.load(data=folder, worker=False, lease_seconds=60.0, **limits))
    _fill(state)
    _, secret = state.access.table.create("fuzzing", "admin", quotas=QUOTAS)
    stopped = threading.Event()
    threading.Thread(target=lambda: _work(state, stopped, open_windows=open_windows), daemon=True).start()
    serve_until_stdin_ends(uvicorn_config(state), key=secret)
    stopped.set()
    state.explainer.close()
    state.database.close()


def _fill(state: ServiceState) -> None:
    """A real kernel of this machine."""
    signer = Signer.load_or_create(state.settings.signing_key)
    fleet = LocalFleet(state.store, signer, processes=1, served=[CPU])
    try:
        fleet.engines()[0].fallback(JobRequest(Gemm.parse("33x17x19:f32:nt"), CPU), threading.Event())
    finally:
        fleet.close()


def _work(state: ServiceState, stopped: threading.Event, *, open_windows: bool) -> None:
    """Be the worker of both devices: every job is begun, told of and ended, one in two with the real kernel."""
    kernel = state.store.kernel(Gemm.parse("33x17x19:f32:nt"), CPU.key, "sustained")
    assert kernel is not None
    data, ended = state.database.blobs.get(kernel.artifact_sha256), 0
    while not stopped.wait(PAUSE_SECONDS):
        try:
            state.queue.register_worker(WORKER, [CPU, GPU])
            if open_windows:
                _open_windows(state)
            # So many until it is registered again.
            for _ in range(JOBS_AT_ONCE):
                job = state.queue.claim(WORKER, [CPU.key, GPU.key], 60.0, unverified=True)
                if job is None:
                    break
                state.queue.add_event(job.id, SearchStarted(gemm=str(job.request.gemm)))
                state.queue.add_event(job.id, CandidateRecorded(trials=1, status=Status.MEASURED))
                ended += 1
                if ended % 2:
                    if state.store.kernel_by_id(kernel.id) is None:  # a request has deleted it
                        state.store.put_blob(data)
                        kernel = state.store.put_kernel(kernel)
                    state.queue.finish(job.id, WORKER, "done", kernel.id)
                else:
                    state.queue.finish(job.id, WORKER, "failed", error="unsupported: no family writes it")
        except StoreError as error:
            print(f"the worker: {error}", file=sys.stderr)


def _open_windows(state: ServiceState) -> None:
    """Let the jobs that wait begin at any time of the day."""
    closed = update(JobRow).where(JobRow.status == "queued", JobRow.window_start.is_not(None))
    with state.database.write() as connection:
        connection.execute(closed.values(window_start=None, window_end=None))


if __name__ == "__main__":
    main(Path(sys.argv[1]), open_windows=OPEN_WINDOWS in sys.argv[2:])
