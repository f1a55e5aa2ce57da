"""Fixtures that the tests of commands share."""

from __future__ import annotations

import pytest

from tests.helpers.command_line import Run, runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)
