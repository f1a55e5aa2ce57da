"""Fixtures of the service's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.support import Service, serving


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with no worker; ``service.worker()`` starts one."""
    with serving(tmp_path) as actual:
        yield actual
