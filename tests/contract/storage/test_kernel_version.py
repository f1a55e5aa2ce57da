"""The version of the stored kernels on every database: raised by each change of them, and by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.storage.databases import OTHER_GEMM, candidate, kernel
from tirgemm.errors import KernelPinned
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.answers.kernel_version import read_version
from tirgemm.tuning_db.transfer import merge
from tirgemm.tuning_db.upkeep.pins import set_pinned


@pytest.fixture(params=["sqlite_database", "postgres_database"])
def database(request: pytest.FixtureRequest) -> Database:
    opened: Database = request.getfixturevalue(request.param)
    return opened


def test_each_change_of_kernels_raises_the_version(database: Database, tmp_path: Path) -> None:
    store, told = SqlStore(database), list[None]()
    database.on_kernels_changed = lambda: told.append(None)

    def versions() -> tuple[int, int]:
        with database.read() as connection:
            return read_version(connection), len(told)

    assert versions() == (0, 0)
    record = store.put_kernel(kernel())
    assert versions() == (1, 1)
    store.add_candidate(candidate(1))
    set_pinned(database, "nobody", pinned=True)
    assert not store.delete_kernel("nobody")
    assert versions() == (1, 1), "no kernel was changed"
    set_pinned(database, record.id, pinned=True)
    assert versions() == (2, 2)
    with pytest.raises(KernelPinned):
        store.delete_kernel(record.id)
    set_pinned(database, record.id, pinned=False)
    assert versions() == (3, 3)
    assert store.delete_kernel(record.id)
    assert versions() == (4, 4)
    with Database.embedded(tmp_path / "other") as other:
        elsewhere = SqlStore(other)
        for gemm in (candidate(1).gemm, OTHER_GEMM):
            sha256 = elsewhere.put_blob(str(gemm).encode())
            elsewhere.put_kernel(kernel(gemm=gemm, artifact_sha256=sha256))
        assert merge(database, other).kernels == 2
        assert versions() == (5, 5)
        merge(database, other)
        assert versions() == (5, 5), "what is there already changes nothing"
