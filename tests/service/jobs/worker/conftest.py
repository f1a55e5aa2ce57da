"""Fixtures of the tests of workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.support import ScriptedEngine
from tirgemm.service.service_database import open_database
from tirgemm.service.settings import Settings
from tirgemm.tuning_db import Database, SqlStore


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(Settings.load(data=tmp_path)) as actual:
        yield actual


@pytest.fixture
def engine(database: Database) -> ScriptedEngine:
    return ScriptedEngine(SqlStore(database))
