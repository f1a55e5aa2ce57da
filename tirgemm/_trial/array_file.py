"""Operands that users have as ``.npy`` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tirgemm.artifact.regular_file import open_regular
from tirgemm.errors import InvalidRequest


def read_array(path: Path) -> Any:
    """The array of numbers in a ``.npy`` file. Raises InvalidRequest where it is none, OSError where it cannot be
    read."""
    try:
        with open_regular(path) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError, TypeError, OverflowError, MemoryError) as error:  # of a damaged header
        raise InvalidRequest(f"{path} is not a .npy array of numbers, or damaged; numpy.save writes them") from error
