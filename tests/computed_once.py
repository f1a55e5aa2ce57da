"""``computed_once``: a value that takes seconds, computed by one process of a test run and read by the others."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# The variable that names the folder of a run; conftest sets it.
SHARED = "PYTEST_SHARED_FOLDER"
_Value = TypeVar("_Value")


def computed_once(name: str, compute: Callable[[], _Value]) -> _Value:
    """What ``compute`` gives where it is called first; meanwhile the others wait. The value must be one to pickle."""
    folder = Path(os.environ[SHARED])
    file = folder / f"{name}.pickle"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            data = pickle.dumps(compute())
            file.write_bytes(data)
        value: _Value = pickle.loads(file.read_bytes())
    return value
