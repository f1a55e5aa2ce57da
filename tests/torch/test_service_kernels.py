"""Kernels of a service in a model: what it has at once, what comes later, and a service that goes away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.artifact_samples import SIGNER
from tests.helpers.fake_service import CPU, JOB, FakeService, client_of
from tests.waiting import PATIENCE_S, until
from tirgemm import Client, Gemm
from tirgemm._client import http as http_layer
from tirgemm.errors import ServiceUnreachable

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

GEMM = Gemm.parse("33x17x19:f32:nt")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pauses of a millisecond, so that retries cost nothing; and no gradients."""
    monkeypatch.setattr(http_layer, "backoff", lambda _attempt: 0.001)
    with torch.no_grad():
        yield


class Unlisted(FakeService):
    """A service that lists no kernel until ``listed``: what it has comes out of jobs."""

    listed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not self.listed and (request.method, request.url.path) == ("GET", "/v1/kernels"):
            self.requests.append(request)
            return httpx.Response(200, json={"kernels": [], "next": None})
        return super().handle_request(request)


@pytest.fixture
def fake() -> Unlisted:
    return Unlisted(str(GEMM))


@pytest.fixture
def client(fake: FakeService, tmp_path: Path) -> Iterator[Client]:
    with client_of(fake, tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    from tirgemm.torch.kernel_table import TABLE

    yield TABLE
    while (kernel := TABLE.find(GEMM, CPU)) is not None:
        TABLE.remove(kernel)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tirgemm.torch.service_kernels.POLL_S", 0.001)


def accelerated(client: Client, **more: Any) -> tuple[Any, Any, Any]:
    """A model, its report, and a call of it that must be right."""
    from tirgemm.torch import accelerate

    made = torch.nn.Linear(19, 17, bias=False)
    x = torch.randn(33, 19)
    wanted = made(x)

    def check() -> None:
        assert torch.allclose(made(x), wanted, atol=1e-5)

    report = accelerate(made, rows=33, client=client, **more)
    check()
    return made, report, check


def role(table: Any) -> str | None:
    kernel = table.find(GEMM, CPU)
    return None if kernel is None else kernel.manifest.role


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


def test_a_job_that_fails_is_told(client: Client, fake: Unlisted) -> None:
    fake.status, fake.error = "failed", {"code": "build_failed", "detail": "no"}
    _, report, check = accelerated(client, wait=True)
    assert "ended as failed" in report.failures[GEMM]
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
