"""Fixtures of the tests of a service's kernels: the service, its client and the table of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.fake_service import FakeService, client_of
from tests.torch.restored_table import restored_table
from tests.torch.service_kernels.unlisted_service import GEMM, Unlisted
from tirgemm import Client
from tirgemm._client import http as http_layer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a millisecond, so that retries cost nothing."""
    monkeypatch.setattr(http_layer, "backoff", lambda _attempt: 0.001)


@pytest.fixture
def fake() -> Unlisted:
    return Unlisted(str(GEMM))


@pytest.fixture
def client(fake: FakeService, tmp_path: Path) -> Iterator[Client]:
    with client_of(fake, tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    with restored_table() as kept:
        yield kept


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tirgemm.torch.service_kernels.POLL_S", 0.001)
