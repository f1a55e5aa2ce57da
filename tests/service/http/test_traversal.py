"""Paths to elsewhere in every parameter of the API: an ordinary refusal, and no file of the machine in any answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.service.support import Service, kernel_record, queueing
from tirgemm.detect import device as detect_device
from tirgemm.gemm import Gemm
from tirgemm.tuning_db import JobRequest

SECRET = "this must not be told"
ELSEWHERE = (
    "../secret.txt",
    "../../secret.txt",
    "..%2f..%2fsecret.txt",
    "..%252f..%252fsecret.txt",
    "%2e%2e/secret.txt",
    "..\\..\\secret.txt",
    "....//....//secret.txt",
    "/etc/passwd",
    "file:///etc/passwd",
    "secret.txt%00.tirgemm",
    "..%c0%af..%c0%afsecret.txt",
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = Path(tmp_path_factory.mktemp("elsewhere"))
    (folder / "secret.txt").write_text(SECRET)
    with queueing(folder / "data") as actual:
        (folder / "data" / "secret.txt").write_text(SECRET)
        kernel_record(actual.store, JobRequest(Gemm.parse("129x67x31"), detect_device("cpu")))
        yield actual


def places(schema: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Method, path, place and name of every parameter of an OpenAPI document."""
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                yield method.upper(), path, parameter["in"], parameter["name"]


def test_every_parameter_is_tried(service: Service) -> None:
    tried = 0
    for method, path, place, name in places(service.http.get("/openapi.json").json()):
        for hostile in (*ELSEWHERE, *(quote(value, safe="") for value in ELSEWHERE)):
            url, options = path, dict[str, Any]()
            if place == "path":
                url = path.replace(f"{{{name}}}", hostile)
            elif place == "query":
                options["params"] = {name: hostile}
            else:
                options["headers"] = {name: hostile}
            if method not in ("GET", "DELETE"):
                options["json"] = {}
            answer = service.http.request(method, url.replace("{", "0").replace("}", ""), **options)
            told = (method, url, name, hostile, answer.status_code, answer.text[:200])
            assert answer.status_code < 500, told
            assert SECRET not in answer.text, told
            assert "root:" not in answer.text, told
            if place == "path":
                assert answer.status_code in (400, 404, 405, 415, 422), told
            tried += 1
    assert tried > 30 * len(ELSEWHERE)


@pytest.mark.parametrize("member", ["gemm", "device", "regime", "effort"])
def test_members_of_a_body_are_no_paths(service: Service, member: str) -> None:
    for hostile in ELSEWHERE:
        answer = service.http.post("/v1/kernels", json={"gemm": "129x67x31"} | {member: hostile})
        assert answer.status_code in (409, 422), (member, hostile, answer.text)
        assert SECRET not in answer.text
    assert service.queue.jobs() == []
