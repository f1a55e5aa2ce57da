"""Run a command in a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.waiting import PATIENCE_S


def on_terminal(command: Sequence[str], columns: int, environment: Mapping[str, str], cwd: Path) -> tuple[int, str]:
    """The exit code, and everything that the terminal was sent, of stdout and stderr."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=dict(environment), cwd=cwd)
    os.close(slave)
    seen = b""
    while True:
        try:
            data = os.read(master, 1 << 16)
        except OSError:  # Linux says EIO where the other end is closed.
            break
        if not data:
            break
        seen += data
    os.close(master)
    return process.wait(PATIENCE_S), seen.decode(errors="replace").replace("\r\n", "\n")
