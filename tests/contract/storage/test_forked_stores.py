"""A store that is open as its process is forked."""

from __future__ import annotations

import pytest

from tests.contract.storage.databases import DEVICE, GEMM, candidate, kernel, key
from tests.forked_child import in_forked_child
from tirgemm.tuning_db import Database, SqlStore


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("database", ["sqlite_database", "postgres_database"])
def test_parent_and_forked_process_go_on_with_an_open_store(database: str, request: pytest.FixtureRequest) -> None:
    opened: Database = request.getfixturevalue(database)
    store = SqlStore(opened)
    store.add_candidate(candidate(1))

    def child() -> bool:
        store.add_candidate(candidate(2))
        store.put_kernel(kernel(artifact_sha256=store.put_blob(b"artifact"), artifact_bytes=8))
        opened.close()
        return store.candidate(key(1)) is not None

    assert in_forked_child(child)
    assert store.candidate(key(2)) is not None
    record = store.kernel(GEMM, DEVICE.key, "sustained")
    assert record is not None
    assert store.get_blob(record.artifact_sha256) == b"artifact"
    store.add_candidate(candidate(3))
