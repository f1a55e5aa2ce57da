"""Fixtures of the tests in a real browser, Debian's Chromium; without one they are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.service.support import Service, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.browser.visits import Visits

# As root there is no sandbox; the others keep it from asking for anything that is not on this machine.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium here: install Debian's chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        actual = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield actual
        actual.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with no worker; ``service.worker()`` starts one."""
    with serving(tmp_path) as actual:
        yield actual


@pytest.fixture
def visits(browser: Browser, service: Service) -> Iterator[Visits]:
    """A tab at the service's address. The test fails where the browser complained of a page."""
    from tests.browser.visits import Visits

    actual = Visits.begin(browser, service.url)
    yield actual
    actual.end()
    assert not actual.complaints, "\n".join(actual.complaints)
