"""Fixtures of the pages' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.pages.browser import Browser
from tests.service.support import Service


@pytest.fixture
def browser(service: Service) -> Iterator[Browser]:
    """An HTTP client of the test's service that keeps cookies, as a browser does."""
    with Browser(service.url) as actual:
        yield actual
