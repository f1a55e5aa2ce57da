"""Fixtures of the tests of ``accelerate``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.torch.restored_table import restored_table


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    """A table that is as it was once the test is over."""
    with restored_table() as kept:
        yield kept
