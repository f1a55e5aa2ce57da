"""Races of eager calls, which offer again what lost in CUDA graphs, and look closely where a host's noise is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.races.raced_models import PYTORCH_S, UP, UP_SET, K, M, N
from tests.torch.watched_kernel import watch
from tests.torch.work_clock import WorkClock

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("timed_pytorch")]


@pytest.fixture
def lost_alone(clock: WorkClock, table: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], tuple[Any, Any]]:
    """A function that accelerates a linear whose kernel lost alone, and that takes, in calls, so many times PyTorch's
    time: the layer, and the report."""
    from tirgemm.torch import accelerate, acceleration, linear_race, model_race
    from tirgemm.torch.alternation import PairedRatio, Turns

    # As on a GPU.
    monkeypatch.setattr(acceleration, "raced_in_graphs", lambda _device: True)
    monkeypatch.setattr(model_race, "TURNS", Turns(9, 1e-5, clock))
    monkeypatch.setattr(acceleration.Acceleration, "_races", lambda *_: True)
    monkeypatch.setattr(linear_race, "_ratio", lambda *_: PairedRatio(1.02, 1.01, 1.03))

    def run(share: float) -> tuple[Any, Any]:
        def ours(_: Any) -> None:
            clock.now += share * PYTORCH_S

        source = SampleSource()
        table.add(watch(source.kernel(UP, "tuned"), ours, monkeypatch))
        layer = torch.nn.Linear(K, N)
        report = accelerate(layer, rows=M, source=source, policy="tuned")
        assert "not faster than PyTorch, 1.020 of its time" in str(report)
        assert type(layer) is torch.nn.Linear
        return layer, report

    return run


def test_what_lost_alone_in_graphs_is_offered_to_eager_calls_again(
    lost_alone: Callable[[float], tuple[Any, Any]],
) -> None:
    from tirgemm.torch import Linear

    layer, report = lost_alone(0.5)
    x = torch.randn(M, K)
    wanted = layer(x)
    report.race(lambda: layer(x))
    assert type(layer) is Linear
    assert "not faster" not in str(report)
    assert report.linears[0].replaced
    assert torch.allclose(layer(x), wanted, atol=1e-4)
    report.undo()
    assert type(layer) is torch.nn.Linear


def test_what_lost_in_graphs_for_another_model_is_offered_to_eager_calls_again(
    lost_alone: Callable[[float], tuple[Any, Any]],
) -> None:
    from tirgemm.torch import Linear, accelerate

    lost_alone(0.5)
    second, x = torch.nn.Linear(K, N), torch.randn(M, K)
    other = accelerate(second, rows=M, source=SampleSource(), policy="tuned")
    assert "left alone: not faster than PyTorch" in str(other)
    assert type(second) is torch.nn.Linear
    other.race(lambda: second(x))
    assert type(second) is Linear
    assert "not faster" not in str(other)


def test_what_loses_in_the_calls_too_is_given_back_again(lost_alone: Callable[[float], tuple[Any, Any]]) -> None:
    layer, report = lost_alone(1.5)
    x = torch.randn(M, K)
    report.race(lambda: layer(x))
    assert type(layer) is torch.nn.Linear
    assert "not faster than PyTorch, 1.500 of its time" in str(report)


def test_a_layer_that_got_a_forward_of_its_own_since_is_not_taken_back(
    lost_alone: Callable[[float], tuple[Any, Any]],
) -> None:
    layer, report = lost_alone(0.5)
    x, own = torch.randn(M, K), torch.ones(M, N)
    layer.forward = lambda _: own
    report.race(lambda: layer(x))
    assert type(layer) is torch.nn.Linear
    assert not report.linears[0].replaced


def test_what_a_race_of_another_model_has_decided_stays(
    lost_alone: Callable[[float], tuple[Any, Any]], table: Any
) -> None:
    from tirgemm.torch import accelerate

    first, report = lost_alone(1.5)
    x = torch.randn(M, K)
    report.race(lambda: first(x))
    device = report._kernels[0].linear.device
    decided = table.excluded_rows(UP, device)
    assert list(decided.values()) == [pytest.approx(1.5, rel=0.01)]
    second = torch.nn.Linear(K, N)
    other = accelerate(second, rows=M, source=SampleSource(), policy="tuned")
    other.race(lambda: second(x))
    report.race(lambda: first(x))
    assert table.excluded_rows(UP, device) == decided


def test_a_race_that_fails_leaves_the_rows_that_a_race_had_left_and_no_others(
    table: Any, clock: WorkClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import accelerate, acceleration, linear_race, model_race
    from tirgemm.torch.alternation import PairedRatio, Turns

    monkeypatch.setattr(acceleration, "raced_in_graphs", lambda _device: True)
    monkeypatch.setattr(model_race, "TURNS", Turns(9, 1e-5, clock))
    monkeypatch.setattr(acceleration.Acceleration, "_races", lambda *_: True)
    ratio = {False: PairedRatio(0.5, 0.5, 0.5), True: PairedRatio(1.02, 1.01, 1.03)}
    monkeypatch.setattr(linear_race, "_ratio", lambda rows, _modules: ratio[rows == 16])
    source = SampleSource()
    kernel = source.kernel(UP_SET, "tuned")
    table.add(watch(kernel, lambda _: None, monkeypatch))
    layer = torch.nn.Linear(K, N)
    report = accelerate(layer, rows=UP_SET.m, source=source, policy="tuned")
    before = table.excluded_rows(UP_SET, kernel.device)
    assert {(rows.low, rows.high): each for rows, each in before.items()} == {(2, 16): 1.02}
    calls: list[int] = []

    def fails() -> None:
        layer(torch.randn(16, K))
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("no memory")

    wide = torch.randn(64, K)
    report.race([fails, lambda: layer(wide)])
    assert len(calls) > 3
    assert table.excluded_rows(UP_SET, kernel.device) == before


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_a_race_that_fails_leaves_what_was_left_to_pytorch(
    error: type[Exception], lost_alone: Callable[[float], tuple[Any, Any]]
) -> None:
    layer, report = lost_alone(0.5)
    x = torch.randn(M, K)
    calls: list[int] = []

    def call() -> None:
        layer(x)
        calls.append(1)
        if len(calls) > 3:
            raise error("no memory")

    if error is RuntimeError:
        report.race(call)
    else:
        with pytest.raises(ValueError, match="no memory"):
            report.race(call)
    assert len(calls) > 3, "it was offered to the calls"
    assert type(layer) is torch.nn.Linear
    assert "not faster than PyTorch, 1.020 of its time" in str(report)


def test_calls_that_are_not_faster_in_all_turns_but_one_are_looked_at_by_more_turns() -> None:
    """Of a host's noise more than one turn of nine is on the wrong side though the kernels gain 5 %."""
    from tirgemm.torch import model_race
    from tirgemm.torch.model_race import RacedCall, RacedKernel

    nothing: Any = None
    kernel = RacedKernel(nothing, nothing, ())
    taken: list[int] = []

    class Timer:
        def __init__(self, slower: int) -> None:
            self.slower = slower

        def samples(self, _call: Any, states: Any, times: int = 1) -> dict[str, list[float]]:
            """Of every nine turns so many in which ours is slower."""
            taken.append(9 * times)
            ours = ([1.1] * self.slower + [0.95] * (9 - self.slower)) * times
            return {way: ours if way == model_race.ALL else [1.0] * len(ours) for way in states}

    def lost(slower: int) -> dict[RacedKernel, float]:
        taken.clear()
        timer: Any = Timer(slower)
        return model_race._dropped(RacedCall(lambda: None, (kernel,)), [kernel], timer)

    assert (lost(1), taken) == ({}, [9])
    assert (lost(2), taken) == ({}, [9, 36])
    assert (lost(3), taken) == ({kernel: 0.95}, [9, 36]), "12 of 36 turns"
    assert (lost(5), taken) == ({kernel: 1.1}, [9]), "its median is slower"


@pytest.mark.parametrize("alone", [0.9, 1.0])
def test_where_what_is_offered_again_takes_the_gain_of_the_others_these_are_looked_at_without_it(alone: float) -> None:
    """``alone``: the time of the call with those alone, of PyTorch's."""
    from tirgemm.torch import model_race
    from tirgemm.torch.model_race import RacedCall, RacedKernel

    nothing: Any = None
    kept, again, other = (RacedKernel(nothing, nothing, (), excluded) for excluded in (None, (nothing, 1.02), None))
    first_round = True

    class Timer:
        def samples(self, _call: Any, states: Any, _times: int = 1) -> dict[str, list[float]]:
            """Without what is offered again it is faster, in seven turns of nine: too few to say so."""
            nonlocal first_round
            noisy = {frozenset({kept, other}): [0.98] * 7 + [1.02] * 2 if first_round else [alone] * 9}
            first_round = False
            return {way: noisy.get(state, [1.0] * 9) for way, state in states.items()}

    timer: Any = Timer()
    lost = model_race._dropped(RacedCall(lambda: None, (kept, again, other)), [kept, again, other], timer)
    assert lost == {again: 1.0} | ({} if alone < 1 else {kept: 1.0, other: 1.0})


def test_a_paired_ratio_leaves_out_as_many_turns_as_a_sign_test_does() -> None:
    from tirgemm.torch.alternation import paired_ratio

    for turns, few in ((4, 1), (9, 1), (18, 4), (36, 11)):
        ratio = paired_ratio([float(number) for number in range(1, turns + 1)], [1.0] * turns)
        assert (ratio.low, ratio.high) == (1.0 + few, float(turns - few))
