"""Environment variables but for those that libraries set for good."""

from __future__ import annotations

import os

# By pytest, by PyTorch as it compiles, by Intel's OpenMP as a library within a test loads it (transformers Numba, say).
_SET_BY_LIBRARIES = ("PYTEST_CURRENT_TEST", "TORCH", "_TORCH", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def own_variables() -> dict[str, str]:
    """The variables that only a test may have changed."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_SET_BY_LIBRARIES)}
