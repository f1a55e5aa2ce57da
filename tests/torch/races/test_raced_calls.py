"""What a race of a model's calls decides for each kind of linear and number of rows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.races.raced_models import DOWN, DOWN_SET, PYTORCH_S, UP, UP_SET, K, M, N, block_model
from tests.torch.watched_kernel import watch
from tests.torch.work_clock import WorkClock
from tirgemm.gemm import Gemm, Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("few_turns", "timed_pytorch")]


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


def test_rows_follow_the_nearest_count_by_their_ratio() -> None:
    from tirgemm.torch.linear_race import nearest_rows

    kernel = SampleSource().kernel(UP.with_(m=Range(3, 100)), "tuned")
    ranges = nearest_rows(kernel, [40, 4, 9, 4])
    assert {count: (rows.low, rows.high) for count, rows in ranges.items()} == {4: (4, 6), 9: (7, 18), 40: (19, 64)}
    assert nearest_rows(kernel, [3]) == {3: Range(3, 3)}
    assert nearest_rows(SampleSource().kernel(UP, "tuned"), [M]) == {M: Range(M, M)}
