"""Pinned kernels: served until they are unpinned, neither deleted nor pruned, over HTTP and in the database."""

from __future__ import annotations

import pytest

from tests.service.support import CPU, ODD, Service, kernel_record
from tests.waiting import PATIENCE_S
from tirgemm.client import Client
from tirgemm.errors import KernelPinned
from tirgemm.gemm import Gemm
from tirgemm.service import cli
from tirgemm.tuning_db import JobRequest

REQUEST = JobRequest(Gemm.parse(ODD), CPU)
TUNED = {"effort": "standard"}


def test_a_pinned_kernel_is_the_answer_until_it_is_unpinned(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.queue.register_worker("elsewhere:1:0", [CPU])
    old, new = (kernel_record(service.store, REQUEST, salt=salt, search=TUNED) for salt in ("old", "new"))
    assert service.post().json()["id"] == new.id
    with Client(service.url, patience=PATIENCE_S) as client:
        assert client.pin(old.id)["pinned"] is True
        listed = {kernel["id"]: kernel["pinned"] for kernel in client.kernels()}
        assert listed == {old.id: True, new.id: False}
        for asked in ({}, {"effort": "exhaustive"}, {"budget": {"trials": 4096}}):
            assert service.post(**asked).json()["id"] == old.id
        assert service.http.post("/v1/batches", json={"gemms": [ODD]}).json()["items"][0]["kernel"] == old.id
        assert service.post(retune=True, headers={"Prefer": "wait=0"}).status_code == 202
        latest = kernel_record(service.store, REQUEST, salt="latest", search=TUNED)
        assert service.post().json()["id"] == old.id
        answer = service.http.delete(f"/v1/kernels/{old.id}")
        assert (answer.status_code, answer.json()["code"]) == (409, "kernel_pinned")
        assert client.pin(new.id)["pinned"] is True
        assert service.http.get(f"/v1/kernels/{old.id}").json()["pinned"] is False
        assert service.post().json()["id"] == new.id
        assert cli.main(["kernels", "unpin", new.id, "--url", service.url]) == 0
        assert service.post().json()["id"] == latest.id
        assert {kernel["pinned"] for kernel in client.kernels()} == {False}
        assert client.pin(new.id, pinned=False)["pinned"] is False
    assert "is not pinned" in capsys.readouterr().out
    actions = [(stored.entry.action, stored.entry.object) for stored in service.state.access.audit.entries()]
    assert ("PUT", f"/v1/kernels/{old.id}/pin") in actions
    assert ("DELETE", f"/v1/kernels/{new.id}/pin") in actions


def test_a_pin_of_another_problem_or_regime_changes_nothing_here(service: Service) -> None:
    service.queue.register_worker("elsewhere:1:0", [CPU])
    isolated = kernel_record(service.store, JobRequest(Gemm.parse(ODD), CPU, "isolated"), search=TUNED)
    sustained = kernel_record(service.store, REQUEST, search=TUNED)
    assert service.http.put(f"/v1/kernels/{isolated.id}/pin").status_code == 200
    assert service.http.put(f"/v1/kernels/{sustained.id}/pin").status_code == 200
    for regime, record in (("isolated", isolated), ("sustained", sustained)):
        assert service.post(regime=regime).json()["id"] == record.id
    assert service.http.put(f"/v1/kernels/{'0' * 16}/pin").status_code == 404
    build = kernel_record(service.store, REQUEST, "unverified")
    assert "nobody has run" in service.http.put(f"/v1/kernels/{build.id}/pin").json()["detail"]


def test_a_pinned_kernel_whose_artifact_is_lost_gives_its_place_up(service: Service) -> None:
    service.queue.register_worker("elsewhere:1:0", [CPU])
    lost, other = (kernel_record(service.store, REQUEST, salt=salt, search=TUNED) for salt in ("lost", "other"))
    assert service.http.put(f"/v1/kernels/{lost.id}/pin").status_code == 200
    service.state.database.blobs.delete(lost.artifact_sha256)
    assert service.post().json()["id"] == other.id
    assert service.store.delete_kernel(lost.id)


def test_the_database_keeps_a_pinned_kernel(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = kernel_record(service.store, REQUEST)
    folder = str(service.state.settings.data)
    assert cli.main(["kernels", "pin", kernel.id, "--data", folder]) == 0
    assert "is answered with it from now on" in capsys.readouterr().out
    with pytest.raises(KernelPinned, match="unpin it first"):
        service.store.delete_kernel(kernel.id)
    assert cli.main(["kernels", "show", kernel.id, "--data", folder]) == 0
    assert "tuned, pinned" in capsys.readouterr().out
    assert cli.main(["kernels", "pin", "0" * 16, "--data", folder]) == 2
