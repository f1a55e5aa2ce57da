"""Fixtures of the tests of races: a clock, the table of kernels, and models whose kernels win or lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.torch.races.raced_models import SLOW_S
from tests.torch.restored_table import restored_table
from tests.torch.work_clock import WorkClock


@pytest.fixture
def clock() -> WorkClock:
    return WorkClock()


@pytest.fixture(autouse=True)
def table(clock: WorkClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A table that is as it was once the test is over, and races of few turns by the clock of this test."""
    import torch

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
