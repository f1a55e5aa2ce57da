"""Commands at a service whose documents lack members, or have others than they must: a sentence, no traceback."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.artifact_samples import SIGNER
from tests.helpers.command_line import Run, own_folders, runner
from tests.helpers.fake_service import MADE, FakeService
from tirgemm._client import http as http_layer

URL = "http://127.0.0.1:8000"
GEMM = "33x17x19:f32:nt"
SET_MEMBER = {"m": "9..64", "family": "x86", "config": "x86(a=1)", "config_hash": "a", "kernel_sha256": "b"}
KERNEL: dict[str, Any] = FakeService().kernels["70ed"] | {
    "certificate": {"tests": [], "reference": "numpy fp64"},
    "portable": False,
    "pinned": True,
    "other_device": None,
    "members": [SET_MEMBER | {"median_us": 3.5}],
}
JOB: dict[str, Any] = FakeService().job() | {"status": "done", "error": None, "fallback": None, "kernel": KERNEL}
ITEM = {"gemm": GEMM, "state": "hit", "expected_gain": 0.1, "job": None, "kernel": "70ed", "gain": 1.5}
BATCH: dict[str, Any] = {
    "id": "ba7c",
    "status": "done",
    "states": {"hit": 1},
    "gain": {"geomean": 1.5, "kernels": 1},
    "created_at": MADE,
    "items": [ITEM],
}
LISTS = {"jobs": JOB, "kernels": KERNEL, "batches": BATCH}
# Each command with the document that it is answered with, and the address that it asks.
ONE: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (("jobs", "watch", "3f2a"), JOB, "/v1/jobs/3f2a"),
    (("jobs", "cancel", "3f2a"), JOB, "/v1/jobs/3f2a"),
    (("jobs", "retry", "3f2a"), JOB, "/v1/jobs/3f2a/retry"),
    (("jobs", "prioritise", "3f2a", "7"), JOB, "/v1/jobs/3f2a"),
    (("kernels", "show", "70ed", "--url", URL), KERNEL, "/v1/kernels/70ed"),
    (("kernels", "delete", "70ed", "--url", URL), KERNEL | {"pinned": False}, "/v1/kernels/70ed"),
    (("kernels", "pin", "70ed", "--url", URL), KERNEL, "/v1/kernels/70ed/pin"),
    (("kernels", "unpin", "70ed", "--url", URL), KERNEL, "/v1/kernels/70ed/pin"),
    (("batches", "show", "ba7c"), BATCH, "/v1/batches/ba7c"),
    (("batches", "watch", "ba7c"), BATCH, "/v1/batches/ba7c"),
    (("batches", "cancel", "ba7c"), BATCH, "/v1/batches/ba7c"),
    (("batches", "submit", "model.toml"), BATCH, "/v1/batches"),
]
ODD: tuple[Any, ...] = (None, 7, -1.5, float("inf"), True, "x", [], {}, [None], {"x": None})


class Answers(FakeService):
    """Answers requests for jobs, kernels and batches with one document; it has no event streams."""

    document: Any = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.endswith("/events"):
            return httpx.Response(404, json={"code": "not_found"})
        if path.startswith(("/v1/jobs", "/v1/kernels", "/v1/batches")):
            # As 1e999, which is JSON, infinity comes in.
            return httpx.Response(200, content=json.dumps(self.document).replace("Infinity", "1e999").encode())
        return super().handle_request(request)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    (own_folders(tmp_path, monkeypatch) / "model.toml").write_text(f'device = "cpu"\n[kernels]\na = "{GEMM}"\n')
    assert runner(capsys)("trust", "add", SIGNER.public)[0] == 0
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What every client reaches, whatever the address."""
    transport, real = Answers(GEMM), http_layer.ServiceConnection

    def session(url: str, **options: Any) -> http_layer.ServiceConnection:
        return real(url, **options | {"transport": transport, "patience": 0.0})

    monkeypatch.setattr("tirgemm.client.ServiceConnection", session)
    return transport


def altered(document: Any) -> Iterator[tuple[str, Any]]:
    """The document with one member at a time left out or made odd, and which; of lists the items, too."""

    def ways(value: Any, way: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        for step in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            yield (*way, step)
            yield from ways(value[step], (*way, step))

    for way in ways(document, ()):
        for value in (..., *ODD):
            changed = copy.deepcopy(document)
            holder = changed
            for step in way[:-1]:
                holder = holder[step]
            if value is ...:
                del holder[way[-1]]
            else:
                holder[way[-1]] = value
            yield ".".join(map(str, way)), changed


@pytest.mark.parametrize(("command", "document", "path"), ONE, ids=[" ".join(each[0][:2]) for each in ONE])
def test_an_empty_document_is_told_by_the_member_and_the_address(
    run: Run, answers: Answers, command: tuple[str, ...], document: dict[str, Any], path: str
) -> None:
    answers.document = document
    assert run(*command)[0] == 0
    answers.document = {}
    code, out, err = run(*command)
    words = f"{URL}{path} answered with a document in which id is missing; is it a tirgemm service?"
    if command[:2] == ("batches", "watch"):
        words = f"{URL} answered without the status of batch ba7c; is it a tirgemm service?"
    assert (code, out, words in " ".join(err.split())) == (1, "", True)


@pytest.mark.parametrize("group", LISTS)
def test_an_empty_document_in_a_list_is_told_by_its_number(run: Run, answers: Answers, group: str) -> None:
    command = (group, "list", "--url", URL)
    answers.document = {name: [document, {}] for name, document in LISTS.items()}
    code, out, err = run(*command)
    words = f"{URL}/v1/{group} answered with a document in which {group}.1.id is missing"
    assert (code, out, words in " ".join(err.split())) == (1, "", True)
    answers.document = {group: [LISTS[group]]}
    assert run(*command)[0] == 0


@pytest.mark.parametrize(
    ("member", "value", "words"),
    [
        ("status", 7, "status is 7, which must be a text"),
        ("device", "cpu", "device is 'cpu', which must be an object"),
        ("device", {}, "device.name is missing"),
        ("budget", {"trials": True}, "budget.trials is True, which must be an integer"),
        ("error", "bad", "error is 'bad', which must be an object or null"),
        ("kernel", KERNEL | {"artifact": {"sha256": "a", "bytes": None}}, "kernel.artifact.bytes is None, which must"),
        ("kernel", 7, "kernel is 7, which must be an object or a text or null"),
    ],
)
def test_a_member_of_another_type_is_told_with_its_value(
    run: Run, answers: Answers, member: str, value: Any, words: str
) -> None:
    answers.document = JOB | {member: value}
    code, _, err = run("jobs", "cancel", "3f2a")
    assert (code, words in " ".join(err.split())) == (1, True)


@pytest.mark.parametrize(("command", "document"), [each[:2] for each in ONE], ids=[" ".join(e[0][:2]) for e in ONE])
def test_no_odd_member_ends_a_command_in_a_traceback(
    run: Run, answers: Answers, command: tuple[str, ...], document: dict[str, Any]
) -> None:
    for member, answers.document in altered(document):
        code, out, err = run(*command)
        assert code in (0, 1), (member, answers.document, err)
        assert out if code == 0 else out or re.search(r"error: .", err), member


@pytest.mark.parametrize("group", LISTS)
def test_no_odd_member_ends_a_list_in_a_traceback(run: Run, answers: Answers, group: str) -> None:
    for member, document in altered(LISTS[group]):
        answers.document = {group: [document]}
        code, out, err = run(group, "list", "--url", URL)
        assert (code, bool(out)) in ((0, True), (1, False)), (member, document, err)


def test_no_odd_member_of_a_kernel_ends_get_in_a_traceback(run: Run, answers: Answers) -> None:
    command = ("get", GEMM, "--device", "cpu", "-o", "k.tirgemm")
    answers.document = whole = answers.kernels["70ed"]
    assert run(*command)[0] == 0
    for member, answers.document in altered(whole):
        code, _, err = run(*command)
        assert code in (0, 1), (member, answers.document, err)
    answers.document = {name: value for name, value in whole.items() if name != "family"}
    code, _, err = run(*command)
    assert (code, "in which family is missing" in " ".join(err.split())) == (1, True)


def test_no_odd_member_of_a_kernel_ends_lock_in_a_traceback(run: Run, answers: Answers) -> None:
    whole = answers.kernels["70ed"]
    for member, document in [("", whole), *altered(whole)]:
        # The batch that is asked for first has the kernel's document beside its own members.
        answers.document = document | BATCH | {name: document[name] for name in BATCH if name in document}
        code, _, err = run("lock", "model.toml")
        assert code in (0, 1) if member else code == 0, (member, document, err)
