"""The pip of a new environment: installed by the wheel that Python brings, which lies where ``venv`` takes it from."""

from __future__ import annotations

import ensurepip
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.helpers.scripts import script

first_pip = script("scripts/first_pip.py")


def test_the_wheel_is_the_one_that_a_new_environment_would_get() -> None:
    wheel = first_pip.bundled_pip()
    assert wheel.name.startswith(f"pip-{ensurepip.version()}-")
    done = subprocess.run([sys.executable, wheel / "pip", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"pip {ensurepip.version()} from {wheel}")


def test_a_distribution_may_keep_its_wheels_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip-1.0-py3-none-any.whl").touch()
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: str(tmp_path) if name == "WHEEL_PKG_DIR" else None)
    assert first_pip.bundled_pip() == tmp_path / "pip-1.0-py3-none-any.whl"


def test_without_a_wheel_python_installs_its_own_pip_first(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        del check
        commands.append(command[1:])
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(first_pip, "bundled_pip", lambda: None)
    monkeypatch.setattr(subprocess, "run", run)
    assert first_pip.main("pip==1.0") == 3
    assert commands[0] == ["-m", "ensurepip"]
    assert (commands[1][:2], commands[1][-1]) == (["-m", "pip"], "pip==1.0")
