"""What of a race on a GPU is counted: what comes behind its warm-up, where the clock has to settle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.measure import cuda_session
from tirgemm.tuning.measure.cuda_session import CudaSession
from tirgemm.tuning.measure.requests import WARM_S, RaceOptions, Time
from tirgemm.tuning.records import YARDSTICK

KERNEL: Any = SimpleNamespace(gemm=Gemm.parse("64x64x64:f16:nt"))
Events = list[tuple[str, float]]


class Probe:
    def __init__(self, events: Events) -> None:
        self.events = events

    def forget(self) -> None:
        self.events.append(("readings dropped", 0.0))

    def summary(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Events]:
    """What a session does with a race's seconds, in order."""
    events: Events = []

    def warm_up(blocks: Any, seconds: float, _alive: Any) -> None:
        assert len(blocks) == 2
        events.append(("warm-up", seconds))

    def timed(blocks: Mapping[str, Any], options: RaceOptions, _alive: Any) -> dict[str, list[float]]:
        events.append(("counted", round(options.budget_s, 9)))
        return {name: [1.0] for name in blocks}

    for name, fake in (
        ("warm_up", warm_up),
        ("timed", timed),
        ("Probe", lambda _uuid: Probe(events)),
        ("sets_that_fit", lambda *_: 1),
        ("filled", lambda *_: SimpleNamespace(memory=SimpleNamespace(nbytes=1))),
    ):
        monkeypatch.setattr(cuda_session, name, fake)
    session: Any = object.__new__(CudaSession)
    session.device = SimpleNamespace(uuid="", fingerprint="", key="", limits=SimpleNamespace(l2_bytes=1))
    session._alive, session._gpu, session.backend, session._chosen = lambda: None, None, None, {}
    session._kernel = session._block = lambda *_: (lambda: [1.0], 1)

    def race(regime: Regime, other: str = "other", **options: Any) -> Events:
        events.clear()
        session.time(KERNEL, {other: KERNEL}, Time(RaceOptions(regime, **options)))
        return list(events)

    return race


def test_the_first_of_a_races_seconds_are_not_counted(raced: Callable[..., Events]) -> None:
    dropped = ("readings dropped", 0.0)
    assert raced("sustained", budget_s=1.0) == [("warm-up", WARM_S), dropped, ("counted", 0.85)]
    assert raced("sustained", budget_s=0.25, warm_s=2.0) == [("warm-up", 2.0), dropped, ("counted", 0.0)]
    assert raced("sustained", budget_s=0.1, warm_s=0.0) == [("warm-up", 0.0), dropped, ("counted", 0.1)]


def test_single_calls_and_a_searchs_candidates_have_all_their_seconds(raced: Callable[..., Events]) -> None:
    assert raced("isolated", budget_s=1.0) == [("counted", 1.0)]
    assert raced("sustained", other=YARDSTICK, budget_s=1.0) == [("counted", 1.0)]
