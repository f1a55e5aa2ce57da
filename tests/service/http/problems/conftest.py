"""Fixtures of the tests of problem documents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.support import CPU, Service, serving


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose worker is registered but does nothing: requests here are all refused."""
    with serving(tmp_path_factory.mktemp("problems"), max_trials=50, max_seconds=60) as service:
        service.queue.register_worker("elsewhere:1:0", [CPU])
        yield service
