"""A search that measures on several devices of one kind: what is measured where, and what a lost device costs."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from tests.helpers.fake_workbench import FakeBench, FakeMeasurer
from tests.tuning.tune.small_search import candidates, default, tuning
from tests.waiting import PATIENCE_S
from tirgemm.config import Config
from tirgemm.errors import Cancelled, DeviceUnavailable
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.measure.measurer import Measurer
from tirgemm.tuning.process.interrupts import StopSignal
from tirgemm.tuning.records import SampleSet, Status
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.verify.result import Verification

pytestmark = pytest.mark.usefixtures("all_scored")

TRIALS = 12


def helped(bench: FakeBench, helper: FakeMeasurer) -> FakeBench:
    """The bench, with the measuring process of another device beside its own."""
    bench.helpers = lambda: [cast(Measurer, helper)]
    return bench


def test_candidates_are_measured_on_all_devices_and_finalists_on_one() -> None:
    bench = FakeBench()
    helper = FakeMeasurer(bench)
    kernel = tuning(helped(bench, helper), trials=TRIALS).run()
    here, there = bench.fake.evaluated, helper.evaluated
    assert len(there) >= 2
    assert not set(here) & set(there)
    assert helper.timed == [], "races are on the search's own device"
    assert bench.fake.timed
    recorded = candidates(bench)
    assert {(c.status, c.attempt) for c in recorded} == {(Status.MEASURED, 1)}
    assert {*here, *there} <= {c.config for c in recorded}
    assert kernel.config == min((c.config for c in recorded), key=bench.us)


class Meeting(FakeMeasurer):
    """Answers only beside another that does."""

    def __init__(self, bench: FakeBench, barrier: threading.Barrier) -> None:
        super().__init__(bench)
        self._barrier = barrier

    def evaluate(
        self, package: bytes, regime: str, *, seed: int, against: dict[str, bytes], cancel: StopSignal
    ) -> tuple[Verification, SampleSet | None]:
        self._barrier.wait(PATIENCE_S)
        return super().evaluate(package, regime, seed=seed, against=against, cancel=cancel)


def test_devices_measure_at_the_same_time() -> None:
    bench, barrier = FakeBench(), threading.Barrier(2)
    search = tuning(helped(bench, Meeting(bench, barrier)), trials=TRIALS).search_loop()
    bench.measurer = Meeting(bench, barrier)
    search.propose()
    search.take_finished_builds(list(search.building))
    measured = search.measure(search.tuning.evaluator.measurers)
    assert [candidate.status for candidate in measured] == [Status.MEASURED] * 2


class Lost(FakeMeasurer):
    """Its device is not there any more."""

    def evaluate(
        self, package: bytes, regime: str, *, seed: int, against: dict[str, bytes], cancel: StopSignal
    ) -> tuple[Verification, SampleSet | None]:
        super().evaluate(package, regime, seed=seed, against=against, cancel=cancel)
        raise DeviceUnavailable("the node is lost")


def test_what_a_lost_device_had_is_measured_on_the_searchs_own() -> None:
    bench = FakeBench()
    lost = Lost(bench)
    tuning(helped(bench, lost), trials=TRIALS).run()
    assert lost.evaluated
    assert set(lost.evaluated) <= set(bench.fake.evaluated)
    assert {(c.status, c.attempt) for c in candidates(bench)} == {(Status.MEASURED, 1)}


def test_a_cancel_withdraws_what_every_device_had() -> None:
    bench, cancel = FakeBench(), threading.Event()

    def fate(config: Config) -> str:
        if config == default(bench):
            return "right"
        cancel.set()
        return "blocks"

    bench.fate = fate
    helper = FakeMeasurer(bench)
    with pytest.raises(Cancelled):
        tuning(helped(bench, helper), trials=TRIALS, cancel=cancel).run()
    interrupted = [config for config in helper.evaluated if config != default(bench)]
    assert interrupted
    for config in interrupted:
        assert bench.store.begin_attempt(tuning(bench).evaluator.key(config)) == 1


def test_on_gpus_the_first_candidate_is_the_yardstick_of_all_devices() -> None:
    bench = FakeBench()
    bench.device = named_device("sm_90a").with_(uuid="GPU-0", index=0)
    beside: list[bool] = []

    class Noting(FakeMeasurer):
        def evaluate(
            self, package: bytes, regime: str, *, seed: int, against: dict[str, bytes], cancel: StopSignal
        ) -> tuple[Verification, SampleSet | None]:
            beside.append(bool(against))
            return super().evaluate(package, regime, seed=seed, against=against, cancel=cancel)

    bench.measurer = Noting(bench)
    problem = Gemm.parse("64x64x64:f16:nt")
    search = Tuning(
        problem, helped(bench, Noting(bench)), "sustained", Budget(8, 600.0), families=["simt"]
    ).search_loop()
    search.propose()
    search.take_finished_builds(list(search.building))
    search.measure(search.tuning.evaluator.measurers)
    assert beside == [False, True]
