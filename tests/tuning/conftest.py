"""Fixtures of the tuner's tests."""

from __future__ import annotations

import time

import pytest

from tirgemm.tuning.search import evolution, search


@pytest.fixture(autouse=True)
def one_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of evolution mutates once, not four times: only tests on recorded spaces judge what a round is worth."""
    monkeypatch.setattr(evolution, "GENERATIONS", 1)


@pytest.fixture
def all_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of small spaces score all points, which takes a tenth of a round of evolution: for tests of what is done
    with proposals, whatever they are.
    """
    monkeypatch.setattr(search, "ALL_SCORED", search.ENUMERATED)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """One number, the seconds by which ``time.monotonic`` is ahead of the machine's: a test adds to it what time shall
    have passed."""
    real, seconds = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + seconds[0])
    return seconds
