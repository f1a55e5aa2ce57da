"""Ids in the paths of a client's requests: what is no id never becomes a part of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.fake_service import EVENTS, FakeService, client_of, sse
from tirgemm import Client
from tirgemm._client.resource_path import path_of
from tirgemm.errors import InvalidRequest, ServiceError

GEMM = "33x17x19:f32:nt"
NO_IDS: tuple[Any, ...] = (
    "",
    ".",
    "..",
    "../kernels/70ed",
    "70ed/pin",
    "70ed/../fa11",
    "%2e%2e%2fkernels%2f70ed",
    "70ed?limit=1",
    "70ed#",
    "70ed\n",
    " 70ed",
    "70ED",
    "70\u0663",
    "\ud800",
    "a" * 33,
    7,
    None,
    ["70ed"],
)
CALLS: dict[str, Callable[[Client, Any], Any]] = {
    "job": lambda client, name: client.job(name),
    "cancel": lambda client, name: client.cancel(name),
    "retry": lambda client, name: client.retry(name),
    "prioritise": lambda client, name: client.prioritise(name, 7),
    "events": lambda client, name: list(client.events(name)),
    "kernel_document": lambda client, name: client.kernel_document(name),
    "delete": lambda client, name: client.delete(name),
    "pin": lambda client, name: client.pin(name),
    "unpin": lambda client, name: client.pin(name, pinned=False),
    "batch": lambda client, name: client.batch(name),
    "cancel_batch": lambda client, name: client.cancel_batch(name),
    "batch_progress": lambda client, name: list(client.batch_progress(name)),
}


@pytest.fixture
def fake() -> FakeService:
    return FakeService(GEMM)


@pytest.fixture
def client(fake: FakeService, tmp_path: Path) -> Iterator[Client]:
    with client_of(fake, tmp_path) as opened:
        yield opened


def test_an_id_is_the_last_part_of_its_path_or_has_a_fixed_one_below_it() -> None:
    assert path_of("jobs", "0123456789abcdef") == "/v1/jobs/0123456789abcdef"
    assert path_of("kernels", "z" * 32, "/pin") == f"/v1/kernels/{'z' * 32}/pin"


@pytest.mark.parametrize("name", NO_IDS, ids=repr)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_no_id_is_refused_with_its_value_and_nothing_is_sent(
    client: Client, fake: FakeService, call: Callable[[Client, Any], Any], name: Any
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        call(client, name)
    assert str(refused.value).startswith(f"{name!r:.80} is no id of a ")
    assert "which has 1 to 32 lower-case letters and digits" in str(refused.value)
    assert not fake.requests


@pytest.mark.parametrize("name", NO_IDS, ids=repr)
def test_a_job_that_a_service_names_by_no_id_is_the_services_fault(
    client: Client, fake: FakeService, name: Any
) -> None:
    # Its surrogate is no JSON in UTF-8.
    told = "?" if name == "\ud800" else name
    fake.answer = lambda _body: (202, {"status": "building", "job": fake.job() | {"id": told}, "fallback": None})
    with pytest.raises(ServiceError, match="accepted the request but named no job"):
        client.document(GEMM)
    assert {request.url.path for request in fake.requests} == {"/v1/kernels"}


@pytest.mark.parametrize("name", [name for name in NO_IDS if name and isinstance(name, str)], ids=repr)
def test_a_kernel_that_a_service_names_by_no_id_is_the_services_fault(
    client: Client, fake: FakeService, name: str
) -> None:
    fake.streams = [[EVENTS[0], sse(2, "fallback", kernel=name)]]
    with pytest.raises(ServiceError, match=r"which is no id; is it a tirgemm service\?"):
        client.document(GEMM, wait="fallback")
    assert {request.url.path for request in fake.requests} == {"/v1/kernels", "/v1/jobs/3f2a/events"}
