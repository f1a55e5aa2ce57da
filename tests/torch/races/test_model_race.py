"""Races of a model's linears together, and of the model itself: kernels that lose there are left to PyTorch."""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.restored_table import restored_table
from tests.torch.watched_kernel import watch
from tests.torch.work_clock import WorkClock
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

N, K, M = 23, 19, 5
UP, DOWN = Gemm(M, N, K, "f32", "nt", bias=True), Gemm(M, K, N, "f32", "nt", bias=True)
SLOW_S = 0.003


@pytest.fixture
def clock() -> WorkClock:
    return WorkClock()


@pytest.fixture(autouse=True)
def table(clock: WorkClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A table that is as it was once the test is over, and races of few turns by the clock of this test."""
    from tirgemm.torch import linear_race, model_race
    from tirgemm.torch.alternation import Turns

    for module in (linear_race, model_race):
        monkeypatch.setattr(module, "TURNS", Turns(4, 1e-5, clock))
    with restored_table() as kept, torch.no_grad():
        yield kept


@pytest.fixture
def slow(clock: WorkClock) -> Callable[[Any], None]:
    def work(_: Any) -> None:
        clock.now += SLOW_S

    return work


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel wins its race alone."""
    from tirgemm.torch import linear_race
    from tirgemm.torch.alternation import PairedRatio

    monkeypatch.setattr(linear_race, "_ratio", lambda *_: PairedRatio(0.5, 0.5, 0.5))


def block_model() -> Any:
    """Two linears of one kind around one of another, of which PyTorch's product of ``up`` is slow."""
    return torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.Linear(N, K), torch.nn.Linear(K, N))


@pytest.fixture
def slow_pytorch(slow: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's product of K columns is slow."""
    forward = torch.nn.Linear.forward

    def slowly(self: Any, x: Any) -> Any:
        if x.shape[-1] == K:
            slow(x)
        return forward(self, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", slowly)


Accelerated = Callable[..., "tuple[Any, dict[Gemm, Any]]"]


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


UP_SET, DOWN_SET = (gemm.with_(m=Range(1, 64)) for gemm in (UP, DOWN))
# What a product takes, by its columns and rows: PyTorch's always as much.
PYTORCH_S = 0.002


@pytest.fixture
def timed(
    clock: WorkClock, table: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Any, Any, dict[Gemm, Any]]]:
    """A function that makes a model of sets of kernels, accelerated, unraced: ``slower`` has the columns and the rows
    for which a kernel takes longer than PyTorch."""

    def run(slower: set[tuple[int, int]]) -> tuple[Any, Any, dict[Gemm, Any]]:
        from tirgemm.torch import accelerate

        def ours(x: Any) -> None:
            columns, rows = x.shape[-1], x.numel() // x.shape[-1]
            clock.now += PYTORCH_S * (1.5 if (columns, rows) in slower else 0.5)

        def pytorch(*given: Any) -> Any:
            clock.now += PYTORCH_S
            return real(*given)

        real = torch.nn.functional.linear
        monkeypatch.setattr(torch.nn.functional, "linear", pytorch)
        source = SampleSource()
        kernels = {gemm: watch(source.kernel(gemm, "tuned"), ours, monkeypatch) for gemm in (UP_SET, DOWN_SET)}
        for kernel in kernels.values():
            table.add(kernel)
        model = block_model()
        return model, accelerate(model, rows=Range(1, 64), source=source, policy="tuned"), kernels

    return run


def test_each_kind_of_linear_and_number_of_rows_is_decided_by_itself(timed: Any, table: Any) -> None:
    from tirgemm.torch import Linear

    model, report, kernels = timed({(K, 16), (N, 2), (N, 50), (N, 51)})
    x = {rows: torch.randn(rows, K) for rows in (1, 2, 16, 50, 64)}
    wanted = {rows: model(given) for rows, given in x.items()}
    report.race([lambda rows=rows: model(x[rows]) for rows in (50, 2, 16)])
    left = {
        gemm: [(rows.low, rows.high) for rows in table.excluded_rows(gemm, kernels[gemm].device)] for gemm in kernels
    }
    # 5 is nearer to 2 than to 16, 28 to 16 than to 50; 1 and 17..32 were other races.
    assert left == {UP_SET: [(6, 28)], DOWN_SET: [(29, 64), (2, 5)]}
    assert {type(layer) for layer in model} == {Linear}
    assert "not faster than PyTorch, 1.400 of its time for 6..28 rows" in str(report)
    for rows, given in x.items():
        assert torch.allclose(model(given), wanted[rows], atol=1e-4)


def test_one_call_with_several_numbers_of_rows_decides_each_of_them(timed: Any, table: Any) -> None:
    model, report, kernels = timed({(K, 16), (N, 1)})
    prompt, token = torch.randn(2, 8, K), torch.randn(1, K)
    report.race(lambda: (model(prompt), model(token)))
    left = {
        gemm: [(rows.low, rows.high) for rows in table.excluded_rows(gemm, kernels[gemm].device)] for gemm in kernels
    }
    assert left == {UP_SET: [(5, 16)], DOWN_SET: [(1, 4)]}


def test_a_call_is_raced_again_without_what_another_one_dropped(
    timed: Any, table: Any, clock: WorkClock, caplog: pytest.LogCaptureFixture
) -> None:
    model, report, kernels = timed(set())
    up, down = model[0], model[1]
    x, single = torch.randn(5, K), torch.randn(1, N)
    ran: list[int] = []

    def first() -> None:
        """In which the kernel for 5 rows takes what PyTorch's product takes, and the one for 1 row gains."""
        up(x)
        if not table.excludes(UP, kernels[UP_SET].device) and type(up) is not torch.nn.Linear:
            clock.now += PYTORCH_S / 2
        down(single)

    def second() -> None:
        """In which the kernel for 1 row is in the way."""
        ran.append(len(ran))
        down(single)
        if not table.excludes(DOWN.with_(m=1), kernels[DOWN_SET].device) and type(down) is not torch.nn.Linear:
            clock.now += 2 * PYTORCH_S

    def breaks() -> None:
        ran.append(-1)
        if len(ran) > 1:
            raise torch.OutOfMemoryError("out of memory")
        up(x)

    report.race([first])
    assert not table.excluded_rows(UP, kernels[UP_SET].device)
    with caplog.at_level(logging.WARNING, "tirgemm.torch"):
        report.race([breaks, first, second])
    assert "out of memory" in caplog.text
    assert table.excludes(DOWN.with_(m=1), kernels[DOWN_SET].device)
    assert table.excludes(UP, kernels[UP_SET].device), "without the other it gains nothing"


def test_a_kernel_that_a_race_left_to_pytorch_stays_for_what_names_it(timed: Any, table: Any) -> None:
    """As a CUDA graph does that captured it before the race."""
    model, report, kernels = timed({(K, M), (N, M)})
    x = torch.randn(M, K)
    captured = table.find(UP, kernels[UP_SET].device)
    out = torch.empty(M, N)
    report.race(lambda: model(x))
    assert table.find(UP, kernels[UP_SET].device) is None
    captured(x, model[0].weight, out=out, bias=model[0].bias)
    assert torch.allclose(out, torch.nn.functional.linear(x, model[0].weight, model[0].bias), atol=1e-5)
    assert table.named(captured.kernel_sha256) is captured


def test_calls_of_another_thread_are_right_while_a_model_is_raced(timed: Any) -> None:
    model, report, _ = timed({(K, 16), (N, 2)})
    x = {rows: torch.randn(rows, K) for rows in (2, 16)}
    wanted = {rows: model(given) for rows, given in x.items()}
    over = threading.Event()

    def call() -> list[bool]:
        right: list[bool] = []
        with torch.no_grad():
            while not right or not over.is_set():
                right += [torch.allclose(model(given), wanted[rows], atol=1e-4) for rows, given in x.items()]
        return right

    with ThreadPoolExecutor(1) as pool:
        calls = pool.submit(call)
        report.race([partial(model, given) for given in x.values()])
        over.set()
        assert all(calls.result(60))


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


def test_rows_follow_the_nearest_count_by_their_ratio() -> None:
    from tirgemm.torch.linear_race import nearest_rows

    kernel = SampleSource().kernel(UP.with_(m=Range(3, 100)), "tuned")
    ranges = nearest_rows(kernel, [40, 4, 9, 4])
    assert {count: (rows.low, rows.high) for count, rows in ranges.items()} == {4: (4, 6), 9: (7, 18), 40: (19, 64)}
    assert nearest_rows(kernel, [3]) == {3: Range(3, 3)}
    assert nearest_rows(SampleSource().kernel(UP, "tuned"), [M]) == {M: Range(M, M)}


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
