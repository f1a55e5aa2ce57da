"""The reader of the importance of knobs: computed once for each set of times, of which it keeps a hash."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.waiting import PATIENCE_S
from tirgemm.config import Config
from tirgemm.service.views.spaces import importance
from tirgemm.service.views.spaces.importance import ImportanceReader
from tirgemm.tuning.search.knob_importance import knob_importance


def times(us: float) -> dict[Config, float]:
    return {Config("x86", (("tile_m", size),)): us + size for size in range(1, 60)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The shortest of the times of each importance that is computed."""
    shortest: list[float] = []

    def counted(given: dict[Config, float]) -> object:
        shortest.append(min(given.values()))
        return knob_importance(given)

    monkeypatch.setattr(importance, "knob_importance", counted)
    return shortest


def test_the_importance_is_computed_once_for_each_set_of_times(asked: list[float]) -> None:
    reader = ImportanceReader()
    first = reader.read(times(10.0))
    assert first == reader.read(times(10.0))
    reader.read(times(20.0))
    other = dict(reversed(times(20.0).items()))
    other[Config("x86", (("tile_m", 1),))] = 21.5
    reader.read(other)
    assert asked == [11.0, 21.0, 21.5]


@pytest.mark.parametrize("fails", [False, True])
def test_all_who_ask_meanwhile_wait_for_one_result(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, made = threading.Event(), threading.Event(), []

    def held(given: dict[Config, float]) -> object:
        if min(given.values()) > 11.0:
            return knob_importance(given)
        begun.set()
        assert go.wait(PATIENCE_S)
        made.append(1)
        if fails and len(made) == 1:
            raise ValueError("it cannot be computed")
        return knob_importance(given)

    monkeypatch.setattr(importance, "knob_importance", held)
    reader = ImportanceReader()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(reader.read, times(10.0))
        assert begun.wait(PATIENCE_S)
        others = [pool.submit(reader.read, times(10.0)) for _ in range(3)]
        assert reader.read(times(20.0)).shares, "another problem waits for nobody"
        go.set()
        errors = [future.exception(timeout=PATIENCE_S) for future in (first, *others)]
    if fails:
        assert isinstance(errors[0], ValueError)
        assert reader.read(times(10.0)).shares, "one that came behind the failure computes it anew"
    else:
        assert errors == [None] * 4
        assert len({id(future.result()) for future in (first, *others)}) == 1
        assert len(made) == 1


def test_what_was_asked_for_last_is_kept(asked: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "KEPT", 2)
    reader = ImportanceReader()
    for us in (1.0, 2.0, 1.0, 3.0, 1.0, 2.0):
        reader.read(times(us))
    assert asked == [2.0, 3.0, 4.0, 3.0]


def test_the_times_are_not_kept() -> None:
    reader, given = ImportanceReader(), times(10.0)
    reader.read(given)
    config = next(iter(given))
    assert not [each for each in gc.get_referrers(config) if isinstance(each, tuple)]
