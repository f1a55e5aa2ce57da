"""Vendor tools that are installed, and programs under them, each in a process session of its own that can be ended at
once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence

from tirgemm.errors import MissingExtra
from verification.evidence import ROOT


def installed_tool(name: str, folders: Sequence[str], package: str) -> str:
    """The path of a tool on PATH or in one of ``folders``. Raises MissingExtra, which names the ``package`` to
    install."""
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
    if path is None:
        raise MissingExtra(f"{name} is neither on PATH nor in {', '.join(folders)}: install {package}")
    return path


def started(command: Sequence[str]) -> subprocess.Popen[str]:
    """The program, begun, which finds the checkout's modules; stdout and stderr together are its output, as text."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


def killed(process: subprocess.Popen[str]) -> str:
    """End the whole session without mercy; what it had printed."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]
