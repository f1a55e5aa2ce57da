"""The race that chooses on a GPU: how many finalists, for how long, and where their operands have no room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench, gpu_bench, hashed_us
from tirgemm import Budget, Gemm
from tirgemm.errors import DoesNotFit
from tirgemm.events import FinalistsRaced
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control

pytestmark = pytest.mark.usefixtures("all_scored")


def tuning(bench: FakeBench, **control: Any) -> Tuning:
    gemm = Gemm.parse("64x64x64:f16:nt")
    return Tuning(gemm, bench, "sustained", Budget(40, 600.0), families=["simt"], control=Control(**control))


@pytest.fixture
def bench() -> FakeBench:
    return gpu_bench()


def test_a_standard_search_races_six_finalists_and_the_default_for_a_second(bench: FakeBench) -> None:
    tuning(bench).run()
    chosen = [run for run in bench.fake.timed if run.options.reason == "selection"]
    assert [(len(run.configs), run.options.budget_s, run.options.min_samples) for run in chosen] == [(7, 1.0, 50)]


def test_where_each_finalist_has_no_room_for_operands_they_share_them_in_one_race(
    bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = bench.fake.time

    def small(package: bytes, options: RaceOptions, **more: Any) -> SampleSet:
        if not options.shared and len(more["against"]) > 1:
            raise DoesNotFit("it needs 1 TB")
        samples = time(package, options, **more)
        return replace(samples, conditions=samples.conditions | {"shared": options.shared})

    monkeypatch.setattr(bench.fake, "time", small)
    # So near to each other that a race with the buffers swapped would follow.
    bench.us = lambda config: 10 + hashed_us(config) / 1000
    raced: list[bool] = []
    record = tuning(bench, on_event=lambda e: raced.append(e.swapped) if isinstance(e, FinalistsRaced) else None).run()
    assert record.role == "tuned"
    assert raced == [False], "what is shared cannot be swapped"
    assert {run.options.shared for run in bench.fake.timed if run.options.reason == "selection"} == {True}
