"""Timing of a model's calls: graphs and their memory pool, the order of dropping, and turns."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.torch.work_clock import WorkClock
from tirgemm.gemm import Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("few_turns")]


def test_graphs_of_all_calls_share_a_memory_pool_and_none_is_captured_twice(
    clock: WorkClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import model_race
    from tirgemm.torch.model_race import RacedCall, RacedKernel

    linear: Any = SimpleNamespace(weight=SimpleNamespace(device=torch.device("cuda:0")))
    nothing: Any = None
    rows = Range(1, 1)
    slow, fast, other = (RacedKernel(nothing, rows, (linear,)) for _ in range(3))
    state: list[Any] = []
    captures: Counter[Any] = Counter()
    pools: set[Any] = set()

    def captured(call: Callable[[], None], pool: Any) -> Any:
        pools.add(pool)
        on = state[-1]
        captures[call, on] += 1

        def replay() -> None:
            clock.now += 1.0 if on is None else 0.5 + (slow in on) + (other not in on)

        return SimpleNamespace(replay=replay), None

    monkeypatch.setattr(model_race, "captured", captured)
    for name, function in (("device", nullcontext), ("synchronize", lambda: None)):
        monkeypatch.setattr(torch.cuda, name, function)
    handles = iter(range(9))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    timer = model_race._CallTimer(state.append, model_race.TURNS, graph=True)
    calls = [RacedCall(lambda: None, (slow, fast)), RacedCall(lambda: None, (fast, other))]
    assert model_race._dropped(calls[0], [slow, fast, other], timer).keys() == {slow}
    assert model_race._dropped(calls[1], [fast, other], timer) == {}
    assert pools == {0}
    assert set(captures.values()) == {1}
    # Of each call with all, with each and with PyTorch's; the second round of the first has all it needs.
    assert len(captures) == 4 + 4


def test_a_capture_that_fails_takes_no_pool_from_the_calls_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import model_race
    from tirgemm.torch.model_race import RacedCall

    pools: list[Any] = []

    def captured(call: Callable[[], None], pool: Any) -> Any:
        """As PyTorch, which goes on to record into the pool of a capture that did not end."""
        assert pool not in broken
        pools.append(pool)
        if call is bad.run:
            broken.add(pool)
            raise RuntimeError("operation not permitted when stream is capturing")
        return SimpleNamespace(replay=call), None

    monkeypatch.setattr(model_race, "captured", captured)
    handles = iter(range(9))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    broken: set[Any] = set()
    good, bad = RacedCall(lambda: None, ()), RacedCall(lambda: None, ())
    timer = model_race._CallTimer(lambda _state: None, model_race.TURNS, graph=True)
    timer._replay(good, None)
    with pytest.raises(RuntimeError, match="not permitted"):
        timer._replay(bad, None)
    for state in (frozenset[Any](), None, frozenset[Any]([good])):
        timer._replay(good, state)
    assert pools == [0, 0, 1, 1], "none is captured twice"


def test_of_kernels_the_one_that_is_surely_in_the_way_is_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the one whose median is above 1 for its noise alone."""
    from tirgemm.torch import model_race
    from tirgemm.torch.alternation import PairedRatio
    from tirgemm.torch.model_race import RacedCall, RacedKernel

    nothing: Any = None
    noisy, slow = (RacedKernel(nothing, Range(1, 1), ()) for _ in range(2))
    ratio = {noisy: PairedRatio(1.1, 0.8, 1.4), slow: PairedRatio(1.05, 1.04, 1.06)}
    gains = PairedRatio(0.9, 0.9, 0.9)
    monkeypatch.setattr(model_race, "_ratios", lambda _call, kept, *_: ({each: ratio[each] for each in kept}, gains))
    assert model_race._dropped(RacedCall(lambda: None, (noisy, slow)), [noisy, slow], nothing) == {slow: 1.05}


def test_ways_take_turns_with_as_many_calls_each() -> None:
    from tirgemm.torch.alternation import Turns, alternating, ended, paired_ratio

    ran: list[str] = []

    def way(name: str) -> Callable[[], None]:
        return lambda: ran.append(f"{name}, {'collected' if gc.isenabled() else 'uncollected'}")

    switched: list[str] = []
    samples = alternating({"a": way("a"), "b": way("b")}, Turns(3, 1e-5), ended, switched.append)
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3}
    assert ran.count("a, uncollected") == ran.count("b, uncollected") == len(ran) / 2
    assert [{one, two} for one, two in zip(switched[-8::2], switched[-7::2], strict=True)] == [{"a", "b"}] * 4
    assert gc.isenabled()
    ratio = paired_ratio([1.0, 2.0, 9.0, 4.0], [2.0, 2.0, 3.0, 5.0])
    assert (ratio.low, ratio.median, ratio.high) == (0.8, 0.9, 1.0)
