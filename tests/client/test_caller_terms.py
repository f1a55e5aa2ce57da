"""Errors in the caller's terms: what a newcomer is told on the command line and in Python, and in whose words."""

from __future__ import annotations

import ctypes
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

import tirgemm
from tests.helpers.artifact_samples import SIGNER, certified, fake_cubin, packed
from tests.helpers.command_line import own_folders
from tests.helpers.stored_candidates import GEMM, made
from tirgemm import Gemm, detect, detect_cuda
from tirgemm._client import http as http_layer
from tirgemm.artifact import Trust, native
from tirgemm.detect import device
from tirgemm.errors import DeviceUnavailable, ServiceError, TirgemmError
from tirgemm.service import cli

ROOT = Path(__file__).resolve().parents[2]
# What belongs on a command line or into a request, and has no place in what Python raises.
_FOREIGN = re.compile(r"(?<!\w)--[a-z]|\"[a-z_]+\":|body\.|(GET|POST) /v1")
SERVICE = "http://127.0.0.1:9"
LAPTOP = "the NVIDIA driver (libcuda.so.1) is not installed"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_folders(tmp_path, monkeypatch)


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without an NVIDIA driver, whatever this one has."""
    real = ctypes.CDLL

    def no_driver(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "libcuda.so.1":
            raise OSError("libcuda.so.1: cannot open shared object file")
        return real(name, *arguments, **options)

    monkeypatch.setattr(ctypes, "CDLL", no_driver)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setattr(native, "cuda_architectures", lambda: ())
    detect._detected.cache_clear()
    yield
    detect._detected.cache_clear()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.main(list(arguments))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err
    return code, err.removeprefix("error: ").strip()


def raised(call: Callable[[], object]) -> str:
    with pytest.raises(TirgemmError) as caught:
        call()
    words = str(caught.value)
    assert not _FOREIGN.search(words), words
    return words


# -- a machine without a GPU -------------------------------------------------------------------------


@pytest.mark.usefixtures("laptop")
def test_a_laptop_is_told_that_it_has_no_gpu_and_not_to_install_anything(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    cpu = device("cpu").model
    wanted = f"device cuda is not on this machine: {LAPTOP}; what it has is cpu ({cpu})"
    assert said(capsys, "tune", "64x64x64", "--device", "cuda") == (1, wanted)
    assert raised(lambda: tirgemm.tune("4096x4096x4096:f16:nt", device="cuda")) == wanted
    assert cli.main(["devices"]) == 0
    assert f"no GPU: {LAPTOP}" in capsys.readouterr().out
    Trust.default().add(SIGNER.public)
    gpu = home / "gpu.tirgemm"
    gpu.write_bytes(
        certified(Gemm.parse("64x64x64:f16:nt"), device=device("sm_90a"), binary=fake_cubin(), binary_format="cubin")
    )
    code, words = said(capsys, "call", str(gpu))
    assert (code, words) == (1, f"the kernel is for a GPU, sm_90a (NVIDIA H200), and this machine shows none: {LAPTOP}")
    assert cli.main(["verify", str(gpu)]) == 0
    assert f"skipped  {words[:40]}" in capsys.readouterr().out
    code, words = said(capsys, "explain", "64x64x64")
    assert (code, "this machine has no GPU: name one with --device, such as sm_90a" in words) == (2, True)
    code, words = said(capsys, "ladder", "64", "64", "64")
    assert (code, "--dry-run shows it without" in words) == (2, True)


def test_a_cpu_kernel_is_not_explained_and_it_is_said_what_there_is_instead(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    stored = made(home / "data" / "tirgemm")
    code, words = said(capsys, "explain", "--kernel", stored.fast.id)
    assert code == 2
    assert f"`tirgemm candidates {GEMM}` has what it was chosen from, `tirgemm show {stored.fast.id} --asm`" in words


def test_bindings_are_asked_for_only_where_there_is_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setattr(detect_cuda, "_driver_is_installed", lambda: True)
    with pytest.raises(DeviceUnavailable, match=r"cuda-bindings is not installed: pip install 'tirgemm\[cuda\]'"):
        detect_cuda._driver()
    monkeypatch.setattr(detect_cuda, "_driver_is_installed", lambda: False)
    with pytest.raises(DeviceUnavailable) as caught:
        detect_cuda._driver()
    assert str(caught.value) == LAPTOP


def test_arrays_are_asked_for_only_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "cuda_architectures", lambda: (90,))
    for name in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)
    Trust.default().add(SIGNER.public)
    gpu = home / "gpu.tirgemm"
    gpu.write_bytes(
        packed(Gemm.parse("64x64x64:f16:nt"), device=device("sm_90a"), binary=fake_cubin(), binary_format="cubin")
    )
    code, words = said(capsys, "call", str(gpu))
    assert (code, "PyTorch (a build with CUDA) or CuPy, of which neither is installed" in words) == (2, True)


# -- the same mistake on the command line and in Python ----------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "call", "words"),
    [
        (
            ["tune", "64x64"],
            lambda: tirgemm.tune("64x64"),
            "gemm '64x64': '64x64' is not MxNxK with integers, or LOW..HIGHxNxK where m is a range, as in "
            "4096x4096x4096:f16:nt",
        ),
        (
            ["tune", "kernel.tirgemm"],
            lambda: tirgemm.tune("kernel.tirgemm"),
            "gemm 'kernel.tirgemm': 'kernel.tirgemm' is not MxNxK with integers, or LOW..HIGHxNxK where m is a range, "
            "as in 4096x4096x4096:f16:nt; the problem of a kernel file is what `tirgemm show` names",
        ),
        (
            ["tune", "64x64x64:f16:nt:gelu"],
            lambda: tirgemm.tune("64x64x64:f16:nt:gelu"),
            "gemm '64x64x64:f16:nt:gelu': 'gelu' is not a field; write act=gelu",
        ),
        (
            ["tune", "64x64x64:f17"],
            lambda: tirgemm.tune("64x64x64:f17"),
            "gemm field dtype is 'f17'; it must be one of f16, bf16, f32",
        ),
        (
            ["tune", "64x64x64", "--family", "smt"],
            lambda: tirgemm.tune("64x64x64", families=["smt"]),
            "family 'smt' is unknown; families are x86, simt, mma, wmma, wgmma",
        ),
        (
            ["tune", "64x64x64", "--device", "gpu"],
            lambda: tirgemm.tune("64x64x64", device="gpu"),
            "device 'gpu' is unknown; devices are cpu, cuda, cuda:N, sm_80, sm_86, sm_89, sm_90a",
        ),
        (
            ["tune", "64x64x64", "--regime", "fast"],
            lambda: tirgemm.tune("64x64x64", regime=cast(Any, "fast")),
            "regime is 'fast'; it must be one of sustained, isolated",
        ),
        (
            ["tune", "64x64x64", "--trials", "-3"],
            lambda: tirgemm.tune("64x64x64", budget=tirgemm.Budget(-3, 1)),
            "budget trials is -3; it must be an integer from 1 to 100000",
        ),
        (
            ["call", "nofile"],
            lambda: tirgemm.load("nofile"),
            "artifact nofile cannot be read: No such file or directory",
        ),
        (
            ["get", "64x64x64", "--url", "nowhere"],
            lambda: tirgemm.Client("nowhere"),
            "service address 'nowhere' is not a URL such as http://127.0.0.1:8000",
        ),
    ],
)
def test_a_mistake_is_named_with_its_value_and_the_choices(
    arguments: list[str], call: Callable[[], object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = said(capsys, *arguments)
    assert code in (1, 2)
    assert told == words
    assert raised(call) == words


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: tirgemm.tune(cast(Any, None)),
            "gemm is None; give a tirgemm.Gemm, or its text such as '4096x4096x4096:f16:nt'",
        ),
        (
            lambda: tirgemm.tune("64x64x64", budget=cast(Any, {"trials": 3})),
            "budget is {'trials': 3}; give tirgemm.Budget(trials=..., seconds=...)",
        ),
        (
            lambda: tirgemm.tune("64x64x64", families=[]),
            "families is []; name one or more families, or None for all",
        ),
        (
            lambda: tirgemm.tune("64x64x64", families=cast(Any, 5)),
            "families is 5; name one or more families, or None for all",
        ),
        (
            lambda: tirgemm.tune("64x64x64", families="smt"),
            "family 'smt' is unknown; families are x86, simt, mma, wmma, wgmma",
        ),
        (
            lambda: tirgemm.tune("64x64x64", store=cast(Any, 5)),
            "store is 5; give a Store, or None to keep nothing: the data folder is TIRGEMM_DATA's",
        ),
        (
            lambda: tirgemm.Client(SERVICE).submit(cast(Any, ["64x64x64"])),
            "gemm is ['64x64x64']; give a tirgemm.Gemm, or its text such as '4096x4096x4096:f16:nt'",
        ),
        (
            lambda: tirgemm.Client(SERVICE).submit_batch("64x64x64"),
            "gemms is '64x64x64'; give a list of problems",
        ),
        (
            lambda: tirgemm.Client(SERVICE).submit_batch(cast(Any, tirgemm.Gemm(64, 64, 64))),
            "gemms is '64x64x64:f16:nt'; give a list of problems",
        ),
        (
            lambda: tirgemm.Client(SERVICE).locked_kernel("absent", "qkv"),
            "absent: No such file or directory",
        ),
        (
            lambda: tirgemm.Client(SERVICE).kernel("64x64x64", device=cast(Any, 5)),
            "a device is a name such as cpu, cuda:0 or sm_80, not 5",
        ),
        (
            lambda: tirgemm.Client(SERVICE).kernel("64x64x64", budget=cast(Any, 5)),
            "budget is 5; give a mapping such as {'trials': 100, 'seconds': 60}",
        ),
        (
            lambda: tirgemm.Client(SERVICE).kernel("64x64x64", queue=cast(Any, 5)),
            "queue is 5; give a mapping such as {'priority': 5}",
        ),
        (
            lambda: tirgemm.Client(SERVICE, key=cast(Any, 5)),
            "key is no API key: it must be 1 to 512 visible ASCII characters, without spaces",
        ),
        (
            lambda: tirgemm.Client(SERVICE, trust=cast(Any, 5)),
            "trust is 5; give a Trust, or keys (ed25519:...)",
        ),
    ],
)
def test_an_argument_of_another_type_is_told_what_to_be(call: Callable[[], object], words: str) -> None:
    assert raised(call) == words


def test_what_is_no_artifact_is_named_by_its_file(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    (home / "notes.txt").write_text("hello")
    for command in ("call", "verify", "show"):
        code, words = said(capsys, command, "notes.txt")
        assert code == 1
        assert words.startswith("notes.txt: the file is damaged or not a .tirgemm artifact")
    assert raised(lambda: tirgemm.load("notes.txt")).startswith("notes.txt: the file is damaged")
    code, words = said(capsys, "call", "notes.txt", "--trust", "absent")
    assert (code, words) == (2, "--trust is 'absent', which is neither a key (ed25519:...) nor a file of keys")


# -- a service ---------------------------------------------------------------------------------------


class Answers(httpx.BaseTransport):
    """A service, or something else, that gives every request one answer."""

    def __init__(self, status: int, **body: Any) -> None:
        self.status, self.body = status, body

    def handle_request(self, request: Any) -> Any:
        if self.body and request.url.path == "/v1/keys":
            return httpx.Response(200, json={"keys": [{"key": SIGNER.public}]})
        content: dict[str, Any] = {"json": self.body} if self.body else {"text": "<html>"}
        return httpx.Response(self.status, **content)


def client(transport: Answers) -> tirgemm.Client:
    return tirgemm.Client("http://there", trust=SIGNER.public, transport=transport, patience=0.05)


def test_what_a_service_advises_as_json_comes_as_an_argument_or_an_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"detail": "device sm_80 is with no live worker", "code": "device_unavailable", "accepts": {"verify": False}}
    there = Answers(409, **body)
    words = raised(lambda: client(there).kernel("64x64x64", device="sm_80"))
    assert words.endswith("is with no live worker; verify=False takes a build that nobody has run")
    real = http_layer.ServiceConnection

    def session(url: str, **options: Any) -> http_layer.ServiceConnection:
        return real(url, **options | {"transport": there, "patience": 0.05})

    monkeypatch.setattr("tirgemm.client.ServiceConnection", session)
    code, told = said(capsys, "get", "64x64x64", "--device", "sm_80", "--trust", SIGNER.public)
    assert (code, told) == (
        1,
        "device sm_80 is with no live worker; --unverified takes a build that nobody has run",
    )


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ("body.budget.trials is 0; it should be greater than 0", "budget.trials is 0; it should be greater than 0"),
        ("there is no job 'x'; GET /v1/jobs lists them", "there is no job 'x'"),
        ("nothing is at /foo/v1/keys; /openapi.json lists what is", "nothing is at /foo/v1/keys"),
    ],
)
def test_requests_are_not_what_a_client_is_advised(detail: str, words: str) -> None:
    assert (
        raised(lambda: client(Answers(422, detail=detail, code="invalid_request")).meta())
        == f"http://there answered 422: {words}"
    )


def test_a_device_that_is_only_named_is_not_measured_and_a_command_says_what_builds_for_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (
        "device sm_80 is only named: it is an architecture to compile for, no device of this machine, so that "
        "nothing can be measured on it"
    )
    assert raised(lambda: tirgemm.tune("64x64x64", device="sm_80")) == words
    command = "`tirgemm get 64x64x64:f16:nt --device sm_80 --unverified`"
    for gemms in (["64x64x64"], ["64x64x64", "65x64x64"]):
        assert cli.main(["tune", *gemms, "--device", "sm_80"]) == 1
        told = capsys.readouterr().err
        assert told.endswith(f"error: {words}; {command} has a service build a kernel that nobody has run\n")


def test_where_a_key_is_missing_it_is_said_how_a_client_takes_one() -> None:
    detail = "this service takes requests with an API key, sent as one header `Authorization: Bearer KEY`"
    words = raised(lambda: client(Answers(401, detail=detail, code="key_required")).meta())
    assert words == f"http://there answered 401: {detail}: give Client a key, or set TIRGEMM_KEY"


@pytest.mark.parametrize("status", [404, 501])
def test_a_server_of_something_else_is_asked_about(status: int) -> None:
    with pytest.raises(ServiceError, match="is it a tirgemm service"):
        client(Answers(status)).meta()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--port", "99999"], "setting port (--port, TIRGEMM_PORT) is 99999; it should be less than or equal to 65535"),
        (
            ["--port", "{taken}"],
            "port {taken} of 127.0.0.1 is in use by another process; choose another by --port, or --port 0",
        ),
    ],
)
def test_a_port_that_cannot_be_is_named(options: list[str], says: str, home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "tirgemm.service.cli", "serve", "--no-worker", "--data", str(home / "data")]
        done = subprocess.run(
            [*command, *(option.format(taken=port) for option in options)],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            timeout=120,
        )
    assert done.returncode == 2
    assert says.format(taken=port) in done.stderr
