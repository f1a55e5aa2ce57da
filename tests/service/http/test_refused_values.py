"""What a request is told of a value that is refused: the value and the limit in words, no expression or library's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from tests.service.support import CPU, Service, kernel_record, serving
from tirgemm import Gemm
from tirgemm.service.http.batch_documents import BatchRequest
from tirgemm.service.http.request_bodies import TOLD_MEMBERS, KernelRequest, RequestBody
from tirgemm.service.json_text import longest_integer, nesting
from tirgemm.tuning_db import JobRequest
from tirgemm.tuning_db.queue.job_rows import MAX_REASON

POSTS = ("/v1/kernels", "/v1/batches")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose worker is registered but does nothing: requests here are all refused."""
    with serving(tmp_path_factory.mktemp("refused")) as service:
        service.queue.register_worker("elsewhere:1:0", [CPU])
        yield service


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    assert (response.status_code, body["code"]) == (status, code), body
    return body


def asked(path: str, **members: Any) -> dict[str, Any]:
    """A body that is right but for ``members``."""
    return ({"gemm": "7x5x3"} if path == "/v1/kernels" else {"gemms": ["7x5x3"]}) | members


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("window", ["25:00-06:00", "22:00", "", "22:00-06:00\n", "22:60-06:00", "2\u0663:00-06:00"])
def test_a_window_is_refused_with_what_one_looks_like(shared: Service, path: str, window: str) -> None:
    body = refused(shared.http.post(path, json=asked(path, queue={"window": window})), 422, "invalid_request")
    words = "should be two times from 00:00 to 23:59 in UTC, such as 22:00-06:00"
    assert body["detail"] == f"body.queue.window is {window!r}; it {words}"
    assert body["errors"] == [{"field": "body.queue.window", "message": f"Input {words}"}]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("", "body.device is ''; it should have at least 1 character, not 0"),
        ("x" * 300, f"body.device is '{'x' * 79}; it should have at most 200 characters, not 300"),
    ],
)
def test_a_text_of_a_wrong_length_is_refused_with_the_limit(
    shared: Service, path: str, device: str, words: str
) -> None:
    body = refused(shared.http.post(path, json=asked(path, device=device)), 422, "invalid_request")
    assert body["detail"] == words


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("trials", 2**31, "100000000"),
        ("trials", 2**63 - 1, "100000000"),
        ("trials", 10**400, "100000000"),
        ("trials", 1e22, "100000000"),
        ("seconds", 2**31, "604800000"),
        ("seconds", 1e300, "604800000"),
    ],
    ids=["2^31", "2^63", "10^400", "10^22", "seconds", "many seconds"],
)
@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("gemm", ["7x5x3", "9x5x3"], ids=["known", "new"])
def test_a_budget_beyond_that_of_the_largest_batch_is_refused(
    shared: Service, path: str, gemm: str, name: str, value: float, limit: str
) -> None:
    kernel_record(shared.store, JobRequest(Gemm.parse("7x5x3"), CPU))
    named = {"gemm": gemm} if path == "/v1/kernels" else {"gemms": [gemm]}
    body = asked(path, **named, effort="none", device=CPU.key, budget={name: value})
    detail = refused(shared.http.post(path, json=body), 422, "invalid_request")["detail"]
    assert detail.startswith(f"body.budget.{name} is ")
    assert detail.endswith(f"it should be less than or equal to {limit}")


def test_a_budget_just_beyond_the_limit_is_told_in_full(shared: Service) -> None:
    answer = shared.post(budget={"seconds": 14400.0000001})
    assert answer.status_code == 422
    assert answer.json()["detail"] == "budget seconds is 14400.0000001; this service takes at most 14400"


def test_a_batch_of_known_kernels_may_have_any_budget_of_a_batch(shared: Service) -> None:
    kernel_record(shared.store, JobRequest(Gemm.parse("7x5x3"), CPU))
    budget = {"trials": 10**8, "seconds": 604_800_000.0}
    answer = shared.http.post(POSTS[1], json={"gemms": ["7x5x3"], "effort": "none", "budget": budget})
    assert (answer.status_code, answer.json()["budget"]) == (200, budget)


def test_a_reason_that_is_too_long_is_refused_with_the_limit(shared: Service) -> None:
    job = shared.queue.submit(JobRequest(Gemm.parse("7x5x3"), CPU))[0]
    answer = shared.http.post(f"/v1/jobs/{job.id}/retry", json={"reason": "y" * 3000})
    words = f"should have at most {MAX_REASON} characters, not 3000"
    body = refused(answer, 422, "invalid_request")
    assert body["detail"] == f"body.reason is '{'y' * 79}; it {words}"
    assert body["errors"] == [{"field": "body.reason", "message": f"Input {words}"}]


def test_too_many_problems_are_refused_with_the_limit_and_not_repeated(shared: Service) -> None:
    body = refused(shared.http.post("/v1/batches", json={"gemms": ["7x5x3"] * 1001}), 422, "invalid_request")
    assert body["detail"] == "body.gemms should have at most 1000 items, not 1001"


def test_no_value_of_a_query_is_refused_with_a_regular_expression(shared: Service) -> None:
    schema = shared.http.get("/openapi.json").json()
    expressions = {
        (path.replace("{gemm}", "7x5x3:f16:nt"), each["name"]): each["schema"]["pattern"]
        for path, operations in schema["paths"].items()
        for each in operations.get("get", {}).get("parameters", ())
        if each["in"] == "query" and "pattern" in each["schema"]
    }
    assert {"after", "dtype", "family", "gemm", "regime"} <= {name for _, name in expressions}
    for (path, name), expression in expressions.items():
        response = shared.http.get(path, params={name: "\x7f!"}, headers={"accept": "application/json"})
        if response.status_code != 404:
            detail = response.json()["detail"]
            assert (response.status_code, expression in detail, "String" in detail) == (422, False, False), detail
            assert repr("\x7f!") in detail


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\xfe", "the body is not JSON in UTF-8"),
        (b'{"gemm": "\xff"}', "the body is not JSON in UTF-8"),
        (b"[" * 60_000, "nested 60000 levels deep, too deep to be read; no request needs more than 3"),
        (b'{"gemm": ' * 2_000 + b'"[[["' + b"}" * 2_000, "nested 2000 levels deep"),
        (b'{"seed": -' + b"9" * 5000 + b', "device": "' + b"7" * 6000 + b'"}', "an integer of 5000 digits; the limit"),
        (("{" + f'"seed": {"9" * 5000}' + "}").encode("utf-16"), "an integer of 5000 digits; the limit is 4300"),
    ],
    ids=["no UTF-8", "no UTF-8 in a text", "lists", "objects", "integer and digits in a text", "UTF-16"],
)
@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_the_parser_gives_up_is_told_what_it_is(
    shared: Service, path: str, body: bytes, words: str
) -> None:
    answer = shared.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert words in refused(answer, 400, "invalid_json")["detail"]


def test_figures_of_a_text_leave_out_what_stands_in_its_strings() -> None:
    value = {"a": [{"b": r'\"[[[[{{ 123456789 "'}, [], 12.3456789], "c": -1234, "d": 12345e3}
    data = json.dumps(value).encode()
    assert (nesting(data), longest_integer(data)) == (3, 4)
    assert (nesting(b""), longest_integer(b"")) == (0, 0)
    assert nesting(b'[[["' + rb"\"[" * 20_000) == 3


@pytest.mark.parametrize("within", ["", "budget", "queue"])
@pytest.mark.parametrize("form", [KernelRequest, BatchRequest])
def test_a_body_of_unknown_members_is_not_told_of_each(form: type[RequestBody], within: str) -> None:
    path = POSTS[form is BatchRequest]
    many = {f"m{number}": 1 for number in range(10_000)}
    with pytest.raises(ValidationError) as refused:
        form.model_validate(asked(path, **({within: many} if within else many)))
    errors = refused.value.errors()
    assert [error["loc"][-1] for error in errors] == [f"m{number}" for number in range(TOLD_MEMBERS)]
    assert {error["type"] for error in errors} == {"extra_forbidden"}


def test_known_members_are_read_among_many_unknown_ones(shared: Service) -> None:
    many = {f"m{number}": 1 for number in range(1000)} | {"gemm": 7}
    body = refused(shared.http.post("/v1/kernels", json=many), 422, "invalid_request")
    assert body["detail"].startswith("body.gemm")
    assert {"field": "body.m0", "message": body["errors"][-1]["message"]} in body["errors"]
