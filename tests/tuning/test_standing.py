"""How a search stands, as its events tell it: by all that is recorded, without reading that for each of them."""

from __future__ import annotations

from typing import cast

import pytest

from tests.helpers.fake_workbench import FakeBench, FakeMeasurer
from tests.tuning.tune.small_search import tuning
from tirgemm.events import CandidateRecorded, Event
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.measure.measurer import Measurer
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning.records.memory_store import MemoryStore

pytestmark = pytest.mark.usefixtures("all_scored")


class Counting(MemoryStore):
    """Counts how often all candidates of a problem were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def candidates(self, gemm: Gemm, device_key: str, regime: Regime) -> list[Candidate]:
        self.read += 1
        return super().candidates(gemm, device_key, regime)


@pytest.mark.parametrize("helped", [False, True])
def test_every_event_says_how_the_search_stands_by_the_records(helped: bool) -> None:
    bench = FakeBench()
    if helped:
        helper = FakeMeasurer(bench)
        bench.helpers = lambda: [cast(Measurer, helper)]
    first = tuning(bench, trials=6)
    first.run()
    told: list[CandidateRecorded] = []

    def compare(event: Event) -> None:
        if isinstance(event, CandidateRecorded):
            told.append(event)
            assert event.standing == first.standing()

    tuning(bench, trials=20, on_event=compare).run()
    assert len(told) == 14
    assert told[-1].standing is not None
    assert told[-1].standing.tried == 20


def test_a_search_does_not_read_all_records_for_each_candidate() -> None:
    def reads(trials: int) -> int:
        bench = FakeBench()
        bench.store = Counting()
        tuning(bench, trials=trials).run()
        return bench.store.read

    assert reads(24) == reads(12)


def test_what_was_tried_anew_counts_once() -> None:
    bench = FakeBench()
    task = tuning(bench, trials=4)
    task.run()
    tried, before = task.tried(), task.standing()
    best = next(c for c in task.recorded() if str(c.config) == before.best)
    tried.take_in([best.with_(status=Status.CRASHED, sample_sets=())])
    after = tried.standing()
    assert (after.tried, after.measured) == (before.tried, before.measured - 1)
    assert after.best != before.best
