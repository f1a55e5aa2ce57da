"""The reader of the importance of knobs: computed once for each set of times, of which it keeps a hash."""

from __future__ import annotations

import gc

import pytest

from tirgemm.config import Config
from tirgemm.service.views.spaces import importance
from tirgemm.service.views.spaces.importance import ImportanceReader
from tirgemm.tuning.search.knob_importance import knob_importance


def times(us: float) -> dict[Config, float]:
    return {Config("x86", (("tile_m", size),)): us + size for size in range(1, 60)}


def test_the_importance_is_computed_once_for_each_set_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def counted(given: dict[Config, float]) -> object:
        asked.append(min(given.values()))
        return knob_importance(given)

    monkeypatch.setattr(importance, "knob_importance", counted)
    reader = ImportanceReader()
    first = reader.read(times(10.0))
    assert first == reader.read(times(10.0))
    reader.read(times(20.0))
    other = dict(reversed(times(20.0).items()))
    other[Config("x86", (("tile_m", 1),))] = 21.5
    reader.read(other)
    assert asked == [11.0, 21.0, 21.5]


def test_the_times_are_not_kept() -> None:
    reader, given = ImportanceReader(), times(10.0)
    reader.read(given)
    config = next(iter(given))
    assert not [each for each in gc.get_referrers(config) if isinstance(each, tuple)]
