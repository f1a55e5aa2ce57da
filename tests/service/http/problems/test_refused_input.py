"""Bodies, fields and filters that are refused: each a problem document with its reason."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.http.problems.problem_check import check
from tests.service.support import Service
from tests.waiting import PATIENCE_S
from tirgemm.service.settings import MAX_BATCH_BODY_BYTES, MAX_BODY_BYTES


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"gemm=1", b"\xff\xfe", b"[" * 60_000, b'{"gemm": ' + b"9" * 5000 + b"}", b'{"gemm": "1x1x1"} x'],
    ids=["empty", "cut", "form", "not utf-8", "deep", "huge number", "tail"],
)
def test_a_body_that_is_not_json_is_400(shared: Service, body: bytes) -> None:
    response = shared.http.post("/v1/kernels", content=body, headers={"Content-Type": "application/json"})
    if body == b"":
        check(response, 422, "invalid_request")
    else:
        check(response, 400, "invalid_json")


@pytest.mark.parametrize(
    "body",
    [b'{"gemm": "7x5x3", "gemm": "7x5x9"}', b'{"gemm": {"m": 7, "n": 5, "k": 3, "\\u006b": 9}}'],
    ids=["plain", "nested and escaped"],
)
def test_a_member_that_is_there_twice_is_400(shared: Service, body: bytes) -> None:
    for path in ("/v1/kernels", "/v1/batches"):
        answer = shared.http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert "twice" in check(answer, 400, "invalid_json")["detail"]
    assert shared.queue.jobs() == []


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_json_under_another_name_is_415(shared: Service, media_type: str | None) -> None:
    headers = {} if media_type is None else {"Content-Type": media_type}
    check(shared.http.post("/v1/kernels", content=b'{"gemm": "7x5x3"}', headers=headers), 415, "unsupported_media_type")


def test_a_long_body_is_413_announced_or_chunked(shared: Service) -> None:
    long = json.dumps({"gemm": "7x5x3" + " " * MAX_BODY_BYTES}).encode()
    headers = {"Content-Type": "application/json"}
    check(shared.http.post("/v1/kernels", content=long, headers=headers), 413, "body_too_large")

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(long), 4096):
            yield long[start : start + 4096]

    check(shared.http.post("/v1/kernels", content=chunks(), headers=headers), 413, "body_too_large")
    check(shared.http.put("/v1/kernels/abc", content=long), 413, "body_too_large")
    just = json.dumps({"gemm": "0x5x3"}).encode().ljust(MAX_BODY_BYTES)
    check(shared.http.post("/v1/kernels", content=just, headers=headers), 422, "invalid_gemm")


def test_only_a_batch_may_have_a_longer_body_and_that_has_its_limit_too(shared: Service) -> None:
    headers = {"Content-Type": "application/json"}
    body = json.dumps({"gemms": ["0x5x3"]}).encode()
    just, long = body.ljust(MAX_BATCH_BODY_BYTES), body.ljust(MAX_BATCH_BODY_BYTES + 1)
    check(shared.http.post("/v1/batches", content=just, headers=headers), 422, "invalid_gemm")
    for content in (long, iter([long[:70_000], long[70_000:]])):
        answer = shared.http.post("/v1/batches", content=content, headers=headers)
        assert f"over {MAX_BATCH_BODY_BYTES} bytes" in check(answer, 413, "body_too_large")["detail"]
    for method, path in (("POST", "/v1/kernels"), ("GET", "/v1/batches"), ("POST", "/v1/batches/0/cancel")):
        answer = shared.http.request(method, path, content=body.ljust(MAX_BODY_BYTES + 1), headers=headers)
        assert f"over {MAX_BODY_BYTES} bytes" in check(answer, 413, "body_too_large")["detail"]


def test_an_announced_length_is_refused_before_the_body_is_sent(shared: Service) -> None:
    host, port = shared.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(
            b"POST /v1/kernels HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 999999\r\n\r\n"
        )
        assert b"413" in connection.recv(64)


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"gemm": "0x5x3"}, "invalid_gemm", "m is 0"),
        ({"gemm": "-7x5x3"}, "invalid_gemm", "m is -7"),
        ({"gemm": "7x5x99999999999999999999"}, "invalid_gemm", "k is 99999999999999999999"),
        ({"gemm": "7x5x999999999999999999999"}, "invalid_gemm", "20 digits"),
        ({"gemm": "7.5x5x3"}, "invalid_gemm", "integers"),
        ({"gemm": "7x5x3:f8"}, "invalid_gemm", "dtype"),
        ({"gemm": "7x5x3:f16:xx"}, "invalid_gemm", "layout"),
        (
            {"gemm": {"m": [1, 64], "n": 5, "k": 3}},
            "invalid_gemm",
            "m is [1, 64]; it must be an integer, or a text LOW",
        ),
        ({"gemm": {"m": {"low": 1}, "n": 5, "k": 3}}, "invalid_gemm", "such as '1..64'"),
        ({"gemm": "7x5x3:lda=2"}, "invalid_gemm", "lda"),
        ({"gemm": "7x5x3:batch=2:stride_a=4"}, "invalid_gemm", "overlap"),
        ({"gemm": {"m": 7, "n": 5, "k": 3, "q": 1}}, "invalid_gemm", "'q'"),
        ({"gemm": {"m": 7, "n": 5}}, "invalid_gemm", "'k'"),
        ({"gemm": {"m": 7.5, "n": 5, "k": 3}}, "invalid_gemm", "m is 7.5"),
        ({"gemm": {"m": True, "n": 5, "k": 3}}, "invalid_gemm", "m is True"),
        ({"gemm": {"m": None, "n": 5, "k": 3}}, "invalid_gemm", "m is None"),
        ({"gemm": "\ud800x5x3"}, "invalid_gemm", "ud800"),
        ({"gemm": "2097152x8x1048576:f16:nn"}, "does_not_fit", "bytes"),
        ({"gemm": [7, 5, 3]}, "invalid_request", "gemm"),
        ({"gemm": 7}, "invalid_request", "gemm"),
        ({}, "invalid_request", "gemm"),
        ([], "invalid_request", "body"),
        ({"gemm": "7x5x3", "devise": "cpu"}, "invalid_request", "devise"),
        ({"gemm": "7x5x3", "device": "tpu"}, "invalid_device", "tpu"),
        ({"gemm": "7x5x3", "device": "sm_70"}, "invalid_device", "sm_70"),
        ({"gemm": "7x5x3", "device": ""}, "invalid_request", "device"),
        ({"gemm": "7x5x3", "device": "\x00"}, "invalid_device", "device"),
        ({"gemm": "7x5x3", "device": 3}, "invalid_request", "device"),
        ({"gemm": "7x5x3", "regime": "fast"}, "invalid_request", "regime"),
        (
            {"gemm": "7x5x3", "budget": {"trials": 0}},
            "invalid_request",
            "trials is 0; it should be greater than or equal",
        ),
        ({"gemm": "7x5x3", "budget": {"trials": 51}}, "invalid_request", "at most 50"),
        (
            {"gemm": "7x5x3", "budget": {"trials": "5"}},
            "invalid_request",
            "trials is '5'; it should be a valid integer",
        ),
        ({"gemm": "7x5x3", "budget": {"seconds": 61}}, "invalid_request", "at most 60"),
        ({"gemm": "7x5x3", "budget": {"seconds": 0}}, "invalid_request", "seconds"),
        ({"gemm": "7x5x3", "budget": {"seconds": float("nan")}}, "invalid_request", "seconds is nan"),
        ({"gemm": "7x5x3", "budget": {"seconds": float("inf")}}, "invalid_request", "seconds"),
        (
            {"gemm": "7x5x3", "budget": {"hours": 1}},
            "invalid_request",
            "budget.hours: no such member; there are trials, seconds",
        ),
        ({"gemm": "7x5x3", "effort": "great"}, "invalid_request", "'none', 'quick', 'standard' or 'exhaustive'"),
        ({"gemm": "7x5x3", "effort": 1}, "invalid_request", "effort"),
        ({"gemm": "7x5x3", "seed": -1}, "invalid_request", "seed"),
        ({"gemm": "7x5x3", "seed": 2**40}, "invalid_request", "seed"),
        ({"gemm": "7x5x3", "verify": "no"}, "invalid_request", "verify"),
        ({"gemm": "7x5x3", "verify": 0}, "invalid_request", "verify"),
        ({"gemm": "7x5x3", "retune": "yes"}, "invalid_request", "retune"),
        (
            {"gemm": "7x5x3", "retrun": True},
            "invalid_request",
            "body.retrun: no such member; there are gemm, device, regime, effort, budget, queue, seed, retune, verify",
        ),
    ],
)
def test_bad_input_is_422_with_the_reason(shared: Service, body: Any, code: str, words: str) -> None:
    content = json.dumps(body).encode()
    response = shared.http.post("/v1/kernels", content=content, headers={"Content-Type": "application/json"})
    assert words in check(response, 422, code)["detail"]
    assert shared.queue.jobs() == []


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "after=zz", "regime=fast", "gemm=0x1x1", "gemm=" + "1" * 600],
)
def test_bad_filters_are_422(shared: Service, query: str) -> None:
    check(shared.http.get(f"/v1/kernels?{query}"), 422)


@pytest.mark.parametrize(
    ("address", "detail"),
    [
        ("/v1/kernels?limit=x", "query.limit is 'x'; it should be an integer from 1 to 1000"),
        ("/v1/jobs?limit=1.5", "query.limit is '1.5'; it should be an integer from 1 to 1000"),
        ("/v1/batches?limit=", "query.limit is ''; it should be an integer from 1 to 100"),
        ("/v1/batches?limit=101", "query.limit is '101'; it should be less than or equal to 100"),
        ("/v1/jobs?limit=" + "9" * 5000, f"query.limit is '{'9' * 79}; it should be an integer from 1 to 1000"),
    ],
)
def test_a_number_in_a_query_is_refused_with_its_limits(shared: Service, address: str, detail: str) -> None:
    assert check(shared.http.get(address), 422)["detail"] == detail


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/v1/kernels", "after, device, gemm, limit, regime"),
        ("/v1/jobs", "after, device, gemm, limit, status"),
        ("/kernels", "after, device, dtype, family, regime, role, shape, sort"),
        (f"/v1/kernels/{'0' * 16}/explain", "format"),
    ],
)
def test_a_filter_that_does_not_exist_is_refused_and_those_that_do_are_named(
    shared: Service, path: str, known: str
) -> None:
    body = check(shared.http.get(path, params={"statuz": "done"}), 422, "invalid_request")
    assert "'statuz'" in body["detail"]
    assert body["detail"].endswith(f"it takes {known}")
    assert body["errors"] == [{"field": "query.statuz", "message": "no such parameter"}]
    check(shared.http.get(path, params={"limit" if "explain" not in path else "format": "x"}), 422)


@pytest.mark.parametrize("path", ["/v1/kernels", "/v1/jobs", "/kernels", "/jobs", "/spaces"])
@pytest.mark.parametrize("device", ["foo", "sm_91", "CPU", "cuda:", "cuda:sm_90a:nvidia-h200", "cpu\0"])
def test_a_filter_by_a_device_that_cannot_be_is_refused(shared: Service, path: str, device: str) -> None:
    detail = check(shared.http.get(path, params={"device": device}), 422, "invalid_device")["detail"]
    assert detail.startswith(
        f"device {device!r} is unknown; a device is a key, or one of the names cpu, cuda, cuda:N, "
    )
    assert "sm_90a" in detail


@pytest.mark.parametrize("path", ["/v1/kernels", "/v1/jobs", "/kernels", "/jobs", "/spaces"])
@pytest.mark.parametrize(
    "device", ["cpu", "cuda", "cuda:7", "sm_89", "cuda:sm_120:a-card:3:450w", "cpu:aarch64:a:2:0f"]
)
def test_a_filter_by_a_device_that_nothing_is_stored_for_is_taken(shared: Service, path: str, device: str) -> None:
    assert shared.http.get(path, params={"device": device}, headers={"Accept": "application/json"}).status_code == 200
