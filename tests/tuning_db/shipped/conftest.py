"""Fixtures of the tests of shipped records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.storage.databases import DEVICE, GEMM
from tests.helpers.shipped_files import measured_on, ship
from tests.tuning_db.shipped.shipped_times import times
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.shipped.layered_store import LayeredStore


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.embedded(tmp_path / "data") as actual:
        yield actual


@pytest.fixture
def store(database: Database, tmp_path: Path) -> LayeredStore:
    """On a device whose class, driver and TVM are those of three shipped candidates."""
    layered = LayeredStore(database, ship(tmp_path / "shipped", DEVICE, measured_on(DEVICE, GEMM, times(1, 2, 3))))
    layered.put_device(DEVICE)
    return layered
