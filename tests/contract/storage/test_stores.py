"""Every Store held to the contract."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from tests.contract.storage.databases import candidate, key
from tests.contract.storage.store_contract import StoreContract
from tirgemm.tuning.records import YARDSTICK, SampleSet
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.records.store import Store
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.models import CandidateRow
from tirgemm.tuning_db.shipped.layered_store import LayeredStore
from tirgemm.tuning_db.store import add_missing_samples


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


def test_the_time_to_sort_by_is_the_candidates_time_in_the_search(sqlite_database: Database) -> None:
    store = SqlStore(sqlite_database)

    def sorted_by() -> float | None:
        with sqlite_database.engine.connect() as connection:
            stored, column = store.candidate(key(1)), connection.execute(select(CandidateRow.search_us)).scalar_one()
        assert stored is not None
        assert stored.search_us == column
        return stored.search_us

    store.add_candidate(candidate(1, sample_sets=()))
    assert sorted_by() is None
    store.add_samples(key(1), SampleSet((3.0,)))
    assert sorted_by() == 3.0
    beside = SampleSet((30.0,), baselines={YARDSTICK: (25.0,)}, conditions={"yardstick": "x", "yardstick_us": 20.0})
    store.add_samples(key(1), beside)
    assert sorted_by() == 24.0
    store.add_samples(key(1), SampleSet((2.0,), "selection"))
    assert sorted_by() == 24.0
    stored = store.candidate(key(1))
    assert stored is not None
    store.add_candidate(stored.with_(sample_sets=(*stored.sample_sets, SampleSet((8.0,), "noise"))))
    assert sorted_by() == 8.0
    today, earlier = (
        SampleSet((us,), conditions={"at": f"{year}-11-30T00:00:00"}) for us, year in ((9, 2026), (3, 2024))
    )
    store.add_samples(key(1), today)
    assert sorted_by() == 9.0
    with sqlite_database.write() as connection:
        number = connection.execute(select(CandidateRow.id)).scalar_one()
        add_missing_samples(connection, number, (earlier,), "an import")
    assert sorted_by() == 9.0, "times of an earlier search, at other clocks, are not beside the others' own"
