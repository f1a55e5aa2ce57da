"""Races between the sizes that a search of a range compares: kept with its records, shipped, and read again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.scripts import script
from tests.helpers.shipped_files import ship
from tests.tuning.kernel_set.expecting_bench import EACH, HOPPER, Expecting, ExpectingBench, expected_us
from tirgemm.config import Config
from tirgemm.gemm import Gemm, Range
from tirgemm.tuning import search_loop, set_tuning, size_races, sweep
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.kernel_set.partition import Loss, valid_segments
from tirgemm.tuning.kernel_set.sizes import compared_sizes, cut_sizes, searched_sizes
from tirgemm.tuning.measure.requests import WARM_S, RaceOptions
from tirgemm.tuning.records import SEARCHED, Candidate, SampleSet, Status
from tirgemm.tuning.records.comparable_times import by_stage, comparable_times
from tirgemm.tuning.records.offer import ENVIRONMENT
from tirgemm.tuning.records.races_below import races_below
from tirgemm.tuning.set_tuning import SetTuning, tuning_class
from tirgemm.tuning.shipped_set import recorded_parts
from tirgemm.tuning.size_races import with_races
from tirgemm.tuning.tuning_task import Control
from tirgemm.tuning.verify.result import Verification
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.shipped.layered_store import LayeredStore
from tirgemm.tuning_db.shipped.records import ShippedRecords
from tirgemm.tuning_db.transfer import export_records, read_candidates

DEVICE = HOPPER.with_(environment=tuple((name, "1") for name in ENVIRONMENT["cuda"]))
WHOLE = Gemm.parse("1..512x28672x4096:f16:nt")
COMPARED = compared_sizes(Range(1, 512))
BETWEEN = [m for m in cut_sizes(Range(1, 512)) if m not in COMPARED]


def config(number: int) -> Config:
    return Config("wgmma", (("tile_m", number),))


def candidate(gemm: Gemm, number: int, *samples: SampleSet) -> Candidate:
    return Candidate(gemm, DEVICE.key, "sustained", config(number), Status.MEASURED, sample_sets=samples)


def raced(us: float, m: int, at: str) -> SampleSet:
    return SampleSet((us,) * 5, "smaller_m", conditions={"m": m, "at": at})


def test_the_latest_race_at_each_m_counts() -> None:
    first = candidate(WHOLE, 1, SampleSet((5.0,)), raced(2.0, 200, "1"), raced(3.0, 200, "2"), raced(4.0, 300, "1"))
    second = candidate(WHOLE, 2, raced(1.0, 200, "1"), raced(6.0, 300, "1"))
    third = candidate(WHOLE, 3, raced(9.0, 200, "2"), SampleSet((5.0,), "selection", conditions={"m": 200}))
    races = races_below([first, second, third])
    medians = {m: {one["tile_m"]: samples.median_us for one, samples in of_m.items()} for m, of_m in races.items()}
    assert medians == {200: {1: 3.0, 3: 9.0}, 300: {1: 4.0, 2: 6.0}}


def test_what_ran_beside_the_fastest_and_has_no_record_there_counts_too() -> None:
    at_200 = raced(2.0, 200, "2").beside(config(7).digest, (4.0,) * 5).beside("other", (1.0,) * 5)
    first, second = (
        candidate(WHOLE, 1, at_200),
        candidate(WHOLE, 2, raced(3.0, 200, "2").beside(config(1).digest, (9.0,))),
    )
    others = {one.digest: one for one in (config(1), config(7))}
    (race,) = races_below([first, second], others).values()
    assert {one["tile_m"]: samples.median_us for one, samples in race.items()} == {1: 2.0, 2: 3.0, 7: 4.0}
    (alone,) = races_below([first, second]).values()
    assert [*alone] == [config(1), config(2)]


def test_what_has_no_record_where_it_ran_is_kept_beside_what_was_faster() -> None:
    """Of five, by their times, the third and the fifth have a record; then the first turns out to be wrong, and the
    second is measured."""
    statuses = {config(3): Status.MEASURED, config(5): Status.MEASURED}
    recorded: list[tuple[int, SampleSet]] = []

    def record(key: Config, samples: SampleSet) -> None:
        recorded.append((int(key["tile_m"]), samples))

    def known(key: Config) -> SimpleNamespace | None:
        return SimpleNamespace(status=statuses[key]) if key in statuses else None

    tuning: Any = SimpleNamespace(
        evaluator=SimpleNamespace(key=lambda one: one), store=SimpleNamespace(candidate=known, add_samples=record)
    )
    size = size_races._SizeAbove(tuning, {})
    size._keep({config(number): raced(float(number), 200, "") for number in (4, 1, 5, 3, 2)})
    statuses |= {config(1): Status.WRONG, config(2): Status.MEASURED}
    size.record_measured()
    assert [number for number, _ in recorded] == [3, 5, 2]
    beside = {number: {*samples.baselines} for number, samples in recorded}
    assert beside == {2: {config(4).digest}, 3: {config(4).digest}, 5: set()}
    assert {*size.unrecorded} == {config(1), config(4)}
    (first,) = size.unrecorded[config(1)]
    assert {*first.baselines} == {config(2).digest, config(4).digest}


def test_a_race_counts_for_more_than_an_estimate() -> None:
    problems = [WHOLE.with_(m=Range(1, m)) for m in (200, 300, 400)]
    estimated = [{config(1): Loss(1.0, 1.0), config(2): Loss(1.1, 1.1)}] * 3
    races = {
        200: {config(1): raced(20.0, 200, ""), config(2): raced(10.0, 200, ""), config(9): raced(1.0, 200, "")},
        300: {config(2): raced(10.0, 300, "")},
    }
    shown = with_races(problems, estimated, races, 0)
    assert {one["tile_m"]: loss.ratio for one, loss in shown[0].items()} == {1: 2.0, 2: 1.0}
    assert {one["tile_m"]: loss.ratio for one, loss in shown[1].items()} == {1: 1.0, 2: 1.0}, "the fastest alone"
    assert shown[2] == estimated[2]


def test_a_race_at_a_smaller_m_says_nothing_of_the_largest() -> None:
    both = candidate(WHOLE, 1, SampleSet((5.0,)), raced(2.0, 200, "1"))
    assert both.search_us == 5.0
    assert comparable_times([both, candidate(WHOLE, 2, raced(1.0, 200, "1"))]) == {config(1): 5.0}
    assert by_stage(both.sample_sets, "sustained") == [both.sample_sets[0]]


class Surprising(Expecting):
    """Between the sizes that are compared a kernel takes up to a fifth longer than expected."""

    def time(self, package: bytes, options: RaceOptions, *, against: dict[str, bytes], **rest: Any) -> SampleSet:
        usual = super().time(package, options, against=against, **rest)
        longer = {name: self._longer(each, options) for name, each in {"": package, **against}.items()}
        beside = {name: tuple(us * longer[name] for us in taken) for name, taken in usual.baselines.items()}
        self.clock.now += 1.0
        under = {"at": f"{self.clock.now:09.1f}", "fingerprint": DEVICE.fingerprint}
        ours = tuple(us * longer[""] for us in usual.samples_us)
        return SampleSet(ours, options.reason, beside, usual.conditions | under)

    def evaluate(self, package: bytes, regime: str, **rest: Any) -> tuple[Verification, SampleSet]:
        verification, samples = super().evaluate(package, regime, **rest)
        under = {"at": f"{self.clock.now:09.1f}", "fingerprint": DEVICE.fingerprint}
        return verification, SampleSet(samples.samples_us, conditions=under)

    def _longer(self, package: bytes, options: RaceOptions) -> float:
        return 1.0 if options.m is None else longer(self.manifest(package).config, options.m)


def longer(config: Config, m: int) -> float:
    """By how much a kernel takes longer than expected between the sizes."""
    return 1.0 + 0.2 * hashlib.sha256(f"{config.digest}{m}".encode()).digest()[0] / 255


def bench_on(database: Database, records: ShippedRecords) -> ExpectingBench:
    bench = ExpectingBench()
    bench.device = DEVICE
    bench.store = LayeredStore(database, records)
    bench.store.put_device(DEVICE)
    bench.measurer = bench.fake = Surprising(bench)
    bench.fake.offered = ()
    return bench


def served(parts: Iterable[tuple[Gemm, Config]]) -> dict[int, Config]:
    """What serves each m between the sizes that are compared."""
    ranges = [(gemm.m_min, gemm.m_max, config) for gemm, config in parts]
    return {m: next(config for low, high, config in ranges if low <= m <= high) for m in BETWEEN}


def shipped(folder: Path, records: ShippedRecords) -> dict[int, Config]:
    with Database.embedded(folder) as database:
        parts = recorded_parts(SetTuning(WHOLE, bench_on(database, records), "sustained"))
        return served((part.gemm, part.config) for part in parts)


def slowdowns(configs: Mapping[int, Config], others: Mapping[int, Config]) -> list[float]:
    """How much longer the configs take than the others at each m."""
    times = [[expected_us(WHOLE.with_(m=m), of[m]) * longer(of[m], m) for m in BETWEEN] for of in (configs, others)]
    return [ours / theirs for ours, theirs in zip(*times, strict=True)]


def test_what_wins_between_two_sizes_and_is_wrong_at_the_next_serves_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.embedded(tmp_path / "here") as database:
        bench = bench_on(database, ShippedRecords(tmp_path))
        sizes = [WHOLE.with_(m=Range(1, m) if m > 1 else 1) for m in COMPARED]
        searched: set[Config] = set()
        usual = bench.fake.time

        def tried() -> list[Candidate]:
            return [one for gemm in sizes for one in bench.store.candidates(gemm, DEVICE.key, "sustained")]

        def time(package: bytes, options: RaceOptions, **rest: Any) -> SampleSet:
            if options.m is not None and not searched:
                searched.update(one.config for one in tried())
            return usual(package, options, **rest)

        monkeypatch.setattr(bench.fake, "time", time)
        bench.fate = lambda config: "wrong" if searched and config not in searched else "right"
        for timed in (search_loop, sweep):
            monkeypatch.setattr(timed, "time", SimpleNamespace(monotonic=lambda: bench.clock.now))
        monkeypatch.setattr(size_races, "time", SimpleNamespace(monotonic=lambda: 0.0))
        record = tuning_class(WHOLE)(WHOLE, bench, "sustained", Budget(4, 1200.0)).run()
        members = bench.fake.manifest(bench.store.get_blob(record.artifact_sha256)).kernels
        assert {member.config for member in members} <= searched
        assert {one.status for one in tried() if one.config not in searched} == {Status.WRONG}


def test_what_would_serve_between_the_sizes_is_raced_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few kernels what would serve is another than was estimated to be the fastest, at six of sixteen sizes. All
    that ran in the latest race at a size is on record."""
    few = partial(valid_segments, most=6)
    for module in (set_tuning, size_races):
        monkeypatch.setattr(module, "valid_segments", few)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(size_races, "time", SimpleNamespace(monotonic=lambda: clock.now))
    raced, contenders, warmed = list[int](), dict[int, set[Config]](), list[float]()
    with Database.embedded(tmp_path / "here") as database:
        bench = bench_on(database, ShippedRecords(tmp_path))
        for timed in (search_loop, sweep):
            monkeypatch.setattr(timed, "time", SimpleNamespace(monotonic=lambda: bench.clock.now))
        usual = bench.fake.time

        def time(package: bytes, options: RaceOptions, **rest: Any) -> SampleSet:
            if options.m is not None:
                raced.append(options.m)
                entries = (package, *rest["against"].values())
                contenders[options.m] = {bench.fake.manifest(entry).config for entry in entries}
                warmed.append(options.warm_s)
            return usual(package, options, **rest)

        def pause() -> None:
            clock.now = 2 * size_races.PAUSE_S if len(raced) >= 5 else 0.0

        monkeypatch.setattr(bench.fake, "time", time)
        control = Control(between_batches=pause)
        # In time each size has its first four tried, then what is the fastest there with other cache policies.
        budget = Budget(10, 4 * EACH * len(searched_sizes(Range(1, 512))) - 1)
        record = tuning_class(WHOLE)(WHOLE, bench, "sustained", budget, control=control).run()
        members = bench.fake.manifest(bench.store.get_blob(record.artifact_sha256)).kernels
        serving = served((member.gemm, member.config) for member in members)
        sizes = [WHOLE.with_(m=Range(1, m) if m > 1 else 1) for m in COMPARED]
        tried = [one for gemm in sizes for one in bench.store.candidates(gemm, DEVICE.key, "sustained")]
        races = races_below(tried, {one.config.digest: one.config for one in tried})
    borders = {member.gemm.m_min for member in members}
    never = [m for m in BETWEEN if serving[m] not in races[m] and not borders & {*range(m - 16, m + 1)}]
    assert not never
    assert sum(raced.count(m) > 1 for m in BETWEEN) == 6, "of which each has a second race, with what would serve"
    known = {one.config for one in tried}
    assert {m: {*of} for m, of in races.items()} == {m: of & known for m, of in contenders.items()}
    assert max(map(len, contenders.values())) > size_races.RACED
    pauses = [at for at, warm_s in enumerate(warmed) if warm_s == size_races.COLD_WARM_S]
    assert pauses == [0, 5], "ahead of the first, and where time passes"
    assert {*warmed} == {size_races.COLD_WARM_S, WARM_S}


def test_a_shipped_set_is_cut_by_the_races_of_its_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every m between the sizes that are compared it has what the search chose there, and all that ran there."""
    contenders = dict[int, set[Config]]()
    with Database.embedded(tmp_path / "here") as database:
        bench = bench_on(database, ShippedRecords(tmp_path))
        for timed in (search_loop, sweep):
            monkeypatch.setattr(timed, "time", SimpleNamespace(monotonic=lambda: bench.clock.now))
        monkeypatch.setattr(size_races, "time", SimpleNamespace(monotonic=lambda: 0.0))
        usual = bench.fake.time

        def time(package: bytes, options: RaceOptions, **rest: Any) -> SampleSet:
            if options.m is not None:
                entries = (package, *rest["against"].values())
                contenders[options.m] = {bench.fake.manifest(entry).config for entry in entries}
            return usual(package, options, **rest)

        monkeypatch.setattr(bench.fake, "time", time)
        record = tuning_class(WHOLE)(WHOLE, bench, "sustained", Budget(4, 1200.0)).run()
        members = bench.fake.manifest(bench.store.get_blob(record.artifact_sha256)).kernels
        chosen = served((member.gemm, member.config) for member in members)
        export_records(database, tmp_path / "records.jsonl.gz")
    module: Any = script("scripts/ship_records.py")
    folder = tmp_path / "shipped"
    folder.mkdir()
    (path,), _ = module.ship_sets([tmp_path / "records.jsonl.gz"], folder)
    packed = [*read_candidates(path)]
    below = {samples.conditions["m"] for one in packed for samples in one.sample_sets if samples.reason == "smaller_m"}
    assert below == {*BETWEEN}
    known = {one.config.digest: one.config for one in packed}
    races = {m: {*of} for m, of in races_below(packed, known).items()}
    assert races == {m: of & {*known.values()} for m, of in contenders.items()}
    of_races = slowdowns(shipped(tmp_path / "there", ShippedRecords(folder)), chosen)
    searched = [c.with_(sample_sets=tuple(s for s in c.sample_sets if s.reason in SEARCHED)) for c in packed]
    without = ship(tmp_path / "without", DEVICE, [], searched)
    estimated = slowdowns(shipped(tmp_path / "elsewhere", without), chosen)
    assert max(of_races) <= 1.0
    assert max(estimated) > 1.05
