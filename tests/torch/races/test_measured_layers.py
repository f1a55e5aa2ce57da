"""``accelerate(measured=True)``: kernels are raced against PyTorch, which keeps the rows for which they are not clearly
faster."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.races.raced_models import UP, UP_SET, K, N
from tests.torch.watched_kernel import watch
from tests.torch.work_clock import WorkClock
from tests.waiting import PATIENCE_S
from tirgemm.gemm import Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

SLOWER = "not faster than PyTorch"


@pytest.fixture
def ratios(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """A kernel's time over PyTorch's by rows, which tests set, in place of races; what was raced is in it. Among the
    other linears each kernel gains."""
    from tirgemm.torch import linear_race, model_race
    from tirgemm.torch.alternation import PairedRatio

    given: dict[int, float] = {}

    def ratio(rows: int, modules: Any) -> Any:
        value = given.setdefault(rows, 0.5) * len(modules) ** 0
        return PairedRatio(value, value - 0.02, value + 0.02)

    gains = PairedRatio(0.9, 0.9, 0.9)
    monkeypatch.setattr(linear_race, "_ratio", ratio)
    monkeypatch.setattr(model_race, "_ratios", lambda *given: (dict.fromkeys(given[1], gains), gains))
    return given


def model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.ReLU(), torch.nn.Linear(N, K), torch.nn.Linear(K, N))


def accelerated(made: Any, source: Any, rows: Any = UP_SET.m, **more: Any) -> Any:
    from tirgemm.torch import accelerate

    return accelerate(made, rows=rows, source=source, **more)


def test_pytorch_keeps_the_rows_for_which_it_is_faster(
    ratios: dict[int, float], table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, made, ran = SampleSource(), model(), []
    ratios |= {16: 1.25, 32: 0.97}
    report = accelerated(made, source, measured=True, wait=True)
    assert sorted(ratios) == [1, 16, 32, 64], "the ends, and powers of two between them"
    kernel = next(each for each in source.made if each.gemm == UP_SET)
    assert [linear.replaced for linear in report.linears] == [True] * 3
    assert f"{UP_SET}: default; not faster than PyTorch, 1.250 of its time for 2..16 rows" in str(report)
    watch(kernel, lambda x: ran.append(len(x)), monkeypatch)
    for m in (1, 2, 16, 17, 64):
        x = torch.randn(m, K)
        for _ in range(2):
            assert torch.allclose(made[0](x), torch.nn.functional.linear(x, made[0].weight, made[0].bias), atol=1e-5)
    assert ran == [1, 1, 17, 17, 64, 64]
    table.add(kernel)
    made[0](torch.randn(16, K))
    assert ran[6:] == [16], "added again, it is offered again"


def test_a_report_lists_lost_rows_in_their_order(table: Any) -> None:
    made, source = model(), SampleSource(stored=[UP_SET])
    report = accelerated(made, source, policy="tuned", measured=False)
    kernel = table.find(UP_SET, source.made[0].device)
    table.exclude_rows(kernel, {Range(17, 32): 1.5, Range(1, 1): math.nan, Range(2, 16): 1.25})
    told = "not raced for 1 rows, 1.250 of its time for 2..16 rows, 1.500 of its time for 17..32 rows"
    assert report.linears[0].problems == ((UP_SET, f"tuned; {SLOWER}, {told}"),)


@pytest.mark.parametrize(("ratio", "is_kept"), [(0.96, True), (0.985, False), (0.995, False)])
def test_a_kernel_is_kept_that_wins_by_more_than_the_spread(
    ratio: float, is_kept: bool, ratios: dict[int, float]
) -> None:
    made = model()
    ratios[5] = ratio  # give or take 0.02
    report = accelerated(made, SampleSource(stored=[UP]), rows=5, policy="tuned", measured=True)
    assert [linear.replaced for linear in report.linears] == [is_kept, False, is_kept]


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (1.25, "1.250 of its time for 5 rows"),
        (0.985, "0.985 of its time for 5 rows, but not in enough turns"),  # give or take 0.02
        (0.995, "0.995 of its time for 5 rows, but not clearly less"),
    ],
)
def test_a_report_says_why_a_kernel_that_took_less_time_lost(
    ratio: float, words: str, ratios: dict[int, float]
) -> None:
    made = model()
    ratios[5] = ratio
    report = accelerated(made, SampleSource(stored=[UP]), rows=5, policy="tuned", measured=True)
    assert report.linears[0].problems == ((UP, f"{SLOWER}, {words}"),)


def test_a_linear_that_pytorch_computes_faster_throughout_is_given_back(ratios: dict[int, float]) -> None:
    from tirgemm.torch import routed

    source, made = SampleSource(stored=[UP]), model()
    ratios[5] = 1.5
    report = accelerated(made, source, rows=5, policy="tuned", measured=True)
    assert {type(layer) for layer in made} == {torch.nn.Linear, torch.nn.ReLU}
    assert str(report.linears[0]) == f"0: left alone: {SLOWER}\n    {UP}: {SLOWER}, 1.500 of its time for 5 rows"
    report.undo()

    with routed("default", source=source) as calls:
        torch.nn.functional.linear(torch.randn(5, K), made[0].weight, made[0].bias)
    assert not calls.missing
    assert SLOWER in str(calls)


def test_kernels_that_come_later_are_raced_once_they_are_waited_for(ratios: dict[int, float]) -> None:
    from tirgemm.torch import Linear

    source, made = SampleSource(tuned_later=True), model()
    ratios[5] = 1.5
    report = accelerated(made, source, rows=5, policy="default", measured=True)
    assert not report.wait(0.01)
    assert {type(layer) for layer in made} == {Linear, torch.nn.ReLU}, "a better one may come"
    source.release.set()
    assert report.wait(PATIENCE_S)
    assert {type(layer) for layer in made} == {torch.nn.Linear, torch.nn.ReLU}
    assert {linear.reason for linear in report.linears} == {SLOWER}


def test_a_linear_whose_forward_was_replaced_meanwhile_is_not_raced(ratios: dict[int, float]) -> None:
    source, made = SampleSource(tuned_later=True), torch.nn.Sequential(torch.nn.Linear(K, N))
    report = accelerated(made, source, rows=5, policy="default", measured=True)
    made[0].forward = torch.nn.functional.relu
    source.release.set()
    assert report.wait(PATIENCE_S)
    assert ratios == {}
    assert [linear.reason for linear in report.linears] == ["its forward was replaced"]


def test_a_report_counts_the_kernels_that_came_after_the_race(ratios: dict[int, float], table: Any) -> None:
    source, made = SampleSource(), model()
    table.add(source.kernel(UP, "tuned"))
    report = accelerated(made, source, rows=5, policy="default", measured=True)
    assert report.preparations[0].wait(PATIENCE_S)
    assert str(report).splitlines()[0] == "3 of 3 linears replaced; 2 problems; 1 of 2 kernels not raced"
    assert report.wait(PATIENCE_S)
    assert str(report).splitlines()[0] == "3 of 3 linears replaced; 2 problems"
    assert list(ratios) == [5]


def test_a_linear_whose_default_is_slower_waits_for_the_tuned_kernel(ratios: dict[int, float], table: Any) -> None:
    from tirgemm.torch import Linear

    source, made = SampleSource(tuned_later=True), model()
    table.add(source.kernel(UP, "fallback"))
    ratios[5] = 1.5
    report = accelerated(made, source, rows=5, policy="default", measured=True)
    assert source.asked, "a tuned one is made"
    assert {type(layer) for layer in made} == {Linear, torch.nn.ReLU}
    ratios[5] = 0.5
    source.release.set()
    assert report.wait(PATIENCE_S)
    assert f"{UP}: tuned" in str(report)
    assert {type(layer) for layer in made} == {Linear, torch.nn.ReLU}


@pytest.mark.parametrize("how", [{}, {"measured": False}, {"measured": True, "invariant": True}])
def test_nothing_is_raced_on_a_cpu_unless_asked_and_invariant_kernels_never(
    how: dict[str, Any], ratios: dict[int, float]
) -> None:
    report = accelerated(model(), SampleSource(), rows=5, policy="default", wait=True, **how)
    assert len(report.replaced) == 3
    assert ratios == {}
    assert str(report).splitlines()[0] == "3 of 3 linears replaced; 2 problems; not raced"


def test_a_race_runs_both_and_pytorch_keeps_the_rows_that_cannot_be_raced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, table: Any
) -> None:
    from tirgemm.torch import linear_race
    from tirgemm.torch.alternation import PairedRatio, Turns

    turns = Turns(seconds=1e-5, clock=WorkClock())
    monkeypatch.setattr(linear_race, "TURNS", turns)
    source, made, ran = SampleSource(), model(), []
    kernel = watch(source.kernel(UP, "tuned"), lambda x: ran.append(len(x)), monkeypatch)
    table.add(kernel)
    accelerated(made, SampleSource(), rows=5, policy="tuned", measured=True)
    assert set(ran) == {5}
    assert len(ran) > 2 * turns.count

    ratio = PairedRatio(0.5, 0.5, 0.5)

    def short(rows: int, modules: Any) -> Any:
        if rows > 16:
            raise torch.OutOfMemoryError(f"no memory for {len(modules)} layers")
        return ratio

    monkeypatch.setattr(linear_race, "_ratio", short)
    table.add(source.kernel(UP_SET, "tuned"))
    with caplog.at_level(logging.WARNING, "tirgemm.torch"):
        report = accelerated(model(), source, policy="tuned", measured=True)
    assert f"{UP_SET} was not raced against PyTorch with 64 rows: no memory for 2 layers" in caplog.text
    assert f"{UP_SET}: tuned; {SLOWER}, not raced for 17..32 rows, not raced for 33..64 rows" in str(report)
    assert table.find(UP_SET.with_(m=16), kernel.device) is not None


def test_a_default_that_a_search_ends_with_is_raced_again(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import acceleration

    raced: list[Any] = []

    def lost(kernel: Any, _modules: Any) -> dict[Range, float]:
        raced.append(kernel)
        return {Range(5, 5): 1.25}

    monkeypatch.setattr(acceleration, "lost_rows", lost)
    source, made = SampleSource(tuned_later=True, only_tuned=True), torch.nn.Linear(K, N)
    table.add(source.kernel(UP, "fallback"))
    report = accelerated(made, source, rows=5, policy="default", measured=True)
    assert report.linears[0].problems == ((UP, f"{SLOWER}, 1.250 of its time for 5 rows"),)
    source.release.set()
    assert report.wait(PATIENCE_S)
    assert len(raced) == 2
    assert raced[0].kernel_sha256 == raced[1].kernel_sha256, "a default and a tuned kernel of one config"
    assert table.find(UP, raced[1].device) is None
    assert type(made) is torch.nn.Linear


def test_neither_a_dry_run_nor_another_model_forgets_what_a_race_decided(ratios: dict[int, float], table: Any) -> None:
    ratios |= {64: 1.25}
    source, kernel = SampleSource(stored=[UP_SET]), SampleSource().kernel(UP_SET, "tuned")
    assert "tuned" in str(accelerated(model(), source, dry_run=True))
    assert table.find(UP_SET, kernel.device) is None, "a dry run brings no kernel"
    accelerated(model(), source, measured=True)
    left = table.excluded_rows(UP_SET, kernel.device)
    assert left == {Range(33, 64): 1.25}
    for about in ({"dry_run": True}, {"measured": False}):
        report = accelerated(model(), source, **about)
        assert f"tuned; {SLOWER}, 1.250 of its time for 33..64 rows" in str(report)
        assert table.excluded_rows(UP_SET, kernel.device) == left


@pytest.mark.parametrize("role", ["tuned", "fallback"])
@pytest.mark.parametrize("slow", [(64,), (1, 16, 32, 64)], ids=["some rows", "all rows"])
def test_another_model_forgets_nothing_of_a_kernel_that_its_source_has_too(
    role: str, slow: tuple[int, ...], ratios: dict[int, float], table: Any
) -> None:
    class Stored(SampleSource):
        def lookup(self, gemm: Any, device: Any) -> Any:
            return None if super().lookup(gemm, device) is None else self.kernel(gemm, role)

    ratios |= dict.fromkeys(slow, 1.25)
    source = Stored(stored=[UP_SET])
    first = accelerated(model(), source, policy="tuned", measured=True)
    left = table.excluded_rows(UP_SET, source.made[0].device)
    assert [rows.high for rows in left] == [*slow]
    for about in ({"dry_run": True}, {"measured": False}, {"measured": True}):
        report = accelerated(model(), source, policy="tuned", **about)
        assert table.excluded_rows(UP_SET, source.made[0].device) == left
        assert report.linears[0].problems == first.linears[0].problems
        assert report.dry_run or report.linears[0].replaced is first.linears[0].replaced


def test_races_of_another_model_in_graphs_keep_what_a_race_of_calls_decided(
    ratios: dict[int, float], table: Any
) -> None:
    source = SampleSource(stored=[UP_SET])
    accelerated(model(), source, policy="tuned", measured=False)
    kernel = table.find(UP_SET, source.made[0].device)
    table.exclude_rows(kernel, {Range(2, 16): 1.5})
    ratios |= {1: 1.25, 64: 1.125}
    accelerated(model(), source, policy="tuned", measured=True)
    assert table.excluded_rows(UP_SET, kernel.device) == {Range(1, 1): 1.25, Range(2, 16): 1.5, Range(33, 64): 1.125}
    ratios |= {1: 0.5, 64: 1.75}
    accelerated(model(), source, policy="tuned", measured=True)
    assert table.excluded_rows(UP_SET, kernel.device) == {Range(2, 16): 1.5, Range(33, 64): 1.75}


def test_a_default_that_is_made_again_for_another_model_keeps_the_rows_that_it_lost(
    ratios: dict[int, float], table: Any
) -> None:
    ratios |= {64: 1.25}
    source = SampleSource()
    accelerated(model(), source, measured=True, wait=True)
    left = table.excluded_rows(UP_SET, source.made[0].device)
    assert left == {Range(33, 64): 1.25}
    made = len(source.made)
    accelerated(model(), source, measured=False, wait=True)
    assert len(source.made) > made, "a search may come to another kernel"
    assert table.excluded_rows(UP_SET, source.made[0].device) == left
