"""Files at paths that users name, as they are written."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tirgemm.artifact.regular_file import write_named


def test_of_two_writers_of_one_path_each_writes_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "kernel", Path.replace

    def replace(draft: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", real)
        write_named(path, b"another thread's")
        assert path.read_bytes() == b"another thread's"
        return real(draft, target)

    monkeypatch.setattr(Path, "replace", replace)
    write_named(path, b"mine")
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    file, link = tmp_path / "v1", tmp_path / ("k" * 255)
    file.write_bytes(b"old")
    file.chmod(0o600)
    link.symlink_to("v1")
    write_named(link, b"new")
    assert (link.is_symlink(), file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (True, b"new", 0o600)
    write_named(tmp_path / ("n" * 255), b"new")


def test_what_output_was_redirected_to_is_written_to_and_keeps_what_it_had(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"before ")
    with log.open("ab", buffering=0) as stream:
        write_named(Path(f"/dev/fd/{stream.fileno()}"), b"the file ")
        stream.write(b"after")
    assert log.read_bytes() == b"before the file after"
