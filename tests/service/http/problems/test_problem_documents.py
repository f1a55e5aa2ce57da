"""Every error is a problem document of one shape, whoever raises it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.service.http.problems.problem_check import MEMBERS, check
from tests.service.support import CPU, Service, serving
from tirgemm.artifact.revocations import RevocationList
from tirgemm.artifact.signing_keys import LIST_FILE, SigningKeys
from tirgemm.service.http.body_limit import BodyLimit
from tirgemm.service.http.pages.site import SiteRequest
from tirgemm.service.http.problems import MEDIA_TYPE


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


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("secret of the house")


@pytest.mark.parametrize("place", ["route", "middleware"])
def test_a_fault_inside_is_500_without_internals_and_answered_as_anything_else(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    owner, name = (service.state.queue, "jobs") if place == "route" else (service.state.access, "keys")
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, broken)
        answer, head = service.http.get("/v1/jobs"), service.http.head("/v1/jobs")
    assert "secret" not in json.dumps(check(answer, 500, "internal_error"))
    assert re.fullmatch(r"[0-9a-f]{16}", answer.headers["x-request-id"])
    assert (head.status_code, head.content) == (500, b"")
    assert 'requests_total{method="GET",route="/v1/jobs",status="500"} 1.0' in service.http.get("/metrics").text
    logged = [record for record in caplog.records if record.message == "GET '/v1/jobs' failed"]
    assert [record.exc_info is not None for record in logged] == [True, True]
    later = service.http.get("/v1/jobs")
    ports = {one.extensions["network_stream"].get_extra_info("client_addr")[1] for one in (answer, later)}
    assert (later.status_code, len(ports)) == (200, 1), "the connection was dropped"


def test_a_fault_of_a_page_is_a_page(shared: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SiteRequest, "answer", broken)
    answer = shared.http.get("/fleet", headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "(ZeroDivisionError); its log says why" in answer.text


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
