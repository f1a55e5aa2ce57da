"""Every Store held to the contract."""

from __future__ import annotations

import pytest

from tests.contract.storage.store_contract import StoreContract
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.records.store import Store
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.shipped.layered_store import LayeredStore


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


class TestLayeredStore(StoreContract):
    """On the package's shipped records, which are none of what the contract records."""

    @pytest.fixture
    def store(self, sqlite_database: Database) -> Store:
        return LayeredStore(sqlite_database)


class TestLayeredPostgresStore(StoreContract):
    @pytest.fixture
    def store(self, postgres_database: Database) -> Store:
        return LayeredStore(postgres_database)
