"""Shipped records behind the API: real builds, races and certificates on this CPU, whose records the test ships."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.helpers.shipped_files import elsewhere, measured_on, ship
from tests.service.support import CPU, Service, read_events, serving
from tests.waiting import PATIENCE_S
from tirgemm.artifact import Signer, Trust, load
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import FAMILIES
from tirgemm.families.base import rejected
from tirgemm.gemm import Gemm, Regime
from tirgemm.service.jobs.local_fleet import LocalFleet
from tirgemm.service.jobs.worker import Worker
from tirgemm.tuning import budget
from tirgemm.tuning.shipped_kernel import TRIED
from tirgemm.tuning_db import SqlStore, shipped

GEMM = Gemm.parse("61x45x71:f16:nt")
REGIME: Regime = "sustained"
PATIENT = {"Prefer": "wait=200"}


def shipped_configs() -> list[Config]:
    """As many valid configs as an offer needs, none of them the default."""
    family = FAMILIES["x86"]
    default = family.default(GEMM, CPU, REGIME)
    valid = (c for c in family.space(GEMM, CPU) if c != default and rejected(family, GEMM, c, CPU) is None)
    return list(islice(valid, TRIED))


def asked(service: Service, **fields: bool) -> httpx.Response:
    """The answer to a POST that waits for the tuned kernel."""
    return httpx.post(f"{service.url}/v1/kernels", json={"gemm": str(GEMM)} | fields, headers=PATIENT, timeout=220)


@pytest.fixture(autouse=True)
def searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few shipped configs as these tests have are what a search has left."""
    monkeypatch.setattr(budget, "SEARCHED", TRIED)


@contextmanager
def tuning_service(folder: Path, measured: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Service, str]]:
    """A service whose worker builds and measures, with the public key that it signs with. Shipped are candidates of
    ``measured``, of which the last is the fastest."""
    times = [(config, 9.0 - number) for number, config in enumerate(shipped_configs())]
    ship(folder / "shipped", measured, measured_on(measured, GEMM, times))
    monkeypatch.setattr(shipped, "FOLDER", folder / "shipped")
    with serving(folder / "data", max_wait_seconds=200) as service:
        signer = Signer.load_or_create(service.state.settings.signing_key)
        fleet = LocalFleet(service.store, signer, service.state.settings.lock_dir, processes=1, served=[CPU])
        worker = Worker(service.queue, service.store, fleet, lease_s=600.0)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            yield service, signer.public
        finally:
            worker.stop()
            thread.join(PATIENCE_S)
            fleet.close()
            assert not thread.is_alive()


@pytest.mark.slow
def test_a_posted_problem_is_answered_with_the_kernel_of_its_shipped_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tuning_service(tmp_path, CPU, monkeypatch) as (service, key):
        answer = asked(service)
        assert answer.status_code == 200, answer.text
        kernel = answer.json()
        assert (kernel["role"], kernel["verified"], kernel["portable"]) == ("tuned", True, False)
        assert Config(kernel["family"], tuple(kernel["config"].items())) == shipped_configs()[-1]
        assert kernel["timings"]["search"]["ended"] == "shipped"
        assert kernel["timings"][REGIME]["median_us"] > 0
        (job,) = service.http.get("/v1/jobs").json()["jobs"]
        assert (job["status"], job["kernel_id"]) == ("done", kernel["id"])
        kinds = {kind for _, kind, _ in read_events(service.http, job["id"])}
        assert not kinds & {"candidate", "batch"}, "nothing was searched"
        assert len(service.http.get("/v1/kernels").json()["kernels"]) == 1, "nothing but the one config was built"
        (own,) = SqlStore(service.state.database).candidates(GEMM, CPU.key, REGIME)
        assert [samples.reason for samples in own.sample_sets] == ["search", "report"]
        assert service.post(str(GEMM)).json() == kernel, "from then on from the database"
        package = service.http.get(kernel["artifact"]["url"]).content
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((61, 71), (45, 71)))
    result = load(package, trust=Trust.of(key))(a, b)
    np.testing.assert_allclose(
        result.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64).T, rtol=2e-3, atol=2e-2
    )


@pytest.mark.slow
def test_configs_that_were_measured_under_another_tvm_are_raced_before_one_is_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tuning_service(tmp_path, elsewhere(CPU), monkeypatch) as (service, _):
        answer = asked(service)
        assert answer.status_code == 200, answer.text
        kernel = answer.json()
        assert (kernel["role"], kernel["verified"], kernel["portable"]) == ("tuned", True, True)
        assert kernel["timings"]["search"]["shipped"]["environment"]["tvm"] == "0.1"
        assert "default" in kernel["timings"][REGIME]["baselines"]
        own = SqlStore(service.state.database).candidates(GEMM, CPU.key, REGIME)
        default = FAMILIES["x86"].default(GEMM, CPU, REGIME)
        assert {candidate.config for candidate in own} == {default, *shipped_configs()}
        assert kernel["trials"] == 1 + TRIED
        roles = [(k["role"], k["portable"]) for k in service.http.get("/v1/kernels").json()["kernels"]]
        assert roles == [("tuned", True), ("fallback", False)]


@pytest.mark.slow
def test_configs_of_another_device_are_raced_for_who_asks_and_answer_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = CPU.with_(model="Another CPU")
    with tuning_service(tmp_path, other, monkeypatch) as (service, _):
        answer = asked(service, other_devices=True)
        assert answer.status_code == 200, answer.text
        kernel = answer.json()
        assert (kernel["portable"], kernel["other_device"], kernel["verified"]) == (True, other.key, True)
        assert kernel["device"]["key"] == CPU.key
        page = service.http.get(f"/kernels/{kernel['id']}", headers={"Accept": "text/html"}).text
        assert f"measured on another device, {other.key}" in page
        assert asked(service, other_devices=True).json() == kernel, "from then on from the database"
        default = httpx.post(
            f"{service.url}/v1/kernels", json={"gemm": str(GEMM), "effort": "none"}, headers=PATIENT, timeout=300
        )
        assert (default.json()["role"], default.json()["other_device"]) == ("fallback", None)
        jobs = [job["other_devices"] for job in service.http.get("/v1/jobs").json()["jobs"]]
        assert jobs in ([True], [False, True])
