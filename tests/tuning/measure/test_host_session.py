"""Timing on a CPU: how many calls a sample is of, whatever else runs on the machine, and what operands a race has."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tirgemm.detect import device
from tirgemm.gemm import Gemm
from tirgemm.tuning.measure import host_session
from tirgemm.tuning.measure.race import Race
from tirgemm.tuning.measure.requests import RaceOptions, Time
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.verify.plan import operand_layouts

GEMM = Gemm.parse("53x31x67:f32:nn")


@pytest.mark.parametrize("delayed", [{}, {1: 9e-3}, {2: 16e-3, 3: 16e-3}, dict.fromkeys(range(1, 15), 3e-3)])
def test_calls_that_other_work_delays_do_not_shorten_the_samples(
    delayed: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples of fewer calls are hit less often: of three copies of one kernel one was the fastest with confidence."""
    now, calls = 0.0, itertools.count()

    def call() -> None:
        nonlocal now
        now += delayed.get(next(calls), 25e-6)

    monkeypatch.setattr(host_session, "time", SimpleNamespace(perf_counter=lambda: now))
    assert host_session._calls_per_block(itertools.repeat(call)) == 40


def test_a_slow_kernel_is_called_twice_before_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def call() -> None:
        nonlocal now
        now += 60e-3

    monkeypatch.setattr(host_session, "time", SimpleNamespace(perf_counter=lambda: now))
    assert (host_session._calls_per_block(itertools.repeat(call)), round(now, 3)) == (1, 0.12)


@pytest.mark.parametrize(("memory", "shared"), [(2, False), (1, True)])
def test_operands_of_a_race_that_would_take_more_than_half_of_the_memory_are_shared(memory: int, shared: bool) -> None:
    one = sum(layout.padded_bytes for layout in operand_layouts(GEMM))
    session = host_session.HostSession(device("cpu").with_(memory_bytes=memory * 3 * one), lambda: None)
    kernel: Any = SimpleNamespace(gemm=GEMM, raw=lambda *_: None)

    def timed(_package: bytes, options: RaceOptions, **_: object) -> SampleSet:
        return session.time(kernel, {"second": kernel, "third": kernel}, Time(options))

    measurer: Any = SimpleNamespace(time=timed)
    race = Race(measurer, RaceOptions("sustained", min_samples=1, budget_s=0.0))
    entries = {"first": b"", "second": b"", "third": b""}
    assert race.fitting(entries, (), confirm=False).shared is shared
