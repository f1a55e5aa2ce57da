"""Kernels of a service in a model: what it has at once, what comes later, and a service that goes away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.artifact_samples import SIGNER
from tests.helpers.fake_service import CPU, JOB
from tests.torch.service_kernels.unlisted_service import GEMM, Unlisted, accelerated, role
from tests.waiting import PATIENCE_S
from tirgemm import Client
from tirgemm.errors import InvalidRequest, ServiceUnreachable

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch


def test_what_the_service_has_is_used_at_once_and_nothing_is_asked(client: Client, fake: Unlisted, table: Any) -> None:
    fake.listed = True
    _, report, check = accelerated(client)
    assert report.linears[0].problems == ((GEMM, "tuned"),)
    assert role(table) == "tuned"
    assert fake.sent("POST", "/v1/batches") == []
    check()


def test_the_pinned_kernel_is_taken_whatever_is_newer(client: Client, fake: Unlisted, table: Any) -> None:
    fake.listed = True
    tuned, default = fake.kernels["70ed"], fake.kernels["fa11"]
    fake.kernels = {"0": default, "1": default | {"role": "unverified"}, "2": tuned}
    accelerated(client)
    assert role(table) == "tuned", "a newer default is not what the service answers with"
    table.remove(table.find(GEMM, CPU))
    fake.kernels["3"] = default | {"pinned": True}
    accelerated(client)
    assert role(table) == "fallback"


def test_a_default_serves_until_the_tuned_kernel_comes(client: Client, fake: Unlisted, table: Any) -> None:
    _, report, check = accelerated(client)
    assert report.linears[0].replaced
    while role(table) != "fallback" or len(fake.sent("GET", f"/v1/jobs/{JOB}")) < 3:
        assert not report.failures
    check()
    fake.status = "done"
    assert report.wait(PATIENCE_S)
    assert role(table) == "tuned"
    assert not report.failures
    assert len(fake.sent("POST", "/v1/batches")) == 1
    assert fake.sent("POST", "/v1/kernels") == []
    assert len(fake.sent("GET", "/v1/kernels/fa11")) == 1, "the default was fetched again at every look"
    check()


def test_a_service_without_batches_is_asked_for_each_problem(client: Client, fake: Unlisted, table: Any) -> None:
    fake.knows_batches, fake.status = False, "done"
    _, report, check = accelerated(client, wait=True)
    assert not report.failures
    assert len(fake.sent("POST", "/v1/kernels")) == 1
    assert role(table) == "tuned"
    check()


def test_a_known_kernel_of_a_batch_arrives_at_once(client: Client, fake: Unlisted, table: Any) -> None:
    fake.answer = fake.ready
    _, report, check = accelerated(client, wait=True)
    assert not report.failures
    assert fake.sent("GET", f"/v1/jobs/{JOB}") == []
    assert role(table) == "tuned"
    check()


def test_a_dry_run_asks_the_service_for_nothing(client: Client, fake: Unlisted) -> None:
    accelerated(client, dry_run=True)
    assert fake.sent("POST", "/v1/batches") == []


@pytest.mark.parametrize("path", ["/v1/batches", f"/v1/jobs/{JOB}", "/v1/kernels/fa11"])
def test_a_service_that_goes_away_leaves_what_is_there(
    path: str, client: Client, fake: Unlisted, table: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fake.broken[path] = [httpx.ConnectError("gone") for _ in range(1000)]
    _, report, check = accelerated(client)
    assert report.wait(PATIENCE_S)
    assert list(report.failures) == [GEMM]
    assert report.linears[0].problems == ((GEMM, f"no kernel: {report.failures[GEMM]}"),)
    assert "no tuned kernel for 33x17x19:f32:nt" in caplog.text
    assert role(table) is None
    check()


def test_a_service_that_goes_away_behind_its_default_leaves_that(client: Client, fake: Unlisted, table: Any) -> None:
    _, report, check = accelerated(client)
    while role(table) != "fallback":
        assert not report.failures
    fake.broken[f"/v1/jobs/{JOB}"] = [httpx.ConnectError("gone") for _ in range(1000)]
    assert report.wait(PATIENCE_S)
    assert "gone" in report.failures[GEMM]
    assert report.linears[0].problems == ((GEMM, "default"),)
    check()


def test_a_client_that_is_closed_meanwhile_leaves_what_is_there_and_is_told(
    client: Client, fake: Unlisted, table: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _, report, check = accelerated(client)
    while role(table) != "fallback":
        assert not report.failures
    client.close()
    assert report.wait(PATIENCE_S)
    assert report.failures[GEMM].startswith("this client of http://service.test was closed")
    assert f"no tuned kernel for {GEMM}: {report.failures[GEMM]}" in caplog.text
    assert report.linears[0].problems == ((GEMM, "default"),)
    check()
    table.remove(table.find(GEMM, CPU))
    asked = len(fake.requests)
    _, report, check = accelerated(client)
    assert role(table) == "fallback", "the cache has it"
    assert len(fake.requests) == asked
    check()


def test_an_error_that_ends_the_work_of_a_source_is_logged(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("items")

    monkeypatch.setattr(client, "submit_batch", broken)
    _, report, check = accelerated(client)
    assert report.wait(PATIENCE_S)
    assert report.failures == {GEMM: "'items'"}
    assert "KeyError: 'items'" in caplog.text
    check()


def test_a_service_that_is_away_from_the_start_is_told_in_the_report(client: Client, fake: Unlisted) -> None:
    fake.listed = True
    fake.broken["/v1/kernels"] = [httpx.ConnectError("gone") for _ in range(1000)]
    _, report, check = accelerated(client)
    assert not report.linears[0].replaced
    assert report.linears[0].problems[0][1].startswith("no kernel: no answer from http://service.test (gone)")
    check()


def test_a_job_that_fails_is_told_and_leaves_its_default(client: Client, fake: Unlisted, table: Any) -> None:
    fake.status, fake.error = "failed", {"code": "build_failed", "detail": "no"}
    _, report, check = accelerated(client, wait=True)
    assert "ended as failed" in report.failures[GEMM]
    assert role(table) == "fallback"
    check()


def test_undo_follows_the_jobs_no_more(client: Client) -> None:
    made, report, check = accelerated(client)
    report.undo()
    assert report.wait(PATIENCE_S)
    assert type(made) is torch.nn.Linear
    check()


def test_what_was_downloaded_serves_while_the_service_is_away(
    client: Client, fake: Unlisted, table: Any, tmp_path: Path
) -> None:
    from tirgemm.torch import ServiceKernels

    fake.listed = True
    kernel = ServiceKernels(client).lookup(GEMM, CPU)
    assert kernel is not None
    fake.broken["/v1/kernels"] = [httpx.ConnectError("gone") for _ in range(1000)]
    again = ServiceKernels(client).lookup(GEMM, CPU)
    assert again is not None
    assert again.kernel_sha256 == kernel.kernel_sha256
    with Client("http://service.test", trust=SIGNER.public, cache_dir=tmp_path, offline=True) as offline:
        assert ServiceKernels(offline).lookup(GEMM, CPU) is not None
        with pytest.raises(ServiceUnreachable, match="the client is offline"):
            ServiceKernels(offline).lookup(GEMM.with_(m=34), CPU)
    del table


@pytest.mark.parametrize(
    "wrong", [{"regime": "bogus"}, {"poll_s": "x"}, {"poll_s": -5}, {"poll_s": 0}, {"poll_s": float("inf")}], ids=str
)
def test_an_unknown_regime_and_what_are_no_seconds_are_refused(client: Client, wrong: dict[str, Any]) -> None:
    from tirgemm.torch import ServiceKernels

    ((name, value),) = wrong.items()
    with pytest.raises(InvalidRequest, match=f"{name} is {value!r}; it must be "):
        ServiceKernels(client, **wrong)


@pytest.mark.parametrize("listed", [False, True])
def test_by_the_policy_tuned_products_take_what_the_service_has_and_nothing_is_tuned(
    listed: bool, client: Client, fake: Unlisted
) -> None:
    from tirgemm.torch import ServiceKernels, routed

    fake.listed, fake.status = listed, "done"  # what is asked for is tuned at once
    x, weight = torch.randn(33, 19), torch.randn(17, 19)
    with routed(source=ServiceKernels(client), wait=True) as calls:
        assert torch.allclose(torch.mm(x, weight.t()), x @ weight.t(), atol=1e-5)
    assert calls.served == (2 if listed else 0)
    assert [request for request in fake.requests if request.method == "POST"] == []
