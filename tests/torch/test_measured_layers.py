"""``accelerate(measured=True)``: kernels are raced against PyTorch, which keeps the rows for which it is faster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.restored_table import restored_table
from tests.torch.watched_kernel import watch
from tirgemm.gemm import Gemm, Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

N, K = 23, 19
WIDE = Gemm(Range(1, 64), N, K, "f32", "nt", bias=True)
FIVE = WIDE.with_(m=5)


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    """A table that is as it was once the test is over."""
    with restored_table() as kept, torch.no_grad():
        yield kept


@pytest.fixture
def ratios(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """A kernel's time over PyTorch's by rows, which tests set, in place of races; what was raced is in it at 0."""
    from tirgemm.torch import linear_race

    given: dict[int, float] = {}
    monkeypatch.setattr(linear_race, "_ratio", lambda rows, modules: given.setdefault(rows, 0.5) * len(modules) ** 0)
    return given


def model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.ReLU(), torch.nn.Linear(N, K), torch.nn.Linear(K, N))


def accelerated(made: Any, source: Any, rows: Any = WIDE.m, **more: Any) -> Any:
    from tirgemm.torch import accelerate

    return accelerate(made, rows=rows, source=source, **more)


def test_pytorch_keeps_the_rows_for_which_it_is_faster(
    ratios: dict[int, float], table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, made, ran = SampleSource(), model(), []
    ratios |= {16: 1.25, 32: 1.0}
    report = accelerated(made, source, measured=True, wait=True)
    assert sorted(ratios) == [1, 16, 32, 64], "the ends, and powers of two between them"
    kernel = next(each for each in source.made if each.gemm == WIDE)
    assert [linear.replaced for linear in report.linears] == [True] * 3
    assert f"{WIDE}: default; PyTorch is faster, 1.25 times for 2..16 rows" in str(report)
    watch(kernel, lambda x: ran.append(len(x)), monkeypatch)
    for m in (1, 2, 16, 17, 64):
        x = torch.randn(m, K)
        for _ in range(2):
            assert torch.allclose(made[0](x), torch.nn.functional.linear(x, made[0].weight, made[0].bias), atol=1e-5)
    assert ran == [1, 1, 17, 17, 64, 64]
    table.add(kernel)
    made[0](torch.randn(16, K))
    assert ran[6:] == [16], "added again, it is offered again"


def test_a_linear_that_pytorch_computes_faster_throughout_is_given_back(ratios: dict[int, float]) -> None:
    from tirgemm.torch import routed

    source, made = SampleSource(stored=[FIVE]), model()
    ratios[5] = 1.5
    report = accelerated(made, source, rows=5, policy="tuned", measured=True)
    assert {type(layer) for layer in made} == {torch.nn.Linear, torch.nn.ReLU}
    assert (
        str(report.linears[0])
        == f"0: left alone: PyTorch is faster\n    {FIVE}: PyTorch is faster, 1.50 times for 5 rows"
    )
    report.undo()

    with routed("default", source=source) as calls:
        torch.nn.functional.linear(torch.randn(5, K), made[0].weight, made[0].bias)
    assert not calls.missing
    assert "PyTorch is faster" in str(calls)


def test_kernels_that_come_later_are_raced_once_they_are_waited_for(ratios: dict[int, float]) -> None:
    from tirgemm.torch import Linear

    source, made = SampleSource(tuned_later=True), model()
    ratios[5] = 1.5
    report = accelerated(made, source, rows=5, policy="default", measured=True)
    assert not report.wait(0.01)
    assert {type(layer) for layer in made} == {Linear, torch.nn.ReLU}, "a better one may come"
    source.release.set()
    assert report.wait(60)
    assert {type(layer) for layer in made} == {torch.nn.Linear, torch.nn.ReLU}
    assert {linear.reason for linear in report.linears} == {"PyTorch is faster"}


def test_a_linear_whose_default_is_slower_waits_for_the_tuned_kernel(ratios: dict[int, float], table: Any) -> None:
    from tirgemm.torch import Linear

    source, made = SampleSource(tuned_later=True), model()
    table.add(source.kernel(FIVE, "fallback"))
    ratios[5] = 1.5
    report = accelerated(made, source, rows=5, policy="default", measured=True)
    assert source.asked, "a tuned one is made"
    assert {type(layer) for layer in made} == {Linear, torch.nn.ReLU}
    ratios[5] = 0.5
    source.release.set()
    assert report.wait(60)
    assert f"{FIVE}: tuned" in str(report)
    assert {type(layer) for layer in made} == {Linear, torch.nn.ReLU}


@pytest.mark.parametrize("how", [{}, {"measured": False}, {"measured": True, "invariant": True}])
def test_nothing_is_raced_on_a_cpu_unless_asked_and_invariant_kernels_never(
    how: dict[str, Any], ratios: dict[int, float]
) -> None:
    report = accelerated(model(), SampleSource(), rows=5, policy="default", wait=True, **how)
    assert len(report.replaced) == 3
    assert ratios == {}


def test_a_race_runs_both_and_one_that_fails_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, table: Any
) -> None:
    from tirgemm.torch import linear_race

    monkeypatch.setattr(linear_race, "TURN_S", 1e-5)
    source, made, ran = SampleSource(), model(), []
    kernel = watch(source.kernel(FIVE, "tuned"), lambda x: ran.append(len(x)), monkeypatch)
    table.add(kernel)
    accelerated(made, SampleSource(), rows=5, policy="tuned", measured=True)
    assert set(ran) == {5}
    assert len(ran) > 2 * linear_race.TURNS

    def short(rows: int, modules: Any) -> float:
        raise torch.OutOfMemoryError(f"{rows} {modules}")

    monkeypatch.setattr(linear_race, "_ratio", short)
    with caplog.at_level(logging.WARNING, "tirgemm.torch"):
        assert linear_race.slower_rows(kernel, [made[0]]) == {}
    assert f"{FIVE} was not raced against PyTorch" in caplog.text
