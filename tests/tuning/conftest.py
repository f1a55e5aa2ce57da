"""Fixtures of the tuner's tests."""

from __future__ import annotations

import pytest

from tirgemm.tuning.search import search


@pytest.fixture
def all_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of small spaces score all points, which takes a tenth of a round of evolution: for tests of what is done
    with proposals, whatever they are.
    """
    monkeypatch.setattr(search, "ALL_SCORED", search.ENUMERATED)
