"""``/metrics`` and ``/readyz``: what is counted under which labels, what it costs, and what is named as missing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from tests.contract.storage.databases import candidate, damage_page, unwritable
from tests.service.support import CPU, ODD, Service, kernel_record, serving
from tirgemm._user_folders import DATABASE
from tirgemm.device import Device
from tirgemm.errors import StoreUnavailable
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service import log_lines
from tirgemm.service.http import metrics, state
from tirgemm.service.http.routes import info
from tirgemm.service.server import process
from tirgemm.service.views.service_figures import FigureReader
from tirgemm.status import Status
from tirgemm.tuning_db import JobRequest, database
from tirgemm.tuning_db.models import WorkerRow

REQUEST = JobRequest(Gemm.parse(ODD), CPU)


def figures(service: Service, headers: dict[str, str] | None = None) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, in the order of their names."""
    answer = service.http.get("/metrics", headers=headers or {})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_requests_are_counted_by_the_template_of_their_route(service: Service) -> None:
    kernel_id = kernel_record(service.store, REQUEST, search={"effort": "standard"}).id
    for _ in range(3):
        assert service.post(device=CPU.key).status_code == 200
    assert service.http.get(f"/v1/kernels/{kernel_id}").status_code == 200
    assert service.http.get("/v1/kernels/beef").status_code == 404
    assert service.http.get("/made/up").status_code == 404
    assert service.http.request("BREW", "/healthz").status_code == 405
    assert service.http.get("/healthz", headers={"Host": "evil.example"}).status_code == 421
    told = figures(service)
    assert told["tirgemm_requests_total", "POST", "/v1/kernels", "200"] == 3
    assert told["tirgemm_requests_total", "GET", "/v1/kernels/{kernel_id}", "200"] == 1
    assert told["tirgemm_requests_total", "GET", "/v1/kernels/{kernel_id}", "404"] == 1
    assert told["tirgemm_requests_total", "GET", "unmatched", "404"] == 1
    assert told["tirgemm_requests_total", "other", "/healthz", "405"] == 1
    assert told["tirgemm_requests_total", "GET", "/healthz", "421"] == 1, "refusals count too"
    assert told["tirgemm_request_seconds_count", "/v1/kernels"] == 3
    assert told["tirgemm_kernel_answers_total", "memory"] == 2
    assert told["tirgemm_kernel_answers_total", "database"] == 1
    assert told["tirgemm_kernel_answers_total", "job"] == 0


def test_the_queue_the_workers_and_the_trials_are_told(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "FIGURES_SECONDS", -1.0)
    gpu = named_device("sm_90a").with_(uuid="GPU-1", index=1)
    service.queue.register_worker("worker:1:0", [CPU, gpu], measuring=[0.5, 7.25])
    service.queue.submit(JobRequest(Gemm.parse("131x67x31"), CPU))
    assert service.post(headers={"Prefer": "wait=0"}).status_code == 202
    told = figures(service)
    assert (told["tirgemm_jobs", "queued"], told["tirgemm_jobs", "running"]) == (2, 0)
    assert told["tirgemm_kernel_answers_total", "job"] == 1
    assert told["tirgemm_trials_total", "measured"] == 0
    lease_s = service.state.settings.lease_seconds
    assert service.queue.claim("worker:1:0", [CPU.key], lease_s) is not None
    service.store.add_candidate(candidate(1))
    service.store.add_candidate(candidate(2, status=Status.BUILD_FAILED, sample_sets=()))
    service.store.add_candidate(candidate(3, status=Status.PRUNED, sample_sets=()))
    told = figures(service)
    assert (told["tirgemm_jobs", "queued"], told["tirgemm_jobs", "running"]) == (1, 1)
    assert told["tirgemm_trials_total", "measured"] == told["tirgemm_trials_total", "pruned"] == 1
    assert told["tirgemm_builds_total", "built"] == told["tirgemm_builds_total", "failed"] == 1
    assert 0 <= told["tirgemm_lease_age_seconds", "worker:1:0"] < 60
    assert 0 <= told["tirgemm_worker_age_seconds", "worker:1:0"] < 60
    assert told["tirgemm_measuring_seconds_total", "cpu", CPU.uuid, "worker:1:0"] == 0.5
    assert told["tirgemm_measuring_seconds_total", "cuda:1", "GPU-1", "worker:1:0"] == 7.25
    assert figures(service)["tirgemm_trials_total", "measured"] == 1, "each is counted once"


def test_the_database_is_read_once_however_often_it_is_asked(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "FIGURES_SECONDS", 1000.0)
    reads = []
    real = FigureReader.read

    def read(self: FigureReader) -> object:
        reads.append(self)
        return real(self)

    monkeypatch.setattr(FigureReader, "read", read)
    for _ in range(3):
        assert figures(service)["tirgemm_database_up",] == 1
    assert len(reads) == 1


def test_without_its_database_a_server_still_tells_what_it_counted(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_self: FigureReader) -> None:
        raise StoreUnavailable("it does not answer")

    monkeypatch.setattr(FigureReader, "read", read)
    told = figures(service)
    assert told["tirgemm_database_up",] == 0
    assert ("tirgemm_jobs", "queued") not in told
    assert ("tirgemm_kernel_answers_total", "memory") in told


def test_metrics_take_a_key_once_there_is_one(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        _, secret = service.state.access.table.create("prometheus", "read")
        service.state.access.read()
        assert service.http.get("/metrics").status_code == 401
        told = figures(service, {"Authorization": f"Bearer {secret}"})
        assert told["tirgemm_requests_total", "GET", "/metrics", "401"] == 1


@pytest.mark.parametrize(("usable", "status"), [([], 503), ([CPU.with_(model="another model")], 200)])
def test_readiness_tells_nobody_without_a_key_why_a_device_cannot_be_used(
    tmp_path: Path, usable: list[Device], status: int
) -> None:
    with serving(tmp_path) as service:
        _, secret = service.state.access.table.create("a team", "read")
        service.state.access.read()
        faults = ["GPU GPU-1 cannot be opened", *[""] * len(usable)]
        service.queue.register_worker("worker:1:0", [CPU, *usable], faults=faults)
        answer = service.http.get("/readyz")
        assert answer.status_code == status
        assert "GPU-1" not in answer.text
        assert "worker:1:0" not in answer.text
        assert CPU.name in answer.text
        meta = service.http.get("/v1/meta", headers={"Authorization": f"Bearer {secret}"})
        assert meta.json()["workers"][0]["unusable"][0]["reason"] == "GPU GPU-1 cannot be opened"


def test_a_database_that_was_found_to_be_damaged_is_named(service: Service) -> None:
    service.queue.register_worker("worker:1:0", [CPU])
    kernel_record(service.store, REQUEST)
    assert service.http.get("/readyz").status_code == 200
    database = service.state.database
    damage_page(database, "kernel_figures")
    assert service.http.get("/", headers={"Accept": "text/html"}).status_code == 500
    assert service.http.get("/v1/kernels").status_code == 200, "what is whole is answered"
    answer = service.http.get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (503, ["database"])
    assert str(database.data_dir) not in answer.text


def test_malformed_requests_are_told_a_few_times_a_minute_without_what_the_client_made_up(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tirgemm.service")

    def told(method: str, path: str, content: bytes = b"", times: int = 1) -> list[str]:
        caplog.clear()
        for _ in range(times):
            headers = {"Content-Type": "application/json"}
            assert service.http.request(method, path, content=content, headers=headers).status_code >= 400
        return [line for line in caplog.messages if "was refused" in line]

    twice, large = b'{"gemm": "1x1x1:f16:nn", "gemm": "1x1x1:f16:nn"}', b'"' + b"a" * 2**21 + b'"'
    monkeypatch.setattr(log_lines, "REFUSAL_SECONDS", 1e9)
    assert told("POST", "/v1/kernels", twice, 3) == ["a request of 127.0.0.1 was refused with 400: POST /v1/kernels"]
    assert told("POST", "/v1/kernels", large) == ["a request of 127.0.0.1 was refused with 413: POST /v1/kernels"]
    assert told("GET", "/v1/kernels/..%2f..%2fetc%2fpasswd%0a") == [
        "a request of 127.0.0.1 was refused with 404: GET unmatched"
    ]
    assert told("POST", "/v1/kernels", b'{"gemm": "../../etc/passwd"}') == [
        "a request of 127.0.0.1 was refused with 422: POST /v1/kernels"
    ]
    assert told("PUT", "/v1/kernels") == ["a request of 127.0.0.1 was refused with 405: PUT /v1/kernels"]
    assert told("GET", "/v1/kernels/beef") == [], "an honest question"
    monkeypatch.setattr(log_lines, "REFUSAL_SECONDS", 0.0)
    assert told("POST", "/v1/kernels", b"{") == [
        "a request of 127.0.0.1 was refused with 400, and 2 before it: POST /v1/kernels"
    ]
    assert told("GET", "/passwd%0a") == ["a request of 127.0.0.1 was refused with 404: GET unmatched"]


def test_while_the_data_folder_cannot_be_written_that_is_named_and_what_is_known_answered(tmp_path: Path) -> None:
    data, stopped, small = tmp_path / "data", "37x97x48:f32:nn", "39x97x48:f32:nn"
    # The worker's last sign of life is older than one may be: it cannot write another.
    with serving(data) as service:
        kernel_record(service.store, REQUEST)
        kernel_record(service.store, JobRequest(Gemm.parse(stopped), CPU), search={"ended": "interrupted"})
        kernel_record(service.store, JobRequest(Gemm.parse(small), CPU), search={"effort": "quick"})
        service.queue.register_worker("worker:1:0", [CPU])
        with service.state.database.write() as connection:
            connection.execute(update(WorkerRow).values(seen=WorkerRow.seen - 3600.0))
        with unwritable(data):
            answer = service.http.get("/readyz")
            assert (answer.status_code, answer.json()["missing"]) == (503, ["worker", "blobs", "database"])
            assert str(data) not in answer.text
            for known in (ODD, stopped, small):
                assert service.post(gemm=known, device=CPU.key, effort="standard").status_code == 200, known
            refused = service.post(gemm="35x97x48:f32:nn", device=CPU.key)
            assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
            assert refused.headers["retry-after"].isdigit()
            assert str(data) not in refused.text
            assert process._is_alive(service.state, 1) is None, "whether a worker lives cannot be known"
        assert process._is_alive(service.state, 1) is False
        service.queue.register_worker("worker:1:0", [CPU])
        assert process._is_alive(service.state, 1) is True
        assert service.http.get("/readyz").status_code == 200
        asked = {"gemm": "35x97x48:f32:nn", "device": CPU.key}
        assert service.http.post("/v1/kernels", json=asked, headers={"Prefer": "wait=0"}).status_code == 202


def test_while_the_disk_is_full_that_is_named_and_no_worker_counts_as_hanging(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.queue.register_worker("worker:1:0", [CPU])
    assert process._is_alive(service.state, 1) is True
    with service.state.database.write() as connection:
        connection.execute(update(WorkerRow).values(seen=WorkerRow.seen - 3600.0))
    assert process._is_alive(service.state, 1) is False
    of = os.statvfs(service.state.settings.data)
    left = SimpleNamespace(f_blocks=of.f_blocks, f_bavail=(1 << 20) // of.f_frsize, f_frsize=of.f_frsize)
    monkeypatch.setattr(os, "statvfs", lambda _folder: left)
    assert process._is_alive(service.state, 1) is None, "it could not say that it lives"
    answer = service.http.get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (503, ["worker", "blobs", "database"])
    assert str(service.state.settings.data) not in answer.text


@contextmanager
def locked(service: Service) -> Iterator[None]:
    """Another process's write transaction, such as that of ``tirgemm db import``."""
    with closing(sqlite3.connect(service.state.settings.data / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_request_waits_for_another_writer_no_longer_than_for_a_database_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "DATABASE_SECONDS", 0.1)
    with serving(tmp_path) as service, closing(state.ServiceState.open(service.state.settings)) as opened:
        began = time.monotonic()
        with locked(service), pytest.raises(StoreUnavailable, match="locked"):
            opened.queue.register_worker("worker:1:0", [CPU])
        assert time.monotonic() - began < database.BUSY_SECONDS / 2


def test_while_another_writes_no_worker_counts_as_hanging_or_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    with serving(tmp_path, worker=False) as service:
        service.queue.register_worker("worker:1:0", [CPU])
        with service.state.database.write() as connection:
            connection.execute(update(WorkerRow).values(seen=WorkerRow.seen - 3600.0))
        assert service.post(device=CPU.key).json()["code"] == "device_unavailable"
        monkeypatch.setattr(process, "LONGEST_WRITE_SECONDS", 3600.0)
        with locked(service):
            assert process._is_alive(service.state, 1) is None, "it could not say that it lives"
            for answer in (service.post(), service.http.post("/v1/batches", json={"gemms": [ODD]})):
                assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
            monkeypatch.setattr(process, "LONGEST_WRITE_SECONDS", 600.0)
            assert process._is_alive(service.state, 1) is False, "it may be what writes, and hang"
        assert process._is_alive(service.state, 1) is False


def test_what_is_missing_is_named(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> list[str]:
        answer = service.http.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        names: list[str] = answer.json()["missing"]
        return names

    assert missing() == ["worker"]
    service.queue.register_worker("worker:1:0", [CPU])
    assert service.http.get("/readyz").json() == {"status": "ready", "workers": 1, "unusable": []}
    service.queue.register_worker("worker:1:0", [CPU], faults=["GPU GPU-1 cannot be opened"])
    assert missing() == ["device"]
    assert "no device can be used: cpu: GPU GPU-1 cannot be opened" in service.http.get("/readyz").json()["detail"]
    service.queue.register_worker("worker:1:0", [])  # on a Ray cluster without nodes, say
    assert missing() == ["device"]
    service.queue.register_worker("worker:1:0", [CPU])
    shutil.rmtree(service.state.database.blobs.folder)
    assert missing() == ["blobs"]
    service.state.database.blobs.folder.mkdir()
    assert service.http.get("/readyz").status_code == 200
    with monkeypatch.context() as full:
        full.setattr(info, "is_full", lambda folder: folder == service.state.database.blobs.folder)
        assert missing() == ["blobs"]

    def fail(_seconds: float) -> list[object]:
        raise StoreUnavailable("it does not answer")

    monkeypatch.setattr(service.queue, "live_workers", fail)
    assert missing() == ["database"]
