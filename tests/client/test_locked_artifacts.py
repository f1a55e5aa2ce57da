"""Model files, lock files, and the artifacts that a deployment takes: exactly those, with or without the service."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.artifact_samples import SIGNER, certified, operands, packed
from tests.helpers.command_line import Run, own_folders, runner
from tests.helpers.fake_service import CPU, FakeService
from tirgemm import Client, Gemm
from tirgemm._client import http as http_layer
from tirgemm._client.lock_file import LockedKernel, LockFile, locked_of
from tirgemm._client.model_file import ModelFile
from tirgemm.artifact import Signer, Trust, read
from tirgemm.artifact.known_servers import KnownServers
from tirgemm.errors import (
    CorruptArtifact,
    InvalidGemm,
    InvalidRequest,
    MismatchedArtifact,
    NotCached,
    UntrustedArtifact,
    UnverifiedArtifact,
)
from tirgemm.timings import Timing, Timings

URL = "http://service.test"
GEMM = Gemm.parse("33x17x19:f32:nt")
MODEL = '[kernels]\nqkv = "33x17x19:f32"\n"mlp/up" = {m = 33, n = 17, k = 19, dtype = "f32"}\n'


@pytest.fixture
def fake() -> FakeService:
    service = FakeService()
    service.answer = service.ready
    return service


def client(fake: FakeService, folder: Path, **options: Any) -> Client:
    usual: dict[str, Any] = {"trust": SIGNER.public, "cache_dir": folder, "patience": 0.01}
    return Client(URL, **usual | options, transport=fake)


def locked(data: bytes, **changes: Any) -> LockFile:
    package = read(data, Trust.of(SIGNER.public))
    return LockFile({"qkv": replace(locked_of(package, "sustained", "tuned"), **changes)})


def served(fake: FakeService) -> bytes:
    return fake.blobs[fake.kernels["70ed"]["artifact"]["sha256"]]


def another() -> bytes:
    """Another artifact for the same problem."""
    return certified(GEMM, signer=SIGNER, timings=Timings({"sustained": Timing(99.0)}))


# -- model files -------------------------------------------------------------------------------------


def test_a_model_file_names_problems(tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text(f'device = "cpu"\nregime = "isolated"\n{MODEL}')
    model = ModelFile.read(file)
    assert (model.kernels, model.device, model.regime) == ({"qkv": GEMM, "mlp/up": GEMM}, "cpu", "isolated")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kernels = 3", "lists no problem"),
        ("[kernels]", "lists no problem"),
        ("[kernels]\na = ", "is not TOML"),
        ('effort = "quick"\n' + MODEL, "'effort' is no member; there are device, regime, kernels"),
        ("device = 3\n" + MODEL, "device is 3"),
        ('regime = "cold"\n' + MODEL, "regime"),
        ('[kernels]\n"../x" = "7x5x3"', "the name '../x' is refused"),
        ('[kernels]\nx = "0x5x3"', "x: gemm field m is 0"),
        ("[kernels]\nx = 3", "x: "),
        ('[kernels]\n7x5x3 = "9x5x3"', "the name '7x5x3' is refused"),
        ("x = " + "[" * 9999, "is not TOML"),
    ],
)
def test_what_is_no_model_file_is_refused_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "model.toml"
    file.write_text(text)
    with pytest.raises((InvalidRequest, InvalidGemm)) as refused:
        ModelFile.read(file)
    assert words in str(refused.value)


# -- lock files --------------------------------------------------------------------------------------


def test_a_lock_file_comes_back_as_it_was_written(fake: FakeService, tmp_path: Path) -> None:
    lock = locked(served(fake))
    lock.write(tmp_path / "a.lock")
    assert LockFile.read(tmp_path / "a.lock") == lock
    LockFile.read(tmp_path / "a.lock").write(tmp_path / "b.lock")
    assert (tmp_path / "a.lock").read_bytes() == (tmp_path / "b.lock").read_bytes()
    kernel = lock.kernels["qkv"]
    assert (kernel.gemm, kernel.device, kernel.role) == (str(GEMM), CPU.key, "tuned")
    for device in (None, "cpu", CPU.key, CPU.arch):
        assert lock.named("33x17x19:f32", device) is kernel
    two = LockFile({**lock.kernels, "other": replace(kernel, regime="isolated", artifact_sha256="0" * 64)})
    assert two.named("33x17x19:f32", None, "isolated").regime == "isolated"
    for text, device in (("kv", None), ("7x5x3", None), ("33x17x19:f32", "cuda")):
        with pytest.raises(InvalidRequest, match=r"has no kernel for .*; it has qkv"):
            lock.named(text, device)
    assert two.named("33x17x19:f32").regime == "sustained"
    with pytest.raises(InvalidRequest, match="has no kernel"):
        lock.named("33x17x19:f32", None, "isolated")
    with pytest.raises(InvalidRequest, match="has 'qkv' in the regime sustained, not isolated"):
        lock.named("qkv", None, "isolated")
    with pytest.raises(InvalidRequest, match=r"has 'qkv' for the device cpu:.*, not cuda"):
        lock.named("qkv", "cuda")


def test_a_lock_file_is_readable_by_others_and_a_device_is_written_to(fake: FakeService, tmp_path: Path) -> None:
    lock = locked(served(fake))
    lock.write(tmp_path / "a.lock")
    assert stat.S_IMODE((tmp_path / "a.lock").stat().st_mode) & 0o044
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    lock.write(tmp_path / "fifo")
    assert os.read(reader, 1 << 16) == (tmp_path / "a.lock").read_bytes()
    os.close(reader)


FIELDS = "gemm, device, regime, role, kernel_sha256, artifact_sha256, artifact_bytes"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "its format is 2; this tirgemm reads 1"),
        ({"format": ...}, "it lacks format"),
        ({"format": ..., "kernels": ...}, "it lacks format, kernels"),
        ({"kernels": []}, "its member kernels is []; it must be an object"),
        ({"kernels": {"x": {}}}, f"its entry 'x' lacks {FIELDS}"),
        ({"kernels": {"x": [1]}}, "its entry 'x' is [1]; it must be an object"),
        ({"role": ..., "gemm": ...}, "its entry 'qkv' lacks gemm, role"),
        ({"artifact_sha256": "../../etc/passwd"}, "artifact_sha256 is '../../etc/passwd', which is no SHA-256"),
        ({"artifact_sha256": 7}, "its entry 'qkv': artifact_sha256 is 7; it must be a text"),
        ({"kernel_sha256": "A" * 64}, "which is no SHA-256"),
        ({"regime": "cold"}, "its entry 'qkv': regime is 'cold'"),
        ({"gemm": "33x17x19:f32"}, "gemm is '33x17x19:f32'; it is written 33x17x19:f32:nt"),
        ({"gemm": "0x17x19"}, "its entry 'qkv': gemm field m is 0"),
        ({"artifact_bytes": "many"}, "its entry 'qkv': artifact_bytes is 'many'; it must be an integer"),
        ({"artifact_bytes": True}, "artifact_bytes is True; it must be an integer"),
        ({"device": 5}, "its entry 'qkv': device is 5; it must be a text"),
        ({"role": []}, "its entry 'qkv': role is []; it must be a text"),
        ({"more": 1}, f"its entry 'qkv' has 'more', which is no member; there are {FIELDS}"),
    ],
)
def test_what_is_no_lock_file_is_refused_with_the_entry_and_what_is_wrong(
    fake: FakeService, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    file = tmp_path / "x.lock"
    locked(served(fake)).write(file)
    document = json.loads(file.read_text())
    place = document if change.keys() & {"format", "kernels"} else document["kernels"]["qkv"]
    place |= change
    for name in [name for name, value in change.items() if value is ...]:
        del place[name]
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidRequest, match="is no lock file") as refused:
        LockFile.read(file)
    assert str(refused.value).startswith(f"{file} is no lock file: ")
    assert words in str(refused.value)


def test_a_text_that_is_no_lock_file_is_refused_with_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "x.lock"
    for data, words in (
        (b"[" * 99_999, "the JSON is nested too deeply"),
        (b'{"format": ' + b"1" * 5000 + b"}", "an integer of 5000 digits is in the JSON; the limit is 20"),
        (b"\xff", "can't decode byte 0xff"),
        (b"{", "line 1 column 2"),
        (b"7", "it is 7; it must be an object"),
    ):
        file.write_bytes(data)
        with pytest.raises(InvalidRequest, match="is no lock file: ") as refused:
            LockFile.read(file)
        assert words in str(refused.value)


# -- what is taken -----------------------------------------------------------------------------------


def test_the_locked_kernel_comes_from_the_service_then_from_the_cache(fake: FakeService, tmp_path: Path) -> None:
    lock = locked(served(fake))
    kernel = client(fake, tmp_path).locked_kernel(lock, "qkv")
    tensors, product = operands(GEMM)
    assert np.array_equal(kernel(tensors["a"], tensors["b"]), product)
    path = f"/v1/artifacts/{lock.kernels['qkv'].artifact_sha256}"
    assert {request.url.path for request in fake.requests} == {path, "/v1/revocations"}
    fake.requests.clear()
    client(fake, tmp_path, offline=True).locked_kernel(lock, str(GEMM))
    assert fake.requests == []


def test_what_is_served_today_is_another_thing(fake: FakeService, tmp_path: Path) -> None:
    """What was locked is asked for by its hash, and where it is gone nothing takes its place."""
    lock = locked(another())
    with pytest.raises(Exception, match="nothing is at /v1/artifacts") as gone:
        client(fake, tmp_path).locked_kernel(lock, "qkv")
    assert getattr(gone.value, "http_status", None) == 404
    assert fake.sent("POST", "/v1/kernels") == []
    with pytest.raises(NotCached, match="which is locked, is not in the cache"):
        client(fake, tmp_path, offline=True).locked_kernel(lock, "qkv")


def test_a_local_folder_needs_neither_service_nor_cache(fake: FakeService, tmp_path: Path) -> None:
    data = served(fake)
    lock = locked(data)
    folder = tmp_path / "artifacts"
    folder.mkdir()
    (folder / "any name.tirgemm").write_bytes(data)
    (folder / "another.tirgemm").write_bytes(b"x" * len(data))
    offline = client(fake, tmp_path / "cache", offline=True)
    assert offline.locked_package(lock, "qkv", folder=folder) == data
    assert fake.requests == []
    with pytest.raises(InvalidRequest, match="is no folder"):
        offline.locked_package(lock, "qkv", folder=tmp_path / "nowhere")
    (folder / "any name.tirgemm").unlink()
    fresh = client(fake, tmp_path / "empty", offline=True)
    with pytest.raises(NotCached, match=r"neither in .* nor in the cache"):
        fresh.locked_package(lock, "qkv", folder=folder)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"gemm": str(Gemm(7, 5, 3))}, MismatchedArtifact),
        ({"device": "cuda:sm_90a:nvidia-h200:132"}, MismatchedArtifact),
        ({"regime": "isolated"}, MismatchedArtifact),
        ({"role": "fallback"}, MismatchedArtifact),
        ({"kernel_sha256": "0" * 64}, MismatchedArtifact),
    ],
)
def test_a_lock_that_says_another_thing_than_the_signature_is_refused(
    fake: FakeService, tmp_path: Path, changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(changes))):
        client(fake, tmp_path).locked_kernel(locked(served(fake), **changes), "qkv")
    assert not list(tmp_path.glob("*.tirgemm")), "what was refused is not kept"


def test_neither_other_bytes_nor_another_signer_nor_a_lack_of_evidence_pass(fake: FakeService, tmp_path: Path) -> None:
    sha256 = locked(served(fake)).kernels["qkv"].artifact_sha256
    lock = locked(served(fake))
    other = locked(fake.blobs[fake.kernels["fa11"]["artifact"]["sha256"]])
    fake.blobs[sha256] = another()
    with pytest.raises(CorruptArtifact, match="damaged or swapped"):
        client(fake, tmp_path).locked_kernel(lock, "qkv")
    with pytest.raises(UntrustedArtifact):
        client(fake, tmp_path, trust=Signer.generate().public).locked_kernel(other, "qkv")
    bare = packed(GEMM, regime="sustained", role="tuned")
    fake.blobs[read(bare, Trust.of(SIGNER.public)).sha256] = bare
    with pytest.raises(UnverifiedArtifact, match="no certificate"):
        client(fake, tmp_path).locked_kernel(locked(bare), "qkv")
    assert client(fake, tmp_path).locked_kernel(locked(bare), "qkv", verify=False).gemm == GEMM


# -- the commands ------------------------------------------------------------------------------------


@pytest.fixture
def run(fake: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    own_folders(tmp_path, monkeypatch)
    Trust.of_user().add(SIGNER.public, URL)
    real = http_layer.ServiceConnection

    def connect(url: str, **options: Any) -> http_layer.ServiceConnection:
        return real(url, **options | {"transport": fake, "patience": 0.05})

    monkeypatch.setattr("tirgemm.client.ServiceConnection", connect)
    return runner(capsys)


def test_the_commands_lock_a_model_and_get_what_is_locked(run: Run, fake: FakeService, tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text(f'device = "{CPU.key}"\n{MODEL}')
    code, out, err = run("lock", "model.toml", "--url", URL, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["file"] == "model.toml.lock"
    lock = LockFile.read(tmp_path / "model.toml.lock")
    assert set(lock.kernels) == {"qkv", "mlp/up"}
    assert isinstance(lock.kernels["qkv"], LockedKernel)
    assert fake.sent("POST", "/v1/batches")[0].content.count(b"33x17x19") == 2
    fake.requests.clear()
    code, out, err = run("get", "mlp/up", "--locked", "model.toml.lock", "--offline", "--url", URL)
    assert (code, err) == (0, "")
    assert (tmp_path / "mlp-up.tirgemm").read_bytes() == served(fake)
    assert fake.requests == []
    code, _, err = run("get", "qkv", "--locked", "model.toml.lock", "--offline", "--regime", "isolated")
    assert (code, "in the regime sustained, not isolated" in err) == (2, True)
    code, _, err = run("get", "kv", "--locked", "model.toml.lock", "--offline")
    assert (code, "has no kernel for 'kv'" in err) == (2, True)
    for option in (["--retune"], ["--default"], ["--priority", "3"], ["--window", "22:00-06:00"]):
        code, _, err = run("get", "qkv", "--locked", "model.toml.lock", *option)
        assert (code, "leave out what concerns a search" in err) == (2, True)
    several = ("--wait", "0", "--default", "--trials", "30", "--seed", "0", "--other-devices", "--priority", "-3")
    code, _, err = run("get", "qkv", "--locked", "model.toml.lock", *several)
    named = "--wait 0, --default as no tuning is waited for; --trials 30, --seed 0, --other-devices as nothing is"
    assert (code, f"{named} searched for; --priority -3 as no job is queued" in err) == (2, True)
    code, _, err = run("get", "7x5x3", "--from", ".")
    assert (code, "--locked" in err) == (2, True)


def test_a_key_that_was_accepted_for_another_address_is_told_with_that(
    run: Run, fake: FakeService, tmp_path: Path
) -> None:
    Trust.of_user().remove(SIGNER.public)
    KnownServers.default().accept(URL, [SIGNER.public])
    locked(served(fake)).write(tmp_path / "m.lock")
    (tmp_path / "a.tirgemm").write_bytes(served(fake))
    code, _, err = run("get", "qkv", "--locked", "m.lock", "--from", ".", "--offline")
    assert (code, f"accepted for {URL} alone; ask as a client of that address: --url {URL}" in err) == (1, True), err
    assert run("get", "qkv", "--locked", "m.lock", "--from", ".", "--offline", "--url", URL)[0] == 0


def test_a_lock_file_that_cannot_be_written_is_refused_before_the_service_is_asked(
    run: Run, fake: FakeService, tmp_path: Path
) -> None:
    (tmp_path / "model.toml").write_text(f'device = "{CPU.key}"\n{MODEL}')
    (tmp_path / "model.toml.lock").mkdir()
    for options, words in (
        (["-o", "model.toml.lock"], "--output is model.toml.lock, which is a folder"),
        (["-o", "./model.toml"], "--output is model.toml, which is the model file itself"),
        (["-o", "away/model.lock"], "--output is away/model.lock, but there is no folder away"),
        ([], "the lock file is model.toml.lock, which is a folder"),
    ):
        code, _, err = run("lock", "model.toml", "--url", URL, *options)
        assert (code, words in err) == (2, True), err
    assert fake.requests == []
