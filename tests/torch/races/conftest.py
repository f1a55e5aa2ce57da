"""Fixtures of the tests of races: a clock, the table of kernels, races of few turns, and PyTorch's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.torch.races.raced_models import PYTORCH_S, SLOW_S
from tests.torch.restored_table import restored_table
from tests.torch.work_clock import WorkClock


@pytest.fixture
def clock() -> WorkClock:
    return WorkClock()


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    """A table that is as it was once the test is over, with gradients off."""
    with restored_table() as kept:
        yield kept


@pytest.fixture
def few_turns(clock: WorkClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Races of few turns, by the clock of this test."""
    from tirgemm.torch import linear_race, model_race
    from tirgemm.torch.alternation import Turns

    for module in (linear_race, model_race):
        monkeypatch.setattr(module, "TURNS", Turns(4, 1e-5, clock))


@pytest.fixture
def slow(clock: WorkClock) -> Callable[[Any], None]:
    def work(_: Any) -> None:
        clock.now += SLOW_S

    return work


@pytest.fixture
def timed_pytorch(clock: WorkClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's product takes ``PYTORCH_S``."""
    import torch

    real = torch.nn.functional.linear

    def pytorch(*given: Any) -> Any:
        clock.now += PYTORCH_S
        return real(*given)

    monkeypatch.setattr(torch.nn.functional, "linear", pytorch)
