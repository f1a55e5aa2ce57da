"""What a caller does between two batches of a search: on nobody's budget, and a cancel ends the search after it."""

from __future__ import annotations

import threading

import pytest

from tests.helpers.fake_workbench import FakeBench
from tests.tuning.tune.small_search import tuning
from tirgemm.errors import Cancelled


def test_the_search_s_clock_stands_still_between_batches(ahead: list[float]) -> None:
    def pause() -> None:
        ahead[0] += 1000.0

    record = tuning(FakeBench(), trials=12, seconds=300.0, between_batches=pause).run()
    assert ahead[0] >= 3000.0
    assert (record.timings.ended, record.trials) == ("trials", 12)


def test_a_cancel_between_batches_ends_the_search_before_the_next() -> None:
    bench, cancel = FakeBench(), threading.Event()
    built: list[int] = []

    def pause() -> None:
        built.append(len(bench.built))
        if len(built) == 2:
            cancel.set()

    with pytest.raises(Cancelled):
        tuning(bench, trials=12, cancel=cancel, between_batches=pause).run()
    assert len(built) == 2
    assert len(bench.built) == built[1], "nothing is built for a search that was cancelled"
