"""A service without a worker, or one that is away: what is waited for, and how often."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.artifact_samples import SIGNER
from tests.helpers.fake_service import CPU, JOB
from tests.torch.service_kernels.unlisted_service import GEMM, Unlisted, accelerated, role
from tests.waiting import PATIENCE_S, until
from tirgemm import Client
from tirgemm._client import http as http_layer

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch


def without_worker(fake: Unlisted, monkeypatch: pytest.MonkeyPatch, times: float, **more: Any) -> None:
    """Have the service refuse so many submissions, and then take them."""
    taken, refused = fake.answer, list[None]()

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if len(refused) >= times:
            return taken(body)
        refused.append(None)
        return 409, {"code": "device_unavailable", "detail": "no worker is alive", "devices": []} | more

    monkeypatch.setattr(fake, "answer", answer)
    fake.status = "done"


@pytest.mark.parametrize("knows_batches", [True, False])
def test_a_worker_that_is_still_starting_is_waited_for(
    knows_batches: bool, client: Client, fake: Unlisted, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.patience, fake.knows_batches = PATIENCE_S, knows_batches
    without_worker(fake, monkeypatch, 3)
    _, report, check = accelerated(client, wait=True)
    assert not report.failures
    assert role(table) == "tuned"
    assert len(fake.sent("POST", "/v1/batches" if knows_batches else "/v1/kernels")) == 4
    check()


def test_a_service_without_a_worker_is_waited_for_once(
    client: Client, fake: Unlisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import accelerate

    monkeypatch.setattr("tirgemm.torch.service_kernels.MAX_PROBLEMS", 1)
    monkeypatch.setattr("tirgemm.torch.service_kernels.POLL_S", client.patience)
    without_worker(fake, monkeypatch, float("inf"))
    made = torch.nn.Sequential(*(torch.nn.Linear(19, n, bias=False) for n in (17, 18, 20)))
    report = accelerate(made, rows=33, client=client, wait=True)
    assert set(report.failures.values()) == {"http://service.test answered 409: no worker is alive"}
    assert len(report.failures) == 3
    assert len(fake.sent("POST", "/v1/batches")) == 1


def test_a_device_that_no_worker_has_is_not_waited_for(
    client: Client, fake: Unlisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.patience = PATIENCE_S
    without_worker(fake, monkeypatch, float("inf"), devices=[{"key": "cuda:sm_80:card:1", "name": "cuda:0"}])
    _, report, _ = accelerated(client, wait=True)
    assert list(report.failures) == [GEMM]
    assert len(fake.sent("POST", "/v1/batches")) == 1


def test_undo_ends_the_wait_for_a_worker(client: Client, fake: Unlisted, monkeypatch: pytest.MonkeyPatch) -> None:
    client.patience = 1e9
    without_worker(fake, monkeypatch, float("inf"))
    _, report, _ = accelerated(client)
    until(lambda: len(fake.sent("POST", "/v1/batches")) > 2)
    report.undo()
    assert report.wait(PATIENCE_S)


def test_a_default_that_cannot_be_had_does_not_cost_the_tuned_kernel(
    client: Client, fake: Unlisted, table: Any, caplog: pytest.LogCaptureFixture
) -> None:
    del fake.kernels["fa11"]
    _, report, check = accelerated(client)
    until(lambda: len(fake.sent("GET", f"/v1/jobs/{JOB}")) > 2)
    assert len(fake.sent("GET", "/v1/kernels/fa11")) == 1
    assert f"no default for {GEMM}: " in caplog.text
    fake.status = "done"
    assert report.wait(PATIENCE_S)
    assert not report.failures
    assert role(table) == "tuned"
    check()


def test_errors_within_a_service_are_waited_out(
    client: Client, fake: Unlisted, table: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client.patience = PATIENCE_S
    fake.broken[f"/v1/jobs/{JOB}"], fake.status = [500, 500], "done"
    _, report, check = accelerated(client, wait=True)
    assert not report.failures
    assert role(table) == "tuned"
    assert caplog.text.count("asking again") == 1
    check()


def test_a_service_with_errors_alone_is_given_up_when_its_time_is_over(
    client: Client, fake: Unlisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tirgemm.torch.service_kernels.POLL_S", 2 * client.patience)
    fake.broken[f"/v1/jobs/{JOB}"] = [500 for _ in range(1000)]
    _, report, _ = accelerated(client, wait=True)
    assert "answered 500" in report.failures[GEMM]
    assert len(fake.sent("GET", f"/v1/jobs/{JOB}")) == 2


@pytest.fixture
def patient(fake: Unlisted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the default patience, every request of which takes all of it where the service is away."""
    monkeypatch.setattr(http_layer, "backoff", lambda _attempt: 1e6)
    with Client("http://service.test", trust=SIGNER.public, cache_dir=tmp_path, transport=fake) as opened:
        yield opened


def away(fake: Unlisted) -> None:
    fake.listed = True
    fake.broken["/v1/kernels"] = [httpx.ConnectError("gone") for _ in range(1000)]


@pytest.mark.parametrize("dry_run", [True, False])
def test_each_problem_is_asked_for_once_whatever_linears_have_it(
    dry_run: bool, patient: Client, fake: Unlisted
) -> None:
    from tirgemm.torch import accelerate

    made = torch.nn.Sequential(*(torch.nn.Linear(19, 17, bias=False) for _ in range(6)))
    report = accelerate(made, rows=[33, 34], client=patient, policy="tuned", dry_run=dry_run)
    assert len(report.gemms) == 2
    assert len(fake.sent("GET", "/v1/kernels")) == 2


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_service_that_is_away_is_waited_for_once(dry_run: bool, patient: Client, fake: Unlisted) -> None:
    from tirgemm.torch import accelerate

    away(fake)
    made = torch.nn.Sequential(*(torch.nn.Linear(19, n, bias=False) for n in (17, 18, 20)))
    report = accelerate(made, rows=[33, 34], client=patient, dry_run=dry_run)
    assert len(fake.requests) == 1
    words = {kernel for linear in report.linears for _, kernel in linear.problems}
    assert len(report.gemms) == 6
    assert len(words) == 1
    assert words.pop().startswith("no kernel: no answer from http://service.test within 30 s (gone)")


def test_what_the_cache_has_serves_after_one_short_wait(patient: Client, fake: Unlisted, table: Any) -> None:
    from tirgemm.torch import ServiceKernels, accelerate

    fake.listed = True
    assert ServiceKernels(patient).lookup(GEMM, CPU) is not None
    away(fake)
    fake.requests.clear()
    for rows in ([33, 34], [34, 33]):
        report = accelerate(torch.nn.Linear(19, 17, bias=False), rows=rows, client=patient)
        words = dict(report.linears[0].problems)
        assert words[GEMM] == "tuned"
        says = "no kernel: no answer from http://service.test within 30 s"
        assert words[GEMM.with_(m=34)].startswith(says), "it is waited for, whatever the cache has of the other"
        table.remove(table.find(GEMM, CPU))
    assert len(fake.requests) == 2


@pytest.mark.parametrize(
    ("path", "knows_batches"),
    [("/v1/batches", True), ("/v1/kernels", False), (f"/v1/jobs/{JOB}", True), ("/v1/kernels/fa11", True)],
)
def test_a_service_that_goes_away_is_waited_for_once_whatever_is_still_to_come(
    path: str, knows_batches: bool, patient: Client, fake: Unlisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import accelerate

    monkeypatch.setattr("tirgemm.torch.service_kernels.MAX_PROBLEMS", 2)
    fake.knows_batches = knows_batches
    fake.broken[path] = [httpx.ConnectError("gone") for _ in range(1000)]
    made = torch.nn.Sequential(*(torch.nn.Linear(19, n, bias=False) for n in (17, 18, 20, 21, 22)))
    report = accelerate(made, rows=33, client=patient)
    assert report.wait(PATIENCE_S)
    assert (
        sum(request.url.path == path and (knows_batches or request.method == "POST") for request in fake.requests) == 1
    )
    assert set(report.failures) == set(report.gemms)
    assert len(set(report.failures.values())) == 1
    assert report.failures[GEMM].startswith("no answer from http://service.test within 30 s (gone)")


def test_a_service_that_goes_away_behind_one_kernel_leaves_that(client: Client, fake: Unlisted, table: Any) -> None:
    from tirgemm.torch import ServiceKernels

    first = Unlisted.pending

    def known_first(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        fake.answer = lambda more: first(fake, more)
        return fake.ready(body)

    fake.knows_batches, fake.answer = False, known_first
    fake.broken[f"/v1/jobs/{JOB}"] = [httpx.ConnectError("gone") for _ in range(1000)]
    others = (GEMM.with_(m=34), GEMM.with_(m=35))
    preparation = ServiceKernels(client).prepare((GEMM, *others), CPU, "default", table.add)
    assert preparation.wait(PATIENCE_S)
    assert role(table) == "tuned"
    assert tuple(preparation.failures) == others


def test_products_wait_for_a_service_that_is_away_once(
    client: Client, fake: Unlisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import ServiceKernels, routed

    asked, went_on = threading.Event(), threading.Event()
    handle, waited = fake.handle_request, []

    def handle_request(request: httpx.Request) -> httpx.Response:
        if asked.is_set():
            waited.append(not went_on.wait(PATIENCE_S))
        return handle(request)

    monkeypatch.setattr(fake, "handle_request", handle_request)
    fake.broken["/v1/batches"] = [httpx.ConnectError("gone") for _ in range(1000)]
    with routed("default", source=ServiceKernels(client), wait=True) as calls:
        torch.mm(torch.randn(3, 19), torch.randn(19, 5))
        assert fake.sent("POST", "/v1/batches")
        asked.set()
        torch.mm(torch.randn(3, 19), torch.randn(19, 6))
        went_on.set()
    until(lambda: bool(waited))
    assert waited[0] is False
    assert calls.reasons == {"no kernel": 2}
