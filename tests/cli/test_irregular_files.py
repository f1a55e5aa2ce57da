"""Paths of the command line that lead to a FIFO, a device or a folder: an error at once, whatever would read them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.helpers.artifact_samples import SIGNER, certified
from tests.helpers.command_line import Run, own_folders, runner
from tirgemm._client.artifact_source import artifact_in
from tirgemm._terminal.output_file import check_output
from tirgemm.artifact.manifest import sha256
from tirgemm.artifact.regular_file import open_regular, read_regular
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm

DEADLINE_SECONDS = 120


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A test that waits for a writer of a FIFO fails rather than hangs."""

    def late(_number: int, _frame: object) -> NoReturn:
        raise AssertionError("it waits for a writer of the FIFO")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    own_folders(tmp_path, monkeypatch)
    os.mkfifo(tmp_path / "fifo")
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "a.tirgemm").write_bytes(certified(Gemm.parse("33x17x19:f32:nt"), signer=SIGNER))
    (tmp_path / "backup").mkdir()
    os.mkfifo(tmp_path / "backup" / "backup.json")
    return runner(capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("verify fifo", "not a regular file"),
        ("show fifo", "neither a file nor the id"),
        ("call fifo", "not a regular file"),
        ("get 33x17x19:f32:nt --locked fifo", "not a regular file"),
        ("lock fifo", "not a regular file"),
        ("batches submit fifo", "not a regular file"),
        ("verify a.tirgemm --trust fifo", "neither a key"),
        ("call a.tirgemm --trust KEY --a fifo", "not a regular file"),
        ("db import fifo", "not a regular file"),
        ("db train --records fifo", "not a regular file"),
        ("db export fifo", "no regular file"),
        ("db restore backup", "not a regular file"),
        ("db prune --older-than 1d --locked fifo", "not a regular file"),
        ("bench fifo.json --device cpu", "not a regular file"),
    ],
)
def test_a_fifo_is_refused_at_once(call: Run, arguments: str, words: str) -> None:
    code, out, err = call(*arguments.replace("KEY", SIGNER.public).split())
    assert (code in (1, 2), out, words in " ".join(err.split())) == (True, "", True), err


def test_an_output_in_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sealed").mkdir()
    (tmp_path / "sealed" / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("sealed/file")
    (tmp_path / "dangling").symlink_to("sealed/new")
    # Root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path / "sealed")
    for path in ("sealed/file", "sealed/new", "link", "dangling"):
        words = f"which this user cannot write for want of access to {tmp_path}/sealed; name"
        with pytest.raises(InvalidRequest, match=words):
            check_output(tmp_path / path)
    check_output(tmp_path / "new")
    check_output(Path("/dev/null"))


def test_a_fifo_in_a_folder_of_artifacts_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.tirgemm")
    data = certified(Gemm.parse("33x17x19:f32:nt"), signer=SIGNER)
    (tmp_path / "1.tirgemm").write_bytes(data)
    assert artifact_in(tmp_path, sha256(data)) == data
    assert artifact_in(tmp_path, "0" * 64) is None


def test_a_link_to_a_regular_file_is_one_and_reading_stops_behind_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 4) == b"01234"
    assert read_regular(tmp_path / "link", 10) == b"0123456789"
    for path, words in ((tmp_path, "Is a directory"), (Path("/dev/zero"), "not a regular file")):
        with pytest.raises(OSError, match=words) as refused:
            open_regular(path)
        assert refused.value.filename == str(path)
