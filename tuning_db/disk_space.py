"""``is_full``: free disk space of a folder, compared with what SQLite and artifacts need."""

from __future__ import annotations

import os
from pathlib import Path

# What SQLite's log and some artifacts need to be written.
LEAST_FREE_BYTES = 4 << 20


def is_full(folder: Path) -> bool:
    """Whether less than LEAST_FREE_BYTES are free for this user on the disk of a folder; false where it does not
    say."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_blocks > 0 and disk.f_bavail * disk.f_frsize < LEAST_FREE_BYTES
