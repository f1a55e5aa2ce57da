"""Every error is a problem document of one shape, whoever raises it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.support import CPU, Service, serving
from tests.waiting import PATIENCE_S
from tirgemm.artifact.revocations import RevocationList
from tirgemm.artifact.signing_keys import LIST_FILE, SigningKeys
from tirgemm.service.http.body_limit import BodyLimit
from tirgemm.service.http.problems import MEDIA_TYPE
from tirgemm.service.settings import MAX_BATCH_BODY_BYTES, MAX_BODY_BYTES

MEMBERS = {"type", "title", "status", "detail", "instance", "code"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose worker is registered but does nothing: requests here are all refused."""
    with serving(tmp_path_factory.mktemp("problems"), max_trials=50, max_seconds=60) as service:
        service.queue.register_worker("elsewhere:1:0", [CPU])
        yield service


def check(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    assert response.status_code == status, body
    assert response.headers["content-type"] == MEDIA_TYPE
    assert body.keys() >= MEMBERS
    assert body["status"] == status
    assert body["type"] == f"urn:tirgemm:problem:{body['code']}"
    assert body["instance"] == response.request.url.path
    assert all(body[name] for name in MEMBERS)
    assert re.fullmatch(r"[a-z_]+", body["code"])
    assert code is None or body["code"] == code
    return body


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


@pytest.mark.parametrize(
    "path",
    [
        "/v2",
        "/v1/kernels/",
        "/v1/kernels/zz",
        "/v1/kernels/" + "0" * 16,
        "/v1/jobs/nothing",
        "/v1/jobs/0/events",
        "/v1/jobs/%00",
        "/v1/artifacts/x",
        "/docs",
        "/v1/jobs/a%2Fb",
    ],
)
def test_what_is_not_there_is_404(shared: Service, path: str) -> None:
    response = shared.http.get(path)
    assert response.status_code == 404
    assert response.headers["content-type"] == MEDIA_TYPE
    assert response.json().keys() >= MEMBERS


def test_openapi_describes_every_error_as_a_problem(shared: Service) -> None:
    schema = shared.http.get("/openapi.json").json()
    paths = {path: [*operations.values()] for path, operations in schema["paths"].items()}
    # Those of the pages are told in docs/pages.md, as another test sees to.
    assert {path for path, operations in paths.items() if "pages" not in operations[0].get("tags", [])} == {
        "/v1/kernels",
        "/v1/kernels/{kernel_id}",
        "/v1/kernels/{kernel_id}/explain",
        "/v1/kernels/{kernel_id}/pin",
        "/v1/batches",
        "/v1/batches/{batch_id}",
        "/v1/batches/{batch_id}/events",
        "/v1/jobs",
        "/v1/jobs/{job_id}",
        "/v1/jobs/{job_id}/events",
        "/v1/jobs/{job_id}/retry",
        "/v1/artifacts/{sha256}",
        "/v1/keys",
        "/v1/revocations",
        "/v1/meta",
        "/healthz",
        "/readyz",
        "/metrics",
    }
    assert not schema["components"]["schemas"].keys() & {"HTTPValidationError", "ValidationError"}
    assert set(schema["components"]["schemas"]["Problem"]["required"]) == MEMBERS
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], (method, path)
            errors = {s: r for s, r in operation["responses"].items() if s[0] in "45"}
            refusals = {"401", "403", "429"} if operation["security"] else set()
            assert set(errors) == {"4XX", "5XX"} | refusals, (method, path)
            assert all(list(response["content"]) == [MEDIA_TYPE] for response in errors.values())


# Of the query parameters that a route cannot do without.
REQUIRED = {"gemm": "7x5x3:f16:nt", "device": "cpu", "kernel": "0" * 16}


def _required(operation: dict[str, Any]) -> list[str]:
    parameters = operation.get("parameters", ())
    return [each["name"] for each in parameters if each["in"] == "query" and each["required"]]


def test_every_path_answers_a_wrong_method_and_a_wrong_name_with_a_problem(shared: Service) -> None:
    schema = shared.http.get("/openapi.json").json()
    methods = {"get", "post", "put", "patch", "delete"}
    for path, operations in schema["paths"].items():
        url = re.sub(r"\{\w+\}", "0" * 16, path.replace("{gemm}", "7x5x3:f16:nt"))
        for method in methods - operations.keys():
            body = check(shared.http.request(method.upper(), url), 405, "method_not_allowed")
            assert method.upper() in body["detail"]
        for method, operation in operations.items():
            if "{" in path and method != "head":
                asked: dict[str, Any] = {"params": {name: REQUIRED[name] for name in _required(operation)}}
                if "requestBody" in operation:
                    asked["json"] = {"priority": 0} if method == "patch" else {}
                check(shared.http.request(method.upper(), url, **asked), 404)


def test_405_names_the_methods_that_are_allowed(shared: Service) -> None:
    assert shared.http.put("/v1/jobs").headers["allow"] == "GET, HEAD"


def test_a_failure_inside_is_500_without_internals(shared: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret of the house")

    monkeypatch.setattr(shared.state.queue, "jobs", broken)
    body = check(shared.http.get("/v1/jobs"), 500, "internal_error")
    assert "secret" not in json.dumps(body)


def test_readiness_is_503_without_a_worker_and_health_does_not_care(service: Service) -> None:
    assert check(service.http.get("/readyz"), 503, "not_ready")["detail"].startswith("no worker")
    assert service.http.get("/healthz").json() == {"status": "ok"}
    with service.worker():
        assert service.http.get("/readyz").json() == {"status": "ready", "workers": 1, "unusable": []}
    assert service.http.get("/readyz").status_code == 503, "a worker that left is gone at once"


def test_readiness_is_503_without_a_database(service: Service) -> None:
    service.state.database.close()
    for path in Path(service.state.settings.data).glob("tirgemm.db*"):
        path.unlink()
    check(service.http.get("/readyz"), 503, "not_ready")
    assert service.http.get("/healthz").status_code == 200


def test_meta_and_keys_say_what_there_is(shared: Service) -> None:
    meta = shared.http.get("/v1/meta").json()
    assert [device["key"] for device in meta["devices"]] == [CPU.key]
    assert meta["regimes"] == ["sustained", "isolated"]
    assert "x86" in meta["families"]
    assert meta["limits"]["trials"] == 50
    assert "sm_90a" in meta["named_devices"]
    keys = shared.http.get("/v1/keys").json()["keys"]
    assert keys == [{"algorithm": "ed25519", "key": shared.state.public_key}]
    assert meta["signer"] == shared.state.public_key


def test_revocations_are_served_as_signed_with_a_tag_and_keys_follow(tmp_path: Path) -> None:
    with serving(tmp_path, worker=False) as service:
        check(service.http.get("/v1/revocations"), 404, "no_revocations")
        signing = SigningKeys(tmp_path)
        signing.rotate()
        service.state.public_key = signing.current.public
        answer = service.http.get("/v1/revocations")
        shown = RevocationList.read(answer.content, signing.public)
        assert shown == signing.listed
        assert answer.content == (tmp_path / LIST_FILE).read_bytes()
        tag = answer.headers["etag"]
        for tags in ([tag], ['"other"', tag], [tag, '"other"'], [f'"other", {tag}', '"x"']):
            answer = service.http.get("/v1/revocations", headers=[("If-None-Match", one) for one in tags])
            assert answer.status_code == 304
        assert [entry["key"] for entry in service.http.get("/v1/keys").json()["keys"]] == list(signing.public)
        former = signing.former[0].public
        signing.revoke(former, "it leaked")
        answer = service.http.get("/v1/revocations", headers={"If-None-Match": tag})
        assert RevocationList.read(answer.content, signing.public).revoked == {former: "it leaked"}
        assert [entry["key"] for entry in service.http.get("/v1/keys").json()["keys"]] == [signing.current.public]


async def _never(_message: Any = None) -> Any:
    await asyncio.sleep(60)


def test_a_body_that_never_comes_is_408_and_does_not_reach_the_application() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(*_: Any) -> None:
        raise AssertionError("the application must not run")

    scope = {"type": "http", "headers": [], "path": "/v1/kernels", "method": "POST"}
    asyncio.run(BodyLimit(app, limit=100, seconds=0.05)(scope, _never, send))
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["code"] == "request_timeout"
