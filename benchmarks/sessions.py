"""Programs under a vendor tool, each in a process session of its own that can be ended at once."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


def started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """The program, begun; stdout and stderr together are its output, as text."""
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )


def killed(process: subprocess.Popen[str]) -> str:
    """End the whole session without mercy; what it had printed."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]
