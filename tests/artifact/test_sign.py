"""Keys and trust: who may write the files, what a line means, whose signature counts."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S
from tirgemm.artifact import Signer, Trust
from tirgemm.artifact.trust import trusted
from tirgemm.errors import CorruptArtifact, InvalidRequest, UntrustedArtifact


def test_a_key_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "signing.pem"
    first = Signer.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.load_or_create(path).public == first.public == Signer.load(path).public
    assert first.public.startswith("ed25519:")
    assert list(path.parent.iterdir()) == [path]


def _create(path: Path, queue: Any) -> None:
    queue.put(Signer.load_or_create(path).public)


def test_processes_that_create_a_key_at_once_get_the_same_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_create, args=(tmp_path / "signing.pem", queue)) for _ in range(3)]
    for process in processes:
        process.start()
    assert len({queue.get(timeout=PATIENCE_S) for _ in processes}) == 1
    for process in processes:
        process.join()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signing.pem"
    Signer.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(InvalidRequest, match=f"mode {mode:o}.*chmod 600"):
        Signer.load(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not a key", "not an unencrypted PEM key"),
        (b"", "not an unencrypted PEM key"),
        (bytes(2 << 20), "more than"),
    ],
)
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "signing.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InvalidRequest, match=words):
        Signer.load(path)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = tmp_path / "signing.pem"
    path.write_bytes(X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    with pytest.raises(InvalidRequest, match="X25519PrivateKey; it must be Ed25519"):
        Signer.load(path)
    with pytest.raises(InvalidRequest, match="does not exist"):
        Signer.load(tmp_path / "absent")


def test_only_a_trusted_keys_signature_over_these_very_bytes_passes() -> None:
    ours, stranger = Signer.generate(), Signer.generate()
    trust = Trust.of(ours.public)
    trust.check(ours.public, ours.sign(b"text"), b"text")
    with pytest.raises(CorruptArtifact):
        trust.check(ours.public, ours.sign(b"text"), b"texT")
    with pytest.raises(CorruptArtifact):
        trust.check(ours.public, stranger.sign(b"text"), b"text")
    with pytest.raises(UntrustedArtifact, match="the keys given"):
        trust.check(stranger.public, stranger.sign(b"text"), b"text")


@pytest.mark.parametrize("key", ["", "ed25519:", "ed25519:AAAA", "rsa:AAAA", "ed25519:" + "!" * 44, 5])
def test_a_text_that_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(InvalidRequest, match="not a public key"):
        Trust.of(key)


def test_a_key_has_one_text_only() -> None:
    text = Signer.generate().public
    last = text[-2]  # 32 bytes leave two bits of the last letter unused
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    with pytest.raises(InvalidRequest):
        Trust.of(text[:-2] + alphabet[alphabet.index(last) ^ 1] + "=")


def test_a_trust_file_has_a_key_a_line_and_comments(tmp_path: Path) -> None:
    one, two = Signer.generate().public, Signer.generate().public
    path = tmp_path / "trusted_keys"
    path.write_text(f"# who builds our kernels\n\n{one} the build machine\n   {two}\n  # the end")
    path.chmod(0o644)
    assert Trust.file(path).keys == {one, two}
    third = Signer.generate().public
    assert Trust.file(path).add(third, "a\nsecond line").keys == {one, two, third}
    assert Trust.file(path).keys == {one, two, third}
    before = path.read_text()
    Trust.file(path).add(third)
    assert path.read_text() == before


def test_a_line_that_holds_no_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trusted_keys"
    path.write_text("# fine\nnot-a-key\n")
    with pytest.raises(InvalidRequest, match=f"{path}, line 2"):
        Trust.file(path)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_trust_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "trusted_keys"
    path.write_text(Signer.generate().public + "\n")
    path.chmod(mode)
    with pytest.raises(UntrustedArtifact, match=f"mode {mode:o}"):
        Trust.file(path)


def test_a_trust_file_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = tmp_path / "trusted_keys"
    path.write_text(Signer.generate().public + "\n")
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(UntrustedArtifact, match="belongs to user 12345"):
        Trust.file(path)


def test_a_trust_file_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UntrustedArtifact):
        Trust.file(tmp_path)


def test_the_users_trust_file_is_in_the_configuration_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    key = Signer.generate().public
    assert Trust.default().keys == frozenset()
    with pytest.raises(UntrustedArtifact, match=f"trust file {tmp_path}"):
        Trust.default().check(key, b"", b"")
    Trust.default().add(key, "mine")
    path = tmp_path / "tirgemm" / "trusted_keys"
    assert path.read_text() == f"{key} mine\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert trusted(None).keys == {key}
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Trust.default().path == tmp_path / ".config" / "tirgemm" / "trusted_keys"
