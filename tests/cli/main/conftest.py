"""Fixtures of the tests of ``tirgemm``'s commands: folders of their own, a trusted key, and a service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_samples import SIGNER
from tests.helpers.command_line import own_folders
from tests.helpers.fake_service import FakeService
from tirgemm._client import http as http_layer
from tirgemm.artifact import Trust


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own: trust file, cache, data folder and working folder."""
    return own_folders(tmp_path, monkeypatch)


@pytest.fixture
def trusted(home: Path) -> None:
    assert Trust.default().path == home / "config" / "tirgemm" / "trusted_keys"
    Trust.default().add(SIGNER.public)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    """The service that ``get`` reaches, whatever the address."""
    service = FakeService()
    real = http_layer.ServiceConnection

    def session(url: str, **options: Any) -> http_layer.ServiceConnection:
        return real(url, **options | {"transport": service, "patience": 0.05})

    monkeypatch.setattr("tirgemm.client.ServiceConnection", session)
    return service
