"""Fixtures of the service's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.support import Service, serving
from tirgemm.tuning_db import Database, JobQueue


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with no worker; ``service.worker()`` starts one."""
    with serving(tmp_path) as actual:
        yield actual


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An empty database in a data folder."""
    with Database.embedded(tmp_path / "data") as actual:
        yield actual


@pytest.fixture
def queue(database: Database) -> JobQueue:
    return JobQueue(database)
