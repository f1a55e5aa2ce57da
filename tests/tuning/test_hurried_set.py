"""A set whose search has no time: every size has its best tried, and no part is served by what is slow there.

The shipped ranking model stands for the GPU: a kernel takes what it expects. Nothing here is a real time.
"""

from __future__ import annotations

import threading
from itertools import count, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tuning.kernel_set import expecting_bench
from tests.tuning.kernel_set.expecting_bench import EACH, HOPPER, ExpectingBench, expected_us
from tirgemm.artifact import Trust, read
from tirgemm.config import Config
from tirgemm.errors import Cancelled
from tirgemm.families import family_named, supporting
from tirgemm.families.choice import opening
from tirgemm.gemm import Gemm, Range
from tirgemm.tuning import search_loop, set_tuning, size_races, sweep
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.kernel_set.partition import UNKNOWN, Loss
from tirgemm.tuning.kernel_set.sizes import compared_sizes, cut_sizes, searched_sizes
from tirgemm.tuning.measure import MeasurementCrashed
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import CandidateKey, SampleSet, Status
from tirgemm.tuning.set_tuning import tuning_class
from tirgemm.tuning.sweep import AT_ONCE, Sweep
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control
from tirgemm.tuning.verify.result import Verification

SECONDS = 120.0
RANGE = Gemm.parse("1..512x28672x4096:f16:nt")
# Between the sizes at which kernels are compared, too.
SIZES = (1, 5, 13, 34, 55, 89, 144, 233, 300, 377, 512)
LEAST = 0.85


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ExpectingBench:
    made = ExpectingBench()
    for module in (search_loop, sweep):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.clock.now))
    return made


@pytest.mark.parametrize("effort", [Effort.QUICK, Effort.STANDARD])
@pytest.mark.parametrize("processes", [2, 16])
def test_each_problem_has_its_best_tried_before_any_has_more(
    bench: ExpectingBench, effort: Effort, processes: int
) -> None:
    bench.pool.processes = processes
    gemms = [Gemm(m, 28672, 4096) for m in (64, 144, 233)]
    tunings = [Tuning(gemm, bench, "sustained", Budget(12, 600.0, effort)) for gemm in gemms]
    Sweep(tunings, seconds=600.0).run()
    measurer: Any = bench.measurer
    begun = measurer.order[: AT_ONCE * len(gemms)]
    assert {gemm: begun.count(gemm) for gemm in gemms} == dict.fromkeys(gemms, AT_ONCE)
    least = {Effort.QUICK: Effort.QUICK.first, Effort.STANDARD: 12}[effort]
    assert all(measurer.order.count(gemm) >= least for gemm in gemms)


@pytest.mark.parametrize("in_time", [True, False])
def test_between_the_sizes_that_are_compared_kernels_are_raced_while_there_is_time(
    bench: ExpectingBench, monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    raced: list[tuple[int, set[int]]] = []
    searched: set[Config] = set()
    usual, ticks = bench.fake.time, repeat(0) if in_time else count(0, 60)
    compared = compared_sizes(Range(1, 512))
    sizes = [Range(1, size) if size > 1 else 1 for size in compared]

    def measured() -> set[Config]:
        return {c.config for m in sizes for c in bench.store.candidates(RANGE.with_(m=m), HOPPER.key, "sustained")}

    def time(package: bytes, options: RaceOptions, *, against: dict[str, bytes], **rest: Any) -> SampleSet:
        if options.m is not None:
            searched.update(searched or measured())
            raced.append((options.m, {bench.fake.manifest(one).gemm.m_max for one in (package, *against.values())}))
        return usual(package, options, against=against, **rest)

    monkeypatch.setattr(bench.fake, "time", time)
    monkeypatch.setattr(size_races, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    record = tuning_class(RANGE)(RANGE, bench, "sustained", Budget(4, SECONDS)).run()
    assert {m for m, _ in raced} <= {*cut_sizes(Range(1, 512))} - {*compared}
    assert all(built == {min(size for size in compared if size > m)} for m, built in raced)
    assert bool(raced) is in_time
    assert bench._ahead == {}, "what was not raced in time is not built"
    before = searched or measured()
    kernels = bench.fake.manifest(bench.store.get_blob(record.artifact_sha256)).kernels
    new = [kernel.config for kernel in kernels if kernel.config not in before]
    assert bool(new) is in_time, "what was tried nowhere serves only by a race"
    assert {kernel.config for kernel in kernels} <= measured(), "and is measured as the others are"


def test_between_the_sizes_that_are_compared_the_races_come_first_where_most_is_at_stake(
    bench: ExpectingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is what is estimated to be lost where the fastest at the next size that is compared serves."""
    stakes, raced = dict[int, float](), list[int]()
    usual, between = bench.fake.time, size_races.race_between

    def time(package: bytes, options: RaceOptions, *, against: dict[str, bytes], **rest: Any) -> SampleSet:
        raced.extend([options.m] if options.m is not None else [])
        return usual(package, options, against=against, **rest)

    def race_between(whole: Any, problems: list[Gemm], losses: list[dict[Config, Loss]], *rest: Any) -> None:
        compared = compared_sizes(Range(1, 512))
        at = {gemm.m_max: row for gemm, row in zip(problems, losses, strict=True)}
        for m, row in at.items():
            above = at[min(size for size in compared if size >= m)]
            stakes[m] = row.get(min(above, key=lambda config: above[config].ratio), UNKNOWN).ratio
        between(whole, problems, losses, *rest)

    monkeypatch.setattr(bench.fake, "time", time)
    monkeypatch.setattr(set_tuning, "race_between", race_between)
    monkeypatch.setattr(size_races, "SERVING_ROUNDS", 0)  # what would serve is raced behind these
    monkeypatch.setattr(size_races, "time", SimpleNamespace(monotonic=lambda: 100.0 * len(raced)))
    tuning_class(RANGE)(RANGE, bench, "sustained", Budget(4, 1500.0)).run()
    assert len(raced) == 7, "until 0.4 of 1500 s are over"
    assert [stakes[m] for m in raced] == sorted((stakes[m] for m in raced), reverse=True)
    assert stakes[raced[0]] > stakes[raced[-1]] > 1.0
    assert raced[0] != min(raced)


def test_what_fails_between_two_sizes_is_recorded_so_and_not_tried_at_the_next(
    bench: ExpectingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each size that which is the fastest at the first one raced below it."""
    usual, failing = bench.fake.time, dict[Gemm, Config]()
    sizes: dict[Gemm, set[int]] = {}

    def time(package: bytes, options: RaceOptions, *, against: dict[str, bytes], **rest: Any) -> SampleSet:
        raced = [bench.fake.manifest(one) for one in (package, *against.values())]
        gemm = raced[0].gemm
        if options.m is not None and failing.setdefault(gemm, raced[0].config) in [one.config for one in raced]:
            sizes.setdefault(gemm, set()).add(options.m)
            raise MeasurementCrashed("the measuring process died: signal 11 (SIGSEGV)")
        return usual(package, options, against=against, **rest)

    monkeypatch.setattr(bench.fake, "time", time)
    tuning_class(RANGE)(RANGE, bench, "sustained", Budget(4, SECONDS)).run()
    assert len(failing) > 1
    assert {len(of_gemm) for of_gemm in sizes.values()} == {1}, sizes
    for gemm, config in failing.items():
        candidate = bench.store.candidate(CandidateKey(gemm, HOPPER.key, "sustained", config.digest))
        assert candidate is not None
        assert candidate.status is Status.CRASHED


@pytest.mark.parametrize("between", [True, False])
def test_a_search_that_is_stopped_in_a_race_of_a_size_ends_with_one_kernel(
    bench: ExpectingBench, monkeypatch: pytest.MonkeyPatch, between: bool
) -> None:
    """The race is given up, as the measuring process is half a second after a stop."""
    usual, stop = bench.fake.time, threading.Event()

    def time(package: bytes, options: RaceOptions, *, against: dict[str, bytes], **rest: Any) -> SampleSet:
        if not stop.is_set() and options.reason == ("smaller_m" if between else "selection"):
            stop.set()
            raise Cancelled("cancelled")
        return usual(package, options, against=against, **rest)

    monkeypatch.setattr(bench.fake, "time", time)
    tuning = tuning_class(RANGE)(RANGE, bench, "sustained", Budget(4, SECONDS), control=Control(stop=stop))
    record = tuning.run()
    assert stop.is_set()
    assert (record.role, record.interrupted, record.timings.members) == ("tuned", True, None)
    assert bench.abandoned == 1, "what is built for other sizes is given up"


def test_a_search_that_is_stopped_while_its_set_is_certified_is_an_interrupted_one(
    bench: ExpectingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, stop = bench.fake.time, threading.Event()

    def time(package: bytes, options: RaceOptions, **rest: Any) -> SampleSet:
        if options.reason == "report":
            stop.set()
        return usual(package, options, **rest)

    monkeypatch.setattr(bench.fake, "time", time)
    record = tuning_class(RANGE)(RANGE, bench, "sustained", Budget(4, SECONDS), control=Control(stop=stop)).run()
    assert record.timings.members, "what was chosen is certified"
    assert record.interrupted


def test_between_two_races_or_certificates_the_caller_does_what_it_does_between_batches(
    bench: ExpectingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On nobody's budget: each time it takes a thousand seconds."""
    now, paused, raced, verify = SimpleNamespace(seconds=0.0), set[str](), list[int](), bench.fake.verify
    usual, certified = bench.fake.time, list[bool]()  # the first is the fallback's, ahead of the search

    def time(package: bytes, options: RaceOptions, *, against: dict[str, bytes], **rest: Any) -> SampleSet:
        if options.reason in ("selection", "smaller_m"):
            paused.remove("race")
        if options.m is not None:
            raced.append(options.m)
        return usual(package, options, against=against, **rest)

    def verification(package: bytes, **options: Any) -> Verification:
        if certified:
            paused.remove("certificate")
        certified.append(True)
        return verify(package, **options)

    def pause() -> None:
        now.seconds += 1000.0
        paused.update(("race", "certificate"))

    monkeypatch.setattr(bench.fake, "time", time)
    monkeypatch.setattr(bench.fake, "verify", verification)
    monkeypatch.setattr(size_races, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    control = Control(between_batches=pause)
    tuning_class(RANGE)(RANGE, bench, "sustained", Budget(4, SECONDS), control=control).run()
    assert len(raced) > 1


def test_no_part_of_a_set_is_served_by_what_is_slow_there(bench: ExpectingBench) -> None:
    record = tuning_class(RANGE)(RANGE, bench, "sustained", Budget(12, SECONDS)).run()
    kernels = read(bench.store.get_blob(record.artifact_sha256), Trust.of(bench.signer.public)).manifest.kernels
    for m in SIZES:
        gemm = RANGE.with_(m=m)
        served = next(kernel for kernel in kernels if kernel.gemm.m_min <= m <= kernel.gemm.m_max)
        best = min(expected_us(gemm, c) for c in opening(supporting(gemm, HOPPER), gemm, HOPPER, "sustained", 16))
        assert best / expected_us(gemm, served.config) >= LEAST, (m, served.config)


def test_what_is_fastest_at_a_size_is_tried_with_other_cache_policies(
    bench: ExpectingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever time the search has: here each size's first configs alone."""

    def expected(gemm: Gemm, config: Config) -> float:
        return expected_us(gemm, config) * (1.0 if config["eviction"] == "first_last" else 1.1)

    monkeypatch.setattr(expecting_bench, "expected_us", expected)
    few = RANGE.with_(m=Range(1, 48))
    usual = family_named("wgmma").default(few, HOPPER, "sustained")["eviction"]
    record = tuning_class(few)(few, bench, "sustained", Budget(10, SECONDS)).run()
    kernels = bench.fake.manifest(bench.store.get_blob(record.artifact_sha256)).kernels
    assert usual != "first_last"
    assert {kernel.config["eviction"] for kernel in kernels} == {"first_last"}


def test_the_trials_of_a_size_bound_what_is_tried_there_with_other_cache_policies(
    bench: ExpectingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_tuning, "VISITORS", 0)
    few = RANGE.with_(m=Range(1, 8))
    sizes = [few.with_(m=Range(1, size) if size > 1 else 1) for size in searched_sizes(Range(1, 8))]
    for trials, seconds in ((5, 4 * EACH * len(sizes) - 1), (8, 1.0)):
        tuning_class(few)(few, bench, "sustained", Budget(trials, seconds)).run()
        tried = {len(bench.store.candidates(gemm, HOPPER.key, "sustained")) for gemm in sizes}
        assert tried == {trials}, "four of the first, then variants"
