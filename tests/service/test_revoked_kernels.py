"""Kernels that the service's own data folder has revoked: no answer serves them, and their files are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.artifact_samples import SIGNER, certified, packed_set
from tests.service.support import CPU, ODD, Service, kernel_record
from tirgemm.artifact import Signer, Trust, read
from tirgemm.artifact.signing_keys import LIST_FILE, SigningKeys
from tirgemm.config import Config
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.http.kernel_cache import snapshot_cache
from tirgemm.status import Status
from tirgemm.tuning.records import Candidate
from tirgemm.tuning_db import JobRequest

GEMM = Gemm.parse(ODD)
GPU = named_device("sm_90a")
REQUEST = JobRequest(GEMM, CPU)
TUNED = {"effort": "standard"}


@pytest.fixture
def keys(service: Service, monkeypatch: pytest.MonkeyPatch) -> SigningKeys:
    """Those of the service's folder; what another process changes is seen at once."""
    monkeypatch.setattr(snapshot_cache, "MAX_AGE_SECONDS", -1.0)
    return SigningKeys(service.state.settings.data)


def sample(rows: int, signer: Signer = SIGNER) -> bytes:
    return certified(GEMM, config=Config("sample", (("rows", rows),)), signer=signer)


@pytest.mark.parametrize("what", ["artifact", "kernel", "member", "key"])
def test_a_revoked_kernel_is_passed_over_in_every_answer_and_its_file_is_gone(
    service: Service, keys: SigningKeys, what: str
) -> None:
    service.queue.register_worker("elsewhere:1:0", [CPU])
    stranger = Signer.generate()
    several = packed_set(Gemm.parse("1..129x67x31:f16:nt"), (8, 129))
    data = {"member": several, "key": sample(1, stranger)}.get(what) or sample(1)
    package = read(data, Trust.of(SIGNER.public, stranger.public))
    manifest = package.manifest
    names = {"artifact": package.sha256, "kernel": manifest.kernel_sha256, "key": package.key}
    name = manifest.members[0].kernel_sha256 if what == "member" else names[what]
    first = kernel_record(service.store, REQUEST, search=TUNED, artifact=sample(2))
    second = kernel_record(service.store, REQUEST, search=TUNED, artifact=data)
    build = kernel_record(service.store, REQUEST, "unverified", artifact=data)
    assert [service.post().json()["id"] for _ in range(2)] == [second.id] * 2
    assert service.http.put(f"/v1/kernels/{second.id}/pin").status_code == 200
    keys.revoke(name, "wrong for NaN")
    assert [service.post().json()["id"] for _ in range(2)] == [first.id] * 2
    assert service.http.post("/v1/batches", json={"gemms": [ODD]}).json()["items"][0]["kernel"] == first.id
    for record in (second, build):
        answer = service.http.get(f"/v1/artifacts/{record.artifact_sha256}")
        assert (answer.status_code, answer.json()["code"]) == (410, "revoked_artifact")
        assert f"{name} was revoked: wrong for NaN" in answer.json()["detail"]
    refused = service.http.put(f"/v1/kernels/{second.id}/pin")
    assert (refused.status_code, refused.json()["code"]) == (410, "revoked_artifact")
    assert service.http.delete(f"/v1/kernels/{second.id}/pin").status_code == 200
    assert service.http.get(f"/v1/artifacts/{first.artifact_sha256}").content == sample(2)
    keys.revoke(first.artifact_sha256)
    answer = service.post(headers={"Prefer": "wait=0"})
    assert (answer.status_code, answer.json()["fallback"]) == (202, None)


def test_a_job_is_not_ended_by_a_revoked_kernel_and_is_not_answered_with_one(
    service: Service, keys: SigningKeys
) -> None:
    service.engine.fallback_gate.set()
    service.engine.gate.set()
    stored = kernel_record(service.store, REQUEST, search=TUNED, artifact=sample(1))
    keys.revoke(stored.artifact_sha256)
    patient = {"Prefer": "wait=100", "Idempotency-Key": "once"}
    with service.worker():
        made = service.post(headers=patient)
    assert (made.status_code, made.json()["id"] == stored.id) == (200, False)
    assert [call for call, _ in service.engine.calls if call != "warm"] == ["fallback", "tune"]
    (job,) = service.queue.jobs()
    assert service.http.get(f"/v1/jobs/{job.id}").json()["kernel"]["id"] == made.json()["id"]
    keys.revoke(made.json()["artifact"]["sha256"])
    again = service.post(headers=patient)
    assert (again.status_code, again.json()["code"]) == (409, "kernel_deleted")
    assert service.http.get(f"/v1/jobs/{job.id}").json()["kernel"] is None


def test_a_revoked_build_for_another_device_is_no_answer(service: Service, keys: SigningKeys) -> None:
    build = kernel_record(service.store, REQUEST, "unverified", device=GPU, artifact=sample(1))
    asked: dict[str, Any] = {"device": GPU.key, "verify": False}
    service.queue.register_worker("elsewhere:1:0", [CPU])
    assert service.post(**asked).json()["id"] == build.id
    keys.revoke(build.artifact_sha256)
    assert service.post(headers={"Prefer": "wait=0"}, **asked).status_code == 202


def test_pages_do_not_call_a_revoked_kernel_the_answer(service: Service, keys: SigningKeys) -> None:
    service.queue.register_worker("elsewhere:1:0", [CPU])
    stored = kernel_record(service.store, REQUEST, search=TUNED, artifact=sample(1))
    service.store.add_candidate(Candidate(GEMM, CPU.key, "sustained", stored.config, Status.MEASURED))
    batch = service.http.post("/v1/batches", json={"gemms": [ODD]}).json()["id"]

    def answering() -> list[str | None]:
        model, space = (
            service.http.get(path, headers={"Accept": "application/json"}).json()
            for path in (f"/models/{batch}", f"/spaces/{ODD}")
        )
        return [model["model"]["layers"][0]["kernel"], space["kernel"]]

    assert answering() == [stored.id, stored.id]
    keys.revoke(stored.artifact_sha256)
    assert answering() == [None, None]


@pytest.mark.parametrize("broken", ["{", "mode"])
def test_nothing_is_answered_beside_a_list_that_cannot_be_read(
    service: Service, keys: SigningKeys, broken: str
) -> None:
    kernel_record(service.store, REQUEST, search=TUNED, artifact=sample(1))
    service.queue.register_worker("elsewhere:1:0", [CPU])
    keys.revoke("a" * 64)
    file = keys.folder / LIST_FILE
    if broken == "mode":
        file.chmod(0o666)
    else:
        file.write_text(broken)
    answer = service.post()
    assert (answer.status_code, answer.json()["code"]) == (500, "store_error")
