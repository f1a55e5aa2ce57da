"""Fixtures of the contract suites."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.storage.databases import PostgresDatabases
from tirgemm.tuning_db import Database
from verification.service.postgres_server import find_programs, running


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresDatabases]:
    with running(find_programs()) as server, closing(PostgresDatabases(server.url)) as databases:
        yield databases


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    with Database.embedded(tmp_path / "data") as database:
        yield database


@pytest.fixture
def postgres_database(postgres: PostgresDatabases, tmp_path: Path) -> Database:
    return postgres.database(tmp_path / "data")
