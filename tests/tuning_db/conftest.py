"""Data folders to be damaged: one that stays whole, and a copy of it for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.contract.storage.databases import DEVICE, GEMM, candidate, config, kernel
from tests.tuning_db.damaged_databases import CANDIDATES
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore
from tirgemm.tuning_db.access.api_keys import KeyTable


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with candidates on many pages, two kernels, a queued job and an API key."""
    # The first new database of a test process is migrated, others are made as that one turned out (``conftest``).
    Database.embedded(tmp_path_factory.mktemp("first")).close()
    folder = tmp_path_factory.mktemp("whole")
    with Database.embedded(folder) as database:
        store = SqlStore(database)
        for number in range(1, CANDIDATES + 1):
            store.add_candidate(candidate(number, config=config(number), message=f"<candidate {number}>"))
        for _ in range(2):
            store.put_kernel(kernel(artifact_sha256=store.put_blob(b"artifact"), artifact_bytes=8))
        JobQueue(database).submit(JobRequest(GEMM, DEVICE))
        KeyTable(database).create("a team", "read")
    return folder


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A copy of a data folder."""
    return Path(shutil.copytree(whole, tmp_path / "data"))
