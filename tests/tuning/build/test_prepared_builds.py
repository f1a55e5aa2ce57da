"""Builds of jobs that wait: begun once, kept for the job that takes them, given up with the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

from tests.tuning.build.heard_builds import HeardBuilds
from tirgemm.config import Config
from tirgemm.errors import BuildFailed, StoreError
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build.prepared import KEPT, PreparedBuilds
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench

DEVICE = named_device("sm_90a")
FIRST, SECOND = Gemm(64, 64, 64), Gemm(96, 64, 64)
ONE, TWO = (Config("planted", (("what", what),)) for what in ("one", "two"))


@pytest.fixture
def builders() -> HeardBuilds:
    return HeardBuilds()


@pytest.fixture
def prepared(builders: HeardBuilds) -> PreparedBuilds:
    return PreparedBuilds(DEVICE, builders)


def of(*configs: Config) -> Callable[[], Iterable[Config]]:
    return lambda: configs


def test_builds_of_a_waiting_job_begin_once_in_idle_time(prepared: PreparedBuilds, builders: HeardBuilds) -> None:
    for _ in range(2):
        prepared.prepare({(FIRST, "opening"): of(ONE, TWO)})
    assert builders.asked == [(FIRST, ONE), (FIRST, TWO)]
    assert all(build.idle for build in builders.builds)


def test_what_is_wanted_of_a_problem_twice_is_built_once(prepared: PreparedBuilds, builders: HeardBuilds) -> None:
    prepared.prepare({(FIRST, "fallback"): of(ONE)})
    prepared.prepare({(FIRST, "opening"): of(ONE, TWO)})
    assert builders.asked == [(FIRST, ONE), (FIRST, TWO)]
    builders.begin()
    assert prepared.take(FIRST, ONE) is builders.builds[0].future
    prepared.prepare({(FIRST, "fallback"): of(ONE)})
    assert len(builders.builds) == 2, "it was taken"


def test_a_job_takes_what_has_begun_and_asks_anew_for_the_rest(prepared: PreparedBuilds, builders: HeardBuilds) -> None:
    prepared.prepare({(FIRST, "opening"): of(ONE)})
    builders.begin()
    with prepared.held(FIRST):
        assert prepared.take(FIRST, ONE) is builders.builds[0].future
        assert prepared.take(FIRST, ONE) is None, "it is taken once"
        assert prepared.take(FIRST, TWO) is prepared.take(SECOND, ONE) is None
    prepared.prepare({(SECOND, "opening"): of(TWO)})
    assert prepared.take(SECOND, TWO) is None
    assert builders.builds[1].future.cancelled(), "its turn would be the last"


def test_a_build_that_failed_is_taken_with_its_failure(prepared: PreparedBuilds, builders: HeardBuilds) -> None:
    prepared.prepare({(FIRST, "opening"): of(ONE)})
    builders.builds[0].future.set_exception(BuildFailed("ptxas: too many registers"))
    taken = prepared.take(FIRST, ONE)
    assert taken is not None
    with pytest.raises(BuildFailed, match="registers"):
        taken.result()


def test_what_no_waiting_job_needs_any_more_is_given_up(prepared: PreparedBuilds, builders: HeardBuilds) -> None:
    prepared.prepare({(FIRST, "opening"): of(ONE), (SECOND, "opening"): of(ONE)})
    first, second = (build.future for build in builders.builds)
    with prepared.held(FIRST):
        prepared.prepare({})
        assert (first.cancelled(), second.cancelled()) == (False, True), "the first one's job runs"
        prepared.prepare({(FIRST, "opening"): of(TWO)})
        assert len(builders.builds) == 2, "which needs nothing more"
    assert first.cancelled()
    prepared.prepare({(FIRST, "opening"): of(TWO)})
    assert builders.asked[-1] == (FIRST, TWO)


def test_nothing_is_given_up_while_it_is_not_known_what_will_be_held(
    prepared: PreparedBuilds, builders: HeardBuilds
) -> None:
    prepared.prepare({(FIRST, "opening"): of(ONE), (SECOND, "opening"): of(ONE)})
    first, second = (build.future for build in builders.builds)
    with ExitStack() as holding:
        with prepared.kept():
            prepared.prepare({})
            assert not first.cancelled()
            holding.enter_context(prepared.held(FIRST))
        prepared.prepare({})
        assert (first.cancelled(), second.cancelled()) == (False, True)
    assert first.cancelled()


def test_two_jobs_of_a_problem_hold_what_was_begun_for_it_until_both_have_ended(
    prepared: PreparedBuilds, builders: HeardBuilds
) -> None:
    prepared.prepare({(FIRST, "one job"): of(ONE), (FIRST, "another job"): of(ONE, TWO)})
    assert builders.asked == [(FIRST, ONE), (FIRST, TWO)]
    with prepared.held(FIRST):
        with prepared.held(FIRST):
            pass
        assert not any(build.future.cancelled() for build in builders.builds)
    assert all(build.future.cancelled() for build in builders.builds)


def test_what_could_not_be_asked_for_is_asked_for_again(prepared: PreparedBuilds, builders: HeardBuilds) -> None:
    def broken() -> Iterable[Config]:
        raise StoreError("the database is gone")

    with pytest.raises(StoreError):
        prepared.prepare({(FIRST, "opening"): broken})
    prepared.prepare({(FIRST, "opening"): of(ONE)})
    assert builders.asked == [(FIRST, ONE)]


def test_what_was_given_up_while_it_was_looked_for_is_not_begun(
    prepared: PreparedBuilds, builders: HeardBuilds
) -> None:
    def meanwhile() -> Iterable[Config]:
        prepared.prepare({})
        return [ONE]

    prepared.prepare({(FIRST, "opening"): meanwhile})
    assert builders.asked == []


def test_what_is_abandoned_is_no_build_ahead_any_more(builders: HeardBuilds) -> None:
    """A search that is stopped gives its builds up; what its last stages need is built then."""
    asked: Any = builders
    with Workbench(DEVICE, MemoryStore(), processes=asked) as bench:
        bench.build_ahead(FIRST, ONE)
        bench.build_ahead(FIRST, TWO)
        running, ended = (build.future for build in builders.builds)
        ended.set_exception(BuildFailed("ptxas: too many registers"))
        bench.abandon_builds()
        assert builders.builds[0].given_up.is_set()
        assert bench.build(FIRST, ONE) is not running
        assert not builders.builds[-1].given_up.is_set()
        assert bench.build(FIRST, TWO) is ended, "what had ended before is kept"


def test_what_was_begun_for_a_purpose_is_built_once_all_of_it_has_ended(
    prepared: PreparedBuilds, builders: HeardBuilds
) -> None:
    assert not prepared.built((FIRST, "fallback"))
    prepared.prepare({(FIRST, "fallback"): of(ONE, TWO), (SECOND, "fallback"): of()})
    for build in builders.builds:
        assert not prepared.built((FIRST, "fallback"))
        build.future.set_exception(BuildFailed("ptxas: too many registers"))
    assert prepared.built((FIRST, "fallback"))
    assert not prepared.built((FIRST, "opening")), "nobody wanted that"
    assert not prepared.built((SECOND, "fallback")), "nothing is built ahead for it, so it is still to be built"
    prepared.take(FIRST, ONE)
    assert not prepared.built((FIRST, "fallback")), "it does not lie here any more"


def test_a_build_that_is_kept_is_there_until_the_job_of_its_problem_has_ended(
    prepared: PreparedBuilds, builders: HeardBuilds
) -> None:
    build: Future[Any] = Future()
    prepared.keep(FIRST, ONE, build)
    assert prepared.take(FIRST, TWO) is prepared.take(SECOND, ONE) is None
    prepared.prepare({})
    with prepared.held(FIRST):
        assert prepared.take(FIRST, ONE) is prepared.take(FIRST, ONE) is build
    assert prepared.take(FIRST, ONE) is None
    for number in range(KEPT + 1):
        prepared.keep(FIRST.with_(m=1 + number), ONE, build)
    assert prepared.take(FIRST.with_(m=1), ONE) is None, "no more than so many"
    assert prepared.take(FIRST.with_(m=2), ONE) is build
    assert builders.builds == []


def test_a_workbench_takes_what_was_prepared(builders: HeardBuilds, prepared: PreparedBuilds) -> None:
    asked: Any = HeardBuilds()
    with Workbench(DEVICE, MemoryStore(), processes=asked) as bench:
        bench.prepared = prepared
        prepared.prepare({(FIRST, "opening"): of(ONE)})
        builders.begin()
        begun: Future[Any] = builders.builds[0].future
        assert bench.build(FIRST, ONE) is begun
        bench.build(FIRST, TWO)
        assert asked.asked == [(FIRST, TWO)]
        assert not asked.builds[0].idle
