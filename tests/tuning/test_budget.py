"""Budgets: their limits, and which stored kernel answers a request with one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.artifact_samples import CONFIG, cpu
from tests.helpers.fake_workbench import FakeBench
from tests.present_timings import search_of
from tirgemm import Budget, Gemm
from tirgemm.families import family_named
from tirgemm.timings import ConfigOrigin, SearchSummary, Timings
from tirgemm.tuning.budget import MAX_TRIALS, SEARCHED, covers
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.tune import Tuning

pytestmark = pytest.mark.usefixtures("all_scored")

GEMM = Gemm.parse("61x67x71:f16:nt")


def record(trials: int, role: Any = "tuned", **search: Any) -> KernelRecord:
    timings = Timings(search=SearchSummary(**search)) if search else Timings()
    return KernelRecord(GEMM, cpu(), "sustained", role, CONFIG, "a" * 64, "b" * 64, 10, None, timings, trials)


@pytest.mark.parametrize(
    ("actual", "budget", "answers"),
    [
        (record(32), Budget(32, 60), True),
        (record(32), Budget(2, 9999), True),
        (record(2), Budget(500, 60), False),
        (record(2, ended="trials", seconds=60.0), Budget(3, 60), False),
        (record(9, ended="exhausted", seconds=60.0), Budget(500, 9999), True),
        (record(9, ended="seconds", seconds=60.0), Budget(500, 60), True),
        (record(9, ended="seconds", seconds=60.0), Budget(500, 61), False),
        (record(9, ended="interrupted", seconds=60.0), Budget(10, 1), False),
        (record(9, ended="interrupted", seconds=60.0), Budget(9, 1), False),
        (record(9, ended="shipped"), Budget(), True),
        (record(9, ended="shipped", shipped=ConfigOrigin("cpu", {}, same=True, configs=SEARCHED)), Budget(), True),
        (record(9, ended="shipped", shipped=ConfigOrigin("cpu", {}, same=True, configs=SEARCHED - 1)), Budget(), False),
        (record(9, ended="shipped", shipped=ConfigOrigin("cpu", {}, same=True, configs=4)), Budget.of("quick"), True),
        (record(32, "fallback"), Budget(1, 1), False),
        (record(32, "unverified"), Budget(1, 1), False),
    ],
)
def test_a_stored_kernel_answers_what_its_search_has_already_done(
    actual: KernelRecord, budget: Budget, answers: bool
) -> None:
    assert covers(actual, budget) is answers


def test_a_search_writes_down_why_it_ended() -> None:
    ends = {}
    for trials, seconds in ((4, 600.0), (MAX_TRIALS, 0.3)):
        actual = Tuning(GEMM, FakeBench(), budget=Budget(trials, seconds)).run()
        ends[actual.timings.ended] = search_of(actual.timings).seconds
        assert covers(actual, Budget(trials, seconds))
        assert not covers(actual, Budget(MAX_TRIALS, 60.5))
    assert ends == {"trials": 600.0, "seconds": 0.3}


def test_a_space_that_is_used_up_covers_every_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tirgemm.tuning.search.search.Search.ask", lambda _self, _count: [])
    actual = Tuning(GEMM, FakeBench(), budget=Budget(32, 600)).run()
    assert actual.timings.ended == "exhausted"
    assert covers(actual, Budget(MAX_TRIALS, 9999))


def test_more_trials_come_on_top_of_those_that_are_recorded() -> None:
    assert Budget(32, 60).on_top_of(100) == Budget(132, 60, Effort.EXHAUSTIVE)
    assert Budget.of("none").on_top_of(100) == Budget.of("none"), "which searches nothing"
    assert Budget(32, 60).on_top_of(MAX_TRIALS) == Budget(MAX_TRIALS, 60, Effort.EXHAUSTIVE)


def test_a_search_of_some_families_answers_only_who_asks_for_those() -> None:
    actual = record(32, ended="exhausted", seconds=60.0, families=["x86"])
    assert covers(actual, Budget(32, 60), ("x86",))
    assert not covers(actual, Budget(2, 1))
    assert not covers(actual, Budget(2, 1), ("x86", "simt"))
    assert covers(record(32), Budget(32, 60), ("x86",))


def test_a_search_of_some_families_writes_down_which(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search_of(Tuning(GEMM, FakeBench(), budget=Budget(1, 600)).run().timings).families is None
    other = type("Other", (), {"name": "other"})()
    monkeypatch.setattr(
        "tirgemm.tuning.tune.chosen_families",
        lambda *asked: (family_named("x86"), *(() if asked[2] else (other,))),
    )
    actual = Tuning(GEMM, FakeBench(), budget=Budget(1, 600), families=["x86"]).run()
    assert search_of(actual.timings).families == ("x86",)
