"""Artifacts that are lost or damaged: what they belonged to is built again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.fake_workbench import FakeBench
from tests.service.support import CPU, ODD, Service, kernel_record
from tests.tuning.tune.small_search import tuning
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning_db import JobRequest

REQUEST = JobRequest(Gemm.parse(ODD), CPU)


def blob_file(service: Service, sha256: str) -> Path:
    return service.state.database.blobs.folder / sha256[:2] / sha256[2:4] / sha256


@pytest.mark.parametrize("damage", ["lost", "damaged"])
@pytest.mark.parametrize("named", [{}, {"budget": {"trials": 2}}])
def test_a_kernel_without_its_artifact_is_built_again(service: Service, damage: str, named: dict[str, object]) -> None:
    known = kernel_record(service.store, REQUEST)
    address = f"/v1/artifacts/{known.artifact_sha256}"
    assert service.http.get(address).status_code == 200
    file = blob_file(service, known.artifact_sha256)
    if damage == "lost":
        file.unlink()
    else:
        file.write_bytes(b"not these bytes")
    answer = service.http.get(address)
    assert (answer.status_code, answer.json()["code"]) == (404, "artifact_not_found")
    nobody = service.post(device=CPU.key, headers={"Prefer": "wait=0"})
    assert nobody.status_code == 409, "without a worker nobody can build it again"
    service.engine.fallback_gate.set()
    service.engine.gate.set()
    with service.worker():
        again = service.post(headers={"Prefer": "wait=100"}, **named)
        assert (again.status_code, again.json()["role"]) == (200, "tuned")
        assert again.json()["id"] != known.id
        assert service.http.get(again.json()["artifact"]["url"]).status_code == 200
    assert ("tune", ODD) in service.engine.calls


def test_an_unverified_build_without_its_artifact_is_built_again(service: Service) -> None:
    known = kernel_record(service.store, REQUEST, "unverified", device=named_device("sm_80"))
    blob_file(service, known.artifact_sha256).unlink()
    with service.worker():
        again = service.post(device="sm_80", verify=False, headers={"Prefer": "wait=100"})
        assert (again.status_code, again.json()["id"] != known.id) == (200, True)


def test_a_stored_answer_whose_artifact_is_lost_is_no_fallback() -> None:
    class LossyStore(MemoryStore):
        def lose(self, sha256: str) -> None:
            del self._blobs[sha256]

    store = LossyStore()
    bench = FakeBench(store=store)
    first = tuning(bench).fallback()
    assert tuning(bench).fallback() == first
    store.lose(first.artifact_sha256)
    again = tuning(bench).fallback()
    assert again.id != first.id
    assert store.get_blob(again.artifact_sha256)
