"""Fixtures of the tests of workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.support import ScriptedEngine
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.data_folder import open_database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path) as actual:
        yield actual


@pytest.fixture
def engine(database: Database) -> ScriptedEngine:
    return ScriptedEngine(SqlStore(database))
