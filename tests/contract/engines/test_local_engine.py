"""The engine of this host's devices held to the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.engines.engine_contract import CPU, SIGNER, EngineContract
from tirgemm.service.jobs.local_fleet import LocalFleet
from tirgemm.tuning_db import SqlStore

SECOND = CPU.with_(uuid="cpu-second")


class TestLocalEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def fleet(cls, store: SqlStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
        fleet = LocalFleet(store, SIGNER, tmp_path_factory.mktemp("locks"), processes=1, served=[CPU, SECOND])
        yield fleet
        fleet.close()
