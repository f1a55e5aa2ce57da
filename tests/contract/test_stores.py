"""Every Store held to the contract."""

from __future__ import annotations

import pytest

from tests.contract.store_contract import StoreContract
from tirgemm.tuning.memory_store import MemoryStore
from tirgemm.tuning.store import Store
from tuning_db import Database, SqlStore


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, sqlite_database: Database) -> Store:
        return SqlStore(sqlite_database)


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def store(self, postgres_database: Database) -> Store:
        return SqlStore(postgres_database)
