"""The command line run in this process, in folders of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tirgemm.service import cli

Run = Callable[..., tuple[int, str, str]]
"""Runs a command: its exit code, and what it wrote to stdout and stderr."""


def own_folders(folder: Path, monkeypatch: pytest.MonkeyPatch, columns: int = 200) -> Path:
    """``folder`` as the working folder and as the home of configuration, cache and data; output is ``columns`` wide."""
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(folder)
    return folder


def runner(capsys: pytest.CaptureFixture[str], *command: str) -> Run:
    """Runs what is behind ``command``."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([*command, *(str(argument) for argument in arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call
