"""Kernel sets of shipped records: cut by recorded times, certified here, never searched. No time here is real."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.fake_workbench import CPU, FakeBench
from tests.helpers.scripts import script
from tests.helpers.shipped_files import elsewhere, measured_on, ship
from tests.present_timings import search_of, shipped_of
from tirgemm import Budget, Config, Gemm
from tirgemm.artifact import Trust, read
from tirgemm.device import Device
from tirgemm.errors import Cancelled
from tirgemm.events import Event, KernelSelected
from tirgemm.families import FAMILIES, is_valid
from tirgemm.families.choice import expected_times_us
from tirgemm.gemm import Range, Regime
from tirgemm.hardware import named_device
from tirgemm.tuning import shipped_set
from tirgemm.tuning.budget import covers
from tirgemm.tuning.default_set import size_defaults
from tirgemm.tuning.kernel_set.sizes import compared_sizes, searched_sizes
from tirgemm.tuning.records import Candidate, CandidateKey, KernelRecord, SampleSet, Status
from tirgemm.tuning.records.offer import ENVIRONMENT
from tirgemm.tuning.records.row_signatures import row_signatures
from tirgemm.tuning.set_tuning import SetTuning
from tirgemm.tuning.shipped_set import OFFERED, recorded_parts
from tirgemm.tuning.tuning_task import Control
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.shipped.layered_store import LayeredStore
from tirgemm.tuning_db.transfer import export_records, read_candidates

pytestmark = pytest.mark.usefixtures("all_scored")

GEMM = Gemm.parse("4..64x96x64:f32:nt")
REGIME: Regime = "sustained"
SIZES = (4, 6, 8, 12, 14, 16, 24, 32, 48, 56, 64)
TILES = (4, 8, 14)


def config_of(tile_m: int) -> Config:
    default = FAMILIES["x86"].default(GEMM, CPU, REGIME)
    knobs = dict(default.knobs) | {"tile_m": tile_m, "vectors": 2, "unroll": 1, "threads": 1}
    return Config("x86", tuple((name, knobs[name]) for name, _ in default.knobs))


def us_of(tile: int, m: int) -> float:
    """Equal for 4 and 8 at m = 14, for 8 and 14 at m = 56."""
    return {4: 10.0 + m, 8: 17 + m / 2, 14: 31 + m / 4}[tile]


def recorded(
    device: Device = CPU, sizes: tuple[int, ...] = SIZES, us: Callable[..., float] = us_of, problem: Gemm = GEMM
) -> list[Candidate]:
    """What a search of the range and the measurements behind it leave."""
    return [
        candidate
        for size in sizes
        for candidate in measured_on(
            device, problem.with_(m=Range(4, size)), [(config_of(tile), us(tile, size)) for tile in TILES]
        )
    ]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.embedded(tmp_path / "data") as actual:
        yield actual


@pytest.fixture
def bench_with(database: Database, tmp_path: Path) -> Callable[..., FakeBench]:
    """A function that makes a workbench of this CPU beneath whose store lie records of a device."""

    def make(candidates: list[Candidate], device: Device = CPU) -> FakeBench:
        bench = FakeBench(store=LayeredStore(database, ship(tmp_path / "shipped", device, candidates)))
        bench.store.put_device(bench.device)
        return bench

    return make


def answer(bench: FakeBench, gemm: Gemm = GEMM, **control: Any) -> KernelRecord:
    return SetTuning(gemm, bench, REGIME, families=["x86"], control=Control(**control)).run()


def members(bench: FakeBench, record: KernelRecord) -> Sequence[Any]:
    """What the manifest says of the kernels of a set."""
    return read(bench.store.get_blob(record.artifact_sha256), Trust.of(bench.signer.public)).manifest.kernels


def table(bench: FakeBench, record: KernelRecord) -> dict[str, int]:
    """The tile of the kernel that serves each range."""
    return {str(member.gemm.m): int(member.config["tile_m"]) for member in members(bench, record)}


def test_the_range_is_cut_as_by_the_search_and_nothing_is_searched(bench_with: Any) -> None:
    bench, events = bench_with(recorded()), list[Event]()
    record = answer(bench, on_event=events.append)
    assert table(bench, record) == {"4..14": 4, "15..56": 8, "57..64": 14}
    assert bench.fake.evaluated == []
    assert bench.built == [config_of(tile) for tile in TILES]
    assert (record.role, record.shipped, record.portable, record.gemm) == ("tuned", True, False, GEMM)
    assert record.certificate is not None
    assert (record.timings.ended, search_of(record.timings).sizes) == ("shipped", (14, 56, 64))
    assert shipped_of(record.timings).same
    assert record.timings.members is not None
    assert [one.m for one in record.timings.members] == ["4..14", "15..56", "57..64"]
    assert "serves m = 57..64 by shipped times" in record.timings.reason
    assert [event.kernel for event in events if isinstance(event, KernelSelected)] == [record.id]
    assert bench.store.kernel(GEMM, CPU.key, REGIME) == record
    assert covers(record, Budget())
    part = CandidateKey(GEMM.with_(m=Range(15, 56)), CPU.key, REGIME, config_of(8).digest)
    candidate = bench.store.candidate(part)
    assert candidate.status is Status.MEASURED, "what was timed here is recorded"
    assert candidate.search_us == candidate.sample_sets[0].median_us, "a search of the part takes it for timed"


def test_what_is_the_fastest_at_a_size_between_those_searched_may_serve_a_part(bench_with: Any) -> None:
    whole = Range(4, 128)
    between = max(set(compared_sizes(whole)) - set(searched_sizes(whole)))
    candidates = [
        candidate
        for size in compared_sizes(whole)
        for candidate in measured_on(
            CPU,
            GEMM.with_(m=Range(4, size)),
            [(config_of(tile), us_of(tile, size)) for tile in TILES] + [(config_of(6), 1.0)] * (size == between),
        )
    ]
    parts = recorded_parts(SetTuning(GEMM.with_(m=whole), bench_with(candidates), REGIME, families=["x86"]))
    (served,) = (part for part in parts if part.gemm.m_min <= between <= part.gemm.m_max)
    assert served.config == config_of(6)
    assert {part.config for part in parts} > {config_of(6)}


def test_a_range_within_the_searched_one_is_served_too(bench_with: Any) -> None:
    bench = bench_with(recorded())
    narrow = GEMM.with_(m=Range(4, 32))
    assert table(bench, answer(bench, narrow)) == {"4..14": 4, "15..32": 8}
    assert recorded_parts(SetTuning(GEMM.with_(m=Range(5, 64)), bench, REGIME)) == []


def test_a_race_of_the_search_counts_for_more_than_its_times(bench_with: Any) -> None:
    """In which the tile of 14 is nowhere the fastest."""

    def raced(candidate: Candidate) -> Candidate:
        size, tile = candidate.gemm.m_max, int(candidate.config["tile_m"])
        under = dict(candidate.sample_sets[0].conditions)
        sets = [
            SampleSet((us,) * 9, "selection", conditions=under | {"at": at})
            for us, at in ((1.0, "2025-01-01"), (100.0 if tile == 14 else us_of(tile, size), "2026-01-02"))
        ]
        return candidate.with_(sample_sets=(*candidate.sample_sets, *sets))

    bench = bench_with([raced(candidate) for candidate in recorded()])
    assert table(bench, answer(bench)) == {"4..14": 4, "15..64": 8}


def test_all_parts_are_in_the_build_pool_before_the_first_is_certified(
    bench_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, begun = bench_with(recorded()), list[list[Config]]()
    certify = bench.fake.verify

    def verify(*arguments: Any, **options: Any) -> Any:
        begun.append(list(bench.built))
        return certify(*arguments, **options)

    monkeypatch.setattr(bench.fake, "verify", verify)
    bench.fate = lambda config: "uncertified" if config == config_of(8) else "right"
    record = answer(bench)
    assert begun[0] == [config_of(tile) for tile in TILES]
    assert set(table(bench, record).values()) == {4, 14}
    assert bench.built.count(config_of(8)) == 1
    assert bench._ahead == {}, "what the cut without it has no use for is given up"


@pytest.mark.parametrize("fate", ["uncertified", "unbuildable"])
def test_a_part_that_fails_here_is_recorded_so_and_the_range_cut_without_it(bench_with: Any, fate: str) -> None:
    bench = bench_with(recorded())
    bench.fate = lambda config: fate if config == config_of(8) else "right"
    record = answer(bench)
    assert set(table(bench, record).values()) == {4, 14}
    assert bench.built.count(config_of(8)) == 1, "not tried in other parts"
    assert record.timings.ended == "shipped"
    part = CandidateKey(GEMM.with_(m=Range(15, 56)), CPU.key, REGIME, config_of(8).digest)
    assert bench.store.candidate(part).status is not Status.MEASURED


@pytest.mark.parametrize(("is_stored", "right"), [(False, {4, 14}), (True, {8})])
def test_a_member_that_gives_a_row_other_bits_is_marked_wrong_and_the_range_cut_without_it(
    bench_with: Any, is_stored: bool, right: set[int]
) -> None:
    """Other than what is stored of the row class; where nothing is, than most members."""
    gemm = GEMM.with_(invariant=True)
    bench = bench_with(recorded(problem=gemm))
    if is_stored:
        bench.fate = lambda _: "alone"
        SetTuning(gemm.with_(m=Range(500, 501)), bench, REGIME, Budget.of("none")).fallback()
    bench.fate = lambda config: "alone" if config == config_of(8) else "right"
    record = answer(bench, gemm)
    served = read(bench.store.get_blob(record.artifact_sha256), Trust.of(bench.signer.public)).manifest.kernels
    assert {int(kernel.config["tile_m"]) for kernel in served} == right
    assert len(set(row_signatures(record.certificate))) == 1
    assert record.timings.ended == "shipped"
    for m, tile in (Range(4, 14), 4), (Range(15, 56), 8), (Range(57, 64), 14):
        candidate = bench.store.candidate(CandidateKey(gemm.with_(m=m), CPU.key, REGIME, config_of(tile).digest))
        assert (candidate.status is Status.WRONG) is (tile not in right)


def test_at_the_last_set_whose_members_give_a_row_other_bits_the_default_answers(
    bench_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gemm = GEMM.with_(invariant=True)
    bench = bench_with(recorded(problem=gemm))
    bench.fate = lambda config: "alone" if config == config_of(8) else "right"
    monkeypatch.setattr(shipped_set, "MOST_CUTS", 1)
    record = SetTuning(gemm, bench, REGIME, families=["x86"]).fallback()
    assert record.timings.ended != "shipped"
    assert config_of(8) not in [kernel.config for kernel in members(bench, record)]


def test_what_failed_in_a_part_before_does_not_serve_it(bench_with: Any) -> None:
    part, bench = GEMM.with_(m=Range(15, 56)), bench_with(recorded())
    bench.store.add_candidate(Candidate(part, CPU.key, REGIME, config_of(8), Status.WRONG))
    parts = recorded_parts(SetTuning(GEMM, bench, REGIME))
    assert config_of(8) not in [each.config for each in parts if each.gemm == part]
    assert sum(each.gemm.m_max - each.gemm.m_min + 1 for each in parts) == 61


def test_where_all_fail_the_default_answers(bench_with: Any) -> None:
    bench = bench_with(recorded())
    bench.fate = lambda config: "uncertified" if config in map(config_of, TILES) else "right"
    record = SetTuning(GEMM, bench, REGIME, families=["x86"]).fallback()
    assert (record.role, record.shipped) == ("fallback", False)


@pytest.mark.parametrize("missing", [12, 64])
def test_without_one_of_its_sizes_no_kernel_answers_for_the_range(bench_with: Any, missing: int) -> None:
    bench = bench_with(recorded(sizes=tuple(size for size in SIZES if size != missing)))
    record = SetTuning(GEMM, bench, REGIME, families=["x86"]).fallback()
    assert (record.role, record.shipped) == ("fallback", False)


def test_records_of_another_family_than_the_best_predicted_do_not_answer(
    bench_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.tuning import shipped_set as module

    monkeypatch.setattr(module, "fastest_families", lambda *_: frozenset({"another"}))
    assert recorded_parts(SetTuning(GEMM, bench_with(recorded()), REGIME)) == []


def test_cancelling_ends_it(bench_with: Any) -> None:
    bench = bench_with(recorded())
    control = Control()
    control.cancel.set()
    with pytest.raises(Cancelled):
        SetTuning(GEMM, bench, REGIME, control=control).run()
    assert bench.store.kernel(GEMM, CPU.key, REGIME) is None


def test_of_another_environment_only_what_is_offered_is_tried_at_each_size(bench_with: Any) -> None:
    there = elsewhere(CPU)
    bench = bench_with(recorded(there), there)
    bench.us = lambda config: 10.0 if config == config_of(8) else 20.0
    record = answer(bench)
    assert table(bench, record)["7..64"] == 8, table(bench, record)
    assert (record.role, record.shipped, record.portable) == ("tuned", True, True)
    assert record.timings.ended == "shipped"
    assert isinstance(GEMM.m, Range)
    defaults = {FAMILIES["x86"].default(GEMM.with_(m=Range(4, size)), CPU, REGIME) for size in searched_sizes(GEMM.m)}
    assert set(bench.fake.evaluated) <= {*map(config_of, TILES), *defaults}


def test_of_a_search_the_script_ships_what_the_set_is_cut_by(database: Database, tmp_path: Path) -> None:
    store = SqlStore(database)
    store.put_device(CPU)
    default = FAMILIES["x86"].default(GEMM, CPU, REGIME)
    others = [c for size in SIZES for c in measured_on(CPU, GEMM.with_(m=Range(4, size)), [(default, 900.0)])]
    failed = recorded()[0].with_(gemm=GEMM.with_(m=Range(15, 56)), status=Status.WRONG, sample_sets=())
    part = measured_on(CPU, GEMM.with_(m=Range(25, 64)), [(config_of(14), 47.0)])
    unfinished = measured_on(CPU, GEMM.with_(n=97, m=Range(4, 64)), [(config_of(14), 47.0)])
    alone = measured_on(CPU, GEMM.with_(m=64), [(config_of(14), 47.0)])
    for candidate in [*recorded(), *others, failed, *part, *unfinished, *alone]:
        store.add_candidate(candidate)
    export_records(database, tmp_path / "records.jsonl.gz")
    module: Any = script("scripts/ship_records.py")
    (path,) = module.ship([tmp_path / "records.jsonl.gz"], tmp_path)
    shipped = {(str(c.gemm.m), c.config, c.status) for c in read_candidates(path)}
    wanted = {(str(c.gemm.m), c.config, c.status) for c in [*recorded(), others[0], *alone]}
    assert shipped == wanted
    (again,) = module.ship([path], tmp_path)
    assert {(str(c.gemm.m), c.config, c.status) for c in read_candidates(again)} == wanted, "it may be given again"


def test_the_script_ships_sets_that_have_records_of_knobs_that_a_family_had_once(
    database: Database, tmp_path: Path
) -> None:
    store = SqlStore(database)
    store.put_device(CPU)
    old = Config("x86", config_of(4).knobs[:-1])
    for candidate in (*recorded(), *measured_on(CPU, GEMM.with_(m=Range(4, 32)), [(old, 90.0)])):
        store.add_candidate(candidate)
    export_records(database, tmp_path / "records.jsonl.gz")
    module: Any = script("scripts/ship_records.py")
    (path,) = module.ship([tmp_path / "records.jsonl.gz"], tmp_path)
    assert {candidate.config for candidate in read_candidates(path)} == {config_of(tile) for tile in TILES}


HOPPER = named_device("sm_90a").with_(uuid="GPU-0", environment=tuple((name, "1") for name in ENVIRONMENT["cuda"]))
LAYER = Gemm.parse("64..512x4096x14336:f16:nt")


def searched_on_hopper() -> tuple[list[Candidate], set[Config]]:
    """What a search leaves that measures what the ranking model expects: at each size that is compared its default and
    those of the sizes from the last one on; and the configs that are among the two fastest at none of these."""
    defaults = {gemm.m_max: config for gemm, (_, config) in size_defaults(LAYER, HOPPER, REGIME).items()}
    compared = compared_sizes(Range(64, 512))
    recorded: list[Candidate] = []
    fastest: set[Config] = set()
    for below, size in pairwise((0, *compared)):
        gemm = LAYER.with_(m=Range(64, size) if size > 64 else 64)
        configs = dict.fromkeys(config for m, config in defaults.items() if below < m <= size or m in compared)
        valid = {config: FAMILIES["wgmma"] for config in configs if is_valid(gemm, config, HOPPER)}
        (row,) = expected_times_us([gemm], valid, HOPPER, REGIME)
        times = sorted(zip(valid, row.tolist(), strict=True), key=itemgetter(1))
        recorded += measured_on(HOPPER, gemm, times)
        fastest |= {config for config, _ in times[:OFFERED]}
    return recorded, {candidate.config for candidate in recorded} - fastest


def test_a_shipped_set_is_cut_between_the_sizes_of_its_records_by_estimates(bench_with: Any) -> None:
    candidates, _ = searched_on_hopper()
    bench = bench_with(candidates, HOPPER)
    bench.device = HOPPER
    bench.store.put_device(HOPPER)
    parts = recorded_parts(SetTuning(LAYER, bench, REGIME, families=["wgmma"]))
    assert {part.gemm.m_max for part in parts} - {*compared_sizes(Range(64, 512))}
    defaults = size_defaults(LAYER, HOPPER, REGIME)
    for gemm, (family, default) in defaults.items():
        served = next(part.config for part in parts if part.gemm.m_min <= gemm.m_max <= part.gemm.m_max)
        times = expected_times_us([gemm], {default: family, served: FAMILIES["wgmma"]}, HOPPER, REGIME)[0]
        assert times[0] / times[-1] >= 0.93, gemm


def test_what_is_estimated_to_be_the_fastest_between_two_sizes_is_shipped(database: Database, tmp_path: Path) -> None:
    candidates, nowhere_fastest = searched_on_hopper()
    store = SqlStore(database)
    store.put_device(HOPPER)
    for candidate in candidates:
        store.add_candidate(candidate)
    export_records(database, tmp_path / "records.jsonl.gz")
    module: Any = script("scripts/ship_records.py")
    (path,) = module.ship([tmp_path / "records.jsonl.gz"], tmp_path)
    shipped = {candidate.config for candidate in read_candidates(path) if isinstance(candidate.gemm.m, Range)}
    assert shipped & nowhere_fastest
