"""Lookups of a model's kernels: each problem once, and while other threads go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.restored_table import restored_table
from tests.waiting import PATIENCE_S
from tirgemm.artifact import Kernel
from tirgemm.device import Device
from tirgemm.errors import ServiceUnreachable
from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

GEMM = Gemm(5, 23, 19, "f32", "nt")


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    """A table that is as it was once the test is over."""
    with restored_table() as kept:
        yield kept


class Noted(SampleSource):
    """A source that notes what is looked up, and what it is to refuse, and does ``meanwhile`` at each."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.looked_up: list[Gemm] = []
        self.refusals: list[Gemm] = []
        self.meanwhile: Any = lambda: None

    def lookup(self, gemm: Gemm, device: Device) -> Kernel | None:
        self.looked_up.append(gemm)
        self.meanwhile()
        return super().lookup(gemm, device)

    def refusal(self, gemm: Gemm, device: Device, policy: str) -> str | None:
        self.refusals.append(gemm)
        return super().refusal(gemm, device, policy)


def linear(n: int = 23) -> Any:
    return torch.nn.Linear(19, n, bias=False)


def accelerated(made: Any, source: Any, **more: Any) -> Any:
    from tirgemm.torch import accelerate

    return accelerate(made, **{"rows": 5, "source": source, "policy": "default", "wait": True} | more)


def test_a_source_is_asked_once_a_problem() -> None:
    source = Noted()
    report = accelerated(torch.nn.Sequential(linear(), linear(), linear(17), linear()), source)
    assert source.looked_up == source.refusals == [*report.gemms]
    assert len(report.gemms) == 2
    assert len(report.replaced) == 4


def test_a_source_whose_service_is_away_is_asked_no_more() -> None:
    source = Noted()

    def gone() -> None:
        if len(source.looked_up) == 2:
            raise ServiceUnreachable("gone")

    source.meanwhile = gone
    report = accelerated(torch.nn.Sequential(*(linear(n) for n in (17, 18, 19, 20))), source, dry_run=True)
    assert len(source.looked_up) == 2
    assert [linear.reason for linear in report.linears] == [""] + ["no kernel"] * 3
    assert {linear.problems[0][1] for linear in report.linears[1:]} == {"no kernel: gone"}


def test_another_model_is_given_back_while_a_service_is_asked() -> None:
    other, source = linear(), Noted()
    report = accelerated(other, SampleSource(stored=[GEMM]))
    asked, answer, ended = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        answer.wait(PATIENCE_S)
        ended.set()

    source.meanwhile = wait
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(accelerated, linear(17).requires_grad_(False), source)
        assert asked.wait(PATIENCE_S)
        report.undo()
        assert not ended.is_set()
        answer.set()
        assert len(asking.result().replaced) == 1
    assert type(other) is torch.nn.Linear


def test_what_another_thread_adds_meanwhile_is_asked_for_too() -> None:
    made, source = torch.nn.Sequential(linear()), Noted()

    def add() -> None:
        if len(made) == 1:
            made.append(linear(17))

    source.meanwhile = add
    report = accelerated(made, source)
    assert [linear.names for linear in report.replaced] == [("0",), ("1",)]
    assert source.looked_up == [*report.gemms]
