"""Races of a model's linears together, and of the model itself: kernels that lose there are left to PyTorch."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.restored_table import restored_table
from tests.torch.watched_kernel import watch
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

N, K, M = 23, 19, 5
UP, DOWN = Gemm(M, N, K, "f32", "nt", bias=True), Gemm(M, K, N, "f32", "nt", bias=True)
# Far more than anything else here takes, and than another process is in the way in one turn of three.
SLOW_S = 0.003


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A table that is as it was once the test is over, and races of few short turns."""
    from tirgemm.torch import linear_race

    monkeypatch.setattr(linear_race, "TURNS", 4)
    monkeypatch.setattr(linear_race, "TURN_S", 1e-5)
    with restored_table() as kept, torch.no_grad():
        yield kept


def slow(_: Any) -> None:
    time.sleep(SLOW_S)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel wins its race alone."""
    from tirgemm.torch import linear_race
    from tirgemm.torch.alternation import PairedRatio

    monkeypatch.setattr(linear_race, "_ratio", lambda *_: PairedRatio(0.5, 0.5, 0.5))


class Blocks(torch.nn.Sequential):
    """Two linears of one kind around one of another, of which PyTorch's product of ``up`` is slow."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(K, N), torch.nn.Linear(N, K), torch.nn.Linear(K, N))


@pytest.fixture
def slow_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's product of K columns is slow."""
    forward = torch.nn.Linear.forward

    def slowly(self: Any, x: Any) -> Any:
        if x.shape[-1] == K:
            slow(x)
        return forward(self, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", slowly)


def accelerated(model: Any, monkeypatch: pytest.MonkeyPatch, *, measured: bool) -> tuple[Any, dict[Gemm, Any]]:
    """The report, and the kernels, of which that of ``DOWN`` is slow."""
    from tirgemm.torch import accelerate
    from tirgemm.torch.kernel_table import TABLE

    source = SampleSource()
    kernels = {gemm: source.kernel(gemm, "tuned") for gemm in (UP, DOWN)}
    watch(kernels[DOWN], slow, monkeypatch)
    for kernel in kernels.values():
        TABLE.add(kernel)
    return accelerate(model, rows=M, source=source, policy="tuned", measured=measured), kernels


@pytest.mark.usefixtures("alone", "slow_pytorch")
def test_a_kernel_that_wins_alone_and_slows_the_others_down_is_dropped(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import Linear

    model = Blocks()
    report, kernels = accelerated(model, monkeypatch, measured=True)
    assert [type(layer) is Linear for layer in model] == [True, False, True], str(report)
    ((rows, ratio),) = table.left(DOWN, kernels[DOWN].device).items()
    assert (rows.low, rows.high) == (M, M)
    assert ratio > 1
    assert report.linears[1].reason == "not faster than PyTorch"
    assert not table.left(UP, kernels[UP].device)


def test_a_chain_has_every_kind_and_little_more_than_no_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import linear_race, model_race

    linear = torch.nn.Linear
    blocks = [(linear(K, N), linear(K, N, bias=False), linear(N, K)) for _ in range(9)]
    modules = [*(each for block in blocks for each in block), linear(N, 2)]
    monkeypatch.setattr(linear_race, "ENOUGH_BYTES", 4 * (5 * N * K + N * 2))
    chosen = linear_race.enough(modules)
    assert [modules.index(each) for each in chosen] == [0, 1, 2, 3, 4, len(modules) - 1]
    ran: list[Any] = []
    monkeypatch.setattr(linear, "forward", lambda self, x: ran.append((self, x.shape)))
    model_race.chain(M, modules)()
    assert ran == [(each, (M, each.in_features)) for each in chosen]


def test_a_chain_of_two_dtypes_gives_each_linear_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import model_race

    ran: list[Any] = []
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: ran.append((self.weight.dtype, x.dtype)))
    model_race.chain(M, [torch.nn.Linear(K, N), torch.nn.Linear(K, N).half()])()
    assert ran == [(dtype, dtype) for dtype in (torch.float32, torch.float16)]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("of_all", "is_kept"), [(0.999, True), (1.0, False)])
def test_a_model_that_is_not_faster_with_its_kernels_gets_none(
    of_all: float, is_kept: bool, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import model_race
    from tirgemm.torch.alternation import PairedRatio

    model, rounds = Blocks(), []

    def ratios(*given: Any) -> Any:
        kept = given[2]
        rounds.append(len(kept))
        return dict.fromkeys(kept, PairedRatio(1.001, 1.0, 1.01)), PairedRatio(of_all, 0.98, 1.01)

    monkeypatch.setattr(model_race, "_ratios", ratios)
    report, kernels = accelerated(model, monkeypatch, measured=True)
    assert rounds == [2]
    assert {type(layer) is torch.nn.Linear for layer in model} == {not is_kept}
    assert {table.leaves(gemm, kernels[gemm].device) for gemm in (UP, DOWN)} == {not is_kept}, str(report)


@pytest.mark.usefixtures("slow_pytorch")
def test_a_model_is_raced_as_it_is_called(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import Linear

    model = Blocks()
    report, kernels = accelerated(model, monkeypatch, measured=False)
    assert len(report.replaced) == 3
    wanted = [[layer.weight for layer in model], torch.randn(1, M, K)]
    with pytest.raises(InvalidRequest, match="graph=True needs a GPU"):
        report.race(lambda: model(wanted[1]), graph=True)
    report.race(lambda: model(torch.randn(M + 1, K)))
    assert len(report.replaced) == 3, "no kernel has so many rows"
    report.race(lambda: model(wanted[1]))
    assert [type(layer) is Linear for layer in model] == [True, False, True], str(report)
    assert all(layer.weight is weight for layer, weight in zip(model, wanted[0], strict=True))
    assert [each.replaced for each in report.linears] == [True, False, True]
    assert table.find(UP, kernels[UP].device) is kernels[UP]
    assert not any(layer._forward_pre_hooks for layer in model)
    report.undo()
    report.race(lambda: model(wanted[1]))


def test_linears_that_became_something_else_since_are_neither_raced_nor_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.nn.utils import parametrize

    model, x = Blocks(), torch.randn(M, K)
    wanted = model(x)
    report, _ = accelerated(model, monkeypatch, measured=False)
    parametrize.register_parametrization(model[1], "weight", torch.nn.Identity())
    report.race(lambda: model(x))
    assert parametrize.is_parametrized(model[1], "weight")
    assert torch.allclose(model(x), wanted, atol=1e-4)


def test_rows_are_seen_where_the_input_is_given_by_name() -> None:
    from tirgemm.torch import Linear, model_race

    layer, x = Linear(K, N), torch.randn(2, M, K)
    assert model_race.observed_rows(lambda: layer(input=x), [layer]) == [(layer, 2 * M)]


def test_a_race_that_fails_drops_nothing_and_leaves_the_kernels(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tirgemm.torch import Linear

    model = Blocks()

    def call() -> None:
        if type(model[0]) is torch.nn.Linear:
            raise torch.OutOfMemoryError("out of memory")
        model(torch.randn(M, K))

    report, _ = accelerated(model, monkeypatch, measured=False)
    with caplog.at_level(logging.WARNING, "tirgemm.torch"):
        report.race(call)
    assert "kernels were not raced together: out of memory" in caplog.text
    assert {type(layer) for layer in model} == {Linear}
    assert len(report.replaced) == 3


def test_ways_take_turns_with_as_many_calls_each() -> None:
    from tirgemm.torch.alternation import alternating, ended, paired_ratio

    ran: list[str] = []

    def way(name: str) -> Callable[[], None]:
        return lambda: ran.append(f"{name}, {'collected' if gc.isenabled() else 'uncollected'}")

    switched: list[str] = []
    samples = alternating({"a": way("a"), "b": way("b")}, 3, 1e-5, ended, switched.append)
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3}
    assert ran.count("a, uncollected") == ran.count("b, uncollected") == len(ran) / 2
    assert switched[-8:] == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert gc.isenabled()
    ratio = paired_ratio([1.0, 2.0, 9.0, 4.0], [2.0, 2.0, 3.0, 5.0])
    assert (ratio.low, ratio.median, ratio.high) == (0.8, 0.9, 1.0)
