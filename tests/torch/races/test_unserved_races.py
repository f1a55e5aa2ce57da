"""Races in which a kernel cannot run: they decide nothing for it, and say so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.races.raced_models import PYTORCH_S, UP_SET, K, M, N
from tests.torch.watched_kernel import watch
from tests.torch.work_clock import WorkClock

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("few_turns", "timed_pytorch")]


@pytest.fixture
def kernel(clock: WorkClock, table: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel of the table that takes a quarter of PyTorch's time."""

    def work(_: Any) -> None:
        clock.now += PYTORCH_S / 4

    made = watch(SampleSource().kernel(UP_SET, "tuned"), work, monkeypatch)
    table.add(made)
    return made


def accelerated(**more: Any) -> tuple[Any, Any]:
    from tirgemm.torch import accelerate

    model = torch.nn.Sequential(torch.nn.Linear(K, N))
    return model, accelerate(model, rows=UP_SET.m, policy="tuned", source=SampleSource(), **more)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_model_of_another_dtype_is_not_raced(kernel: Any, table: Any) -> None:
    model, report = accelerated()
    model.double()
    report.race(lambda: model(torch.randn(M, K, dtype=torch.float64)))
    assert not table.excluded_rows(UP_SET, kernel.device)


def test_kernels_that_come_for_a_model_of_another_dtype_are_not_raced(kernel: Any, table: Any) -> None:
    from tirgemm.torch import Linear, accelerate

    table.remove(kernel)
    own = torch.nn.Sequential(Linear(K, N))
    report = accelerate(own, rows=UP_SET.m, policy="tuned", source=SampleSource(), measured=True)
    own.double()
    table.add(kernel)
    assert report.wait()
    assert not table.excluded_rows(UP_SET, kernel.device)
    own.float()
    assert report.wait()
    assert "not raced" not in str(report)
    assert not table.excluded_rows(UP_SET, kernel.device)


def test_calls_under_autocast_are_not_raced(kernel: Any, table: Any, caplog: pytest.LogCaptureFixture) -> None:
    model, report = accelerated()

    def call() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            model(torch.randn(M, K))

    with caplog.at_level(logging.WARNING, "tirgemm.torch"):
        report.race(call)
    assert not table.excluded_rows(UP_SET, kernel.device)
    assert "a call was not raced, as PyTorch computes all of its linears: autocast" in caplog.text
    assert "not raced" in str(report)

    def both() -> None:
        call()
        model(torch.randn(M, K))

    report.race(both)
    assert "not raced" not in str(report), "the other call of the same linear was"
    assert not table.excluded_rows(UP_SET, kernel.device)


def test_calls_that_use_no_kernel_are_counted(kernel: Any, caplog: pytest.LogCaptureFixture) -> None:
    del kernel
    model, report = accelerated()
    with caplog.at_level(logging.WARNING, "tirgemm.torch"):
        report.race([lambda rows=rows: model(torch.randn(rows, K)) for rows in (M, 67)])
    assert "1 of 2 calls were not raced, as they use no kernel" in caplog.text


def test_under_deterministic_algorithms_nothing_is_raced_until_they_are_off(
    kernel: Any, table: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tirgemm.torch"), deterministic():
        _, report = accelerated(measured=True)
    assert f"{UP_SET} was not raced, as PyTorch computes its calls now: autocast, deterministic" in caplog.text
    assert not table.excluded_rows(UP_SET, kernel.device)
    assert len(report.replaced) == 1
    assert "not raced" in str(report)
    assert report.wait()
    assert "not raced" not in str(report)
    assert not table.excluded_rows(UP_SET, kernel.device)


@pytest.mark.usefixtures("kernel")
def test_a_linear_without_features_is_not_raced_with_the_others() -> None:
    from tirgemm.torch import Linear, accelerate

    model = torch.nn.Sequential(torch.nn.Linear(K, N), Linear(N, 0), Linear(0, M))
    report = accelerate(model, rows=UP_SET.m, policy="tuned", source=SampleSource())
    report.race(lambda: model(torch.randn(M, K)))
    assert "not raced" not in str(report)
