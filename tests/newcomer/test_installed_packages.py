"""Packages that a newcomer's pip finds installed: those that the extras require, and none of the tests' own."""

from __future__ import annotations

from pathlib import Path

from tests.newcomer.installed_packages import link_packages


def test_what_extras_require_is_linked_and_nothing_else(tmp_path: Path) -> None:
    link_packages(("client", "cuda"), tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    assert {"tvm_ffi", "httpx", "httpcore", "numpy", "nvidia"} <= names, "required directly, and not"
    assert any(name.startswith("httpx-") for name in names), "how pip finds it installed"
    assert not names & {"tirgemm", "tvm", "sqlalchemy", "pytest", "packaging"}


def test_of_a_folder_that_packages_share_theirs_alone_is_linked(tmp_path: Path) -> None:
    link_packages(("cuda",), tmp_path)
    programs = {file.name for file in (tmp_path / "nvidia").glob("cu*/bin/*")}
    assert "nvdisasm" in programs
    assert "cuobjdump" not in programs, "a tool of the tests"
