"""Races of a model's linears together, and of the model itself: kernels that lose there are left to PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.races.raced_models import DOWN, UP, Accelerated, K, M, N, block_model
from tests.torch.watched_kernel import watch
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("few_turns")]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel wins its race alone."""
    from tirgemm.torch import linear_race
    from tirgemm.torch.alternation import PairedRatio

    monkeypatch.setattr(linear_race, "_ratio", lambda *_: PairedRatio(0.5, 0.5, 0.5))


@pytest.fixture
def slow_pytorch(slow: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's product of K columns is slow."""
    forward = torch.nn.Linear.forward

    def slowly(self: Any, x: Any) -> Any:
        if x.shape[-1] == K:
            slow(x)
        return forward(self, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", slowly)


@pytest.fixture
def accelerated(slow: Callable[[Any], None], table: Any, monkeypatch: pytest.MonkeyPatch) -> Accelerated:
    """A function that accelerates a model: the report, and the kernels, of which that of ``DOWN`` is slow."""

    def run(model: Any, *, measured: bool) -> tuple[Any, dict[Gemm, Any]]:
        from tirgemm.torch import accelerate

        source = SampleSource()
        kernels = {gemm: source.kernel(gemm, "tuned") for gemm in (UP, DOWN)}
        watch(kernels[DOWN], slow, monkeypatch)
        for kernel in kernels.values():
            table.add(kernel)
        return accelerate(model, rows=M, source=source, policy="tuned", measured=measured), kernels

    return run


@pytest.mark.usefixtures("alone", "slow_pytorch")
def test_a_kernel_that_wins_alone_and_slows_the_others_down_is_dropped(table: Any, accelerated: Accelerated) -> None:
    from tirgemm.torch import Linear

    model = block_model()
    report, kernels = accelerated(model, measured=True)
    assert [type(layer) is Linear for layer in model] == [True, False, True], str(report)
    ((rows, ratio),) = table.excluded_rows(DOWN, kernels[DOWN].device).items()
    assert (rows.low, rows.high) == (M, M)
    assert ratio > 1
    assert report.linears[1].reason == "not faster than PyTorch"
    assert not table.excluded_rows(UP, kernels[UP].device)


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


def test_a_chain_has_layers_of_each_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import Linear, linear_race

    monkeypatch.setattr(linear_race, "ENOUGH_BYTES", 1)
    modules = [Linear(K, N, act="silu"), Linear(K, N), Linear(K, N, invariant=True), Linear(K, N)]
    assert [modules.index(each) for each in linear_race.enough(modules)] == [0, 1, 2]


def test_a_chain_of_two_dtypes_gives_each_linear_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import model_race

    ran: list[Any] = []
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: ran.append((self.weight.dtype, x.dtype)))
    model_race.chain(M, [torch.nn.Linear(K, N), torch.nn.Linear(K, N).half()])()
    assert ran == [(dtype, dtype) for dtype in (torch.float32, torch.float16)]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("high", "is_kept"), [(0.9999, True), (1.0, False)])
def test_a_model_that_is_not_faster_with_its_kernels_in_all_turns_but_one_gets_none(
    high: float, is_kept: bool, table: Any, accelerated: Accelerated, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import model_race
    from tirgemm.torch.alternation import PairedRatio

    model, rounds = block_model(), []

    def ratios(*given: Any) -> Any:
        kept = given[1]
        rounds.append(len(kept))
        return dict.fromkeys(kept, PairedRatio(1.001, 1.0, 1.01)), PairedRatio(0.99, 0.98, high)

    monkeypatch.setattr(model_race, "_ratios", ratios)
    report, kernels = accelerated(model, measured=True)
    assert rounds == [2]
    assert {type(layer) is torch.nn.Linear for layer in model} == {not is_kept}
    assert {table.excludes(gemm, kernels[gemm].device) for gemm in (UP, DOWN)} == {not is_kept}, str(report)


@pytest.mark.usefixtures("slow_pytorch")
def test_a_model_is_raced_as_it_is_called(table: Any, accelerated: Accelerated) -> None:
    from tirgemm.torch import Linear, accelerate

    model = block_model()
    report, kernels = accelerated(model, measured=False)
    assert len(report.replaced) == 3
    assert "; not raced\n" in str(report)
    wanted = [[layer.weight for layer in model], torch.randn(1, M, K)]
    with pytest.raises(InvalidRequest, match="graph=True needs a GPU"):
        report.race(lambda: model(wanted[1]), graph=True)
    with pytest.raises(InvalidRequest, match="race was given no call; give one"):
        report.race([])
    for wrong, named in (
        (3, "3"),
        ([3], "3"),
        ("x", "'x'"),
        (None, "None"),
        ([lambda: model(wanted[1]), 0.5], r"0\.5"),
    ):
        with pytest.raises(
            InvalidRequest, match=f"race was given {named}, which is no call; give one that runs the model"
        ):
            report.race(cast("Any", wrong))
    for within in (lambda: accelerate(block_model(), dry_run=True), report.wait, report.undo):
        with pytest.raises(InvalidRequest, match="give race what only runs the model"):
            report.race(within)
    report.race(lambda: model(torch.randn(M + 1, K)))
    assert len(report.replaced) == 3, "no kernel has so many rows"
    report.race(lambda: model(wanted[1]))
    assert [type(layer) is Linear for layer in model] == [True, False, True], str(report)
    assert all(layer.weight is weight for layer, weight in zip(model, wanted[0], strict=True))
    assert [each.replaced for each in report.linears] == [True, False, True]
    assert "not raced" not in str(report)
    assert table.find(UP, kernels[UP].device) is kernels[UP]
    assert not any(layer._forward_pre_hooks for layer in model)
    report.undo()
    with pytest.raises(InvalidRequest, match="race has no kernels to race, as undo gave the model back"):
        report.race(lambda: model(wanted[1]))
    dry = accelerate(model, rows=M, source=SampleSource(), dry_run=True)
    with pytest.raises(InvalidRequest, match="race has no kernels to race, as dry_run=True replaced nothing"):
        dry.race(lambda: model(wanted[1]))


def test_linears_that_became_something_else_since_are_neither_raced_nor_given_back(accelerated: Accelerated) -> None:
    from torch.nn.utils import parametrize

    model, x = block_model(), torch.randn(M, K)
    wanted = model(x)
    report, _ = accelerated(model, measured=False)
    parametrize.register_parametrization(model[1], "weight", torch.nn.Identity())
    report.race(lambda: model(x))
    assert parametrize.is_parametrized(model[1], "weight")
    assert torch.allclose(model(x), wanted, atol=1e-4)


def test_rows_are_seen_where_the_input_is_given_by_name() -> None:
    from tirgemm.torch import Linear, model_race

    layer, x = Linear(K, N), torch.randn(2, M, K)
    assert model_race.observed_rows(lambda: layer(input=x), [layer]) == [(layer, 2 * M)]


def test_a_race_that_fails_drops_nothing_and_leaves_the_kernels(
    accelerated: Accelerated, caplog: pytest.LogCaptureFixture
) -> None:
    from tirgemm.torch import Linear

    model = block_model()

    def call() -> None:
        if type(model[0]) is torch.nn.Linear:
            raise torch.OutOfMemoryError("out of memory")
        model(torch.randn(M, K))

    report, _ = accelerated(model, measured=False)
    with caplog.at_level(logging.WARNING, "tirgemm.torch"):
        report.race(call)
    assert "kernels were not raced together: out of memory" in caplog.text
    assert {type(layer) for layer in model} == {Linear}
    assert len(report.replaced) == 3
