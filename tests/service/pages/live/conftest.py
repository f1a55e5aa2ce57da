"""Fixtures of the tests of live pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.support import Service, queueing


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with queueing(tmp_path) as actual:
        yield actual
