"""Records of kernel sets that come with the package in a file of their own: packed, and read beside those of
problems. No time here is real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.fake_workbench import CPU, FakeBench
from tests.helpers.scripts import script
from tests.helpers.shipped_files import elsewhere, measured_on, ship
from tirgemm import Budget, Config, Gemm
from tirgemm.bench.suites import suite_named
from tirgemm.errors import InvalidRequest
from tirgemm.families import FAMILIES
from tirgemm.gemm import Range, Regime
from tirgemm.service.views.candidate_list import recorded, recorded_places
from tirgemm.service.views.spaces.listing import SpaceFilter, list_spaces
from tirgemm.tuning.budget import covers
from tirgemm.tuning.records import Candidate, SampleSet
from tirgemm.tuning.set_tuning import SetTuning
from tirgemm.tuning.shipped_set import recorded_parts
from tirgemm.tuning_db import Database, SqlStore, shipped
from tirgemm.tuning_db.shipped.layered_store import LayeredStore
from tirgemm.tuning_db.shipped.records import ShippedRecords
from tirgemm.tuning_db.transfer import export_records, read_candidates

REGIME: Regime = "sustained"
WHOLE = Gemm.parse("4..64x96x64:f32:nt")
SMALLEST = WHOLE.with_(m=4)
ANOTHER = Gemm.parse("64x96x64:f32:nt")
SIZES = (4, 6, 8, 12, 16, 24, 32, 48, 64)
MODEL = CPU.key.split(":")[2]


def config_of(tile_m: int) -> Config:
    default = FAMILIES["x86"].default(WHOLE, CPU, REGIME)
    knobs = dict(default.knobs) | {"tile_m": tile_m, "vectors": 2, "unroll": 1, "threads": 1}
    return Config("x86", tuple((name, knobs[name]) for name, _ in default.knobs))


def us_of(tile: int, m: int) -> float:
    return {4: 10.0 + m, 8: 17 + m / 2, 14: 31 + m / 4, 6: 1000.0}[tile]


def sizes(*tiles: int, at: tuple[int, ...] = SIZES, problem: Gemm = WHOLE) -> list[Candidate]:
    """What a search of the range leaves at its sizes, of which the smallest is a single m."""
    return [
        candidate
        for size in at
        for candidate in measured_on(
            CPU, problem.with_(m=Range(4, size)), [(config_of(tile), us_of(tile, size)) for tile in tiles]
        )
    ]


SET = sizes(4, 8, 14)
RANGES = [candidate for candidate in SET if candidate.gemm != SMALLEST]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.embedded(tmp_path / "data") as actual:
        yield actual


def exported(database: Database, file: Path, candidates: list[Candidate]) -> Path:
    store = SqlStore(database)
    store.put_device(CPU)
    for candidate in candidates:
        store.add_candidate(candidate)
    export_records(database, file)
    return file


def raced(config: Config, us: float) -> Candidate:
    """A candidate of the smallest size as a published race leaves it, which was searched in another environment."""
    race = SampleSet((us,) * 3, "report", conditions={"fingerprint": CPU.fingerprint, "at": "2026-01-02"})
    (searched,) = measured_on(elsewhere(CPU), SMALLEST, [(config, 1.0)])
    return searched.with_(sample_sets=(*searched.sample_sets, race))


def parts_of(database: Database, records: ShippedRecords, m: Range) -> dict[str, Config]:
    bench = FakeBench(store=LayeredStore(database, records))
    bench.store.put_device(CPU)
    tuning = SetTuning(WHOLE.with_(m=m), bench, REGIME, families=["x86"])
    return {str(part.gemm.m): part.config for part in recorded_parts(tuning)}


# -- reading ---------------------------------------------------------------------------------------


def test_both_files_of_a_device_are_read_as_one(database: Database, tmp_path: Path) -> None:
    problems = measured_on(CPU, ANOTHER, [(config_of(tile), 5.0) for tile in (4, 8)])
    records = ship(tmp_path / "shipped", CPU, problems, SET)
    first, second = records.files_of(CPU.key)
    assert [shipped.holds_kernel_sets(file.path) for file in (first, second)] == [False, True]
    assert (records.of(CPU.key), records.files()) == (first, [first, second])
    assert [file for _, file in records.files_of_similar_devices(CPU)] == [first, second]
    store = LayeredStore(database, records)
    store.put_device(CPU)
    assert store.candidates(ANOTHER, CPU.key, REGIME) == problems
    assert store.candidates(WHOLE, CPU.key, REGIME) == SET[-3:]
    assert store.candidate(SET[-1].key) == SET[-1]
    assert {c.gemm for c in store.history(CPU.key, REGIME)} == {ANOTHER, *(c.gemm for c in SET)}
    near = [c.gemm for c in store.history(CPU.key, REGIME, near=WHOLE)]
    assert (near[:2], near[2:5]) == ([ANOTHER] * 2, [WHOLE] * 3), "problems come first"
    assert store.history(CPU.key, REGIME, limit=3) == [*problems, SET[0]]
    offer = store.offer(WHOLE, CPU, REGIME)
    assert offer is not None
    assert (offer.same, offer.candidates) == (True, tuple(SET[-3:]))


def test_pages_and_commands_list_both(database: Database, tmp_path: Path) -> None:
    problems = measured_on(CPU, ANOTHER, [(config_of(4), 5.0)])
    records = ship(tmp_path / "shipped", CPU, problems, SET)
    for gemm, count in ((ANOTHER, 1), (WHOLE, 3)):
        assert recorded_places(database, records, gemm) == {(CPU.key, REGIME): count}
        listed = recorded(database, gemm, CPU.key, REGIME, records)
        assert [entry.shipped for entry in listed.entries] == [True] * count
    spaces, after = list_spaces(database, records, SpaceFilter(), limit=50)
    assert after is None
    assert {space.gemm: space.shipped for space in spaces} == {
        str(ANOTHER): 1,
        **{str(candidate.gemm): 3 for candidate in SET},
    }


def test_a_device_of_which_sets_alone_are_shipped_has_its_records(database: Database, tmp_path: Path) -> None:
    records = ship(tmp_path, CPU, [], SET)
    (tmp_path / f"{MODEL}{shipped.SUFFIX}").unlink()
    alone = ShippedRecords(tmp_path)
    (file,) = alone.files_of(CPU.key)
    assert alone.of(CPU.key) is file
    assert parts_of(database, alone, Range(4, 64)) == parts_of(database, records, Range(4, 64)) != {}


def test_where_both_have_a_problem_that_of_problems_counts(database: Database, tmp_path: Path) -> None:
    problems = measured_on(CPU, SMALLEST, [(config_of(8), 5.0)])
    store = LayeredStore(database, ship(tmp_path / "shipped", CPU, problems, SET))
    store.put_device(CPU)
    assert store.candidates(SMALLEST, CPU.key, REGIME) == problems
    offer = store.offer(SMALLEST, CPU, REGIME)
    assert offer is not None
    assert offer.candidates == tuple(problems)
    history = store.history(CPU.key, REGIME)
    assert [c for c in history if c.key == problems[0].key] == problems


def test_another_device_or_environment_takes_no_set_for_its_own(database: Database, tmp_path: Path) -> None:
    records = ship(tmp_path / "shipped", CPU, [], SET)
    store = LayeredStore(database, records)
    another = CPU.with_(model="Another CPU 4000")
    for device, other in ((another, True), (elsewhere(CPU), False)):
        store.put_device(device)
        assert store.candidates(WHOLE, device.key, REGIME) == []
        offer = store.offer(WHOLE, device, REGIME, other_devices=True)
        assert offer is not None
        assert (offer.same, offer.answers, offer.other_device) == (False, False, other)
        bench = FakeBench(store=store)
        bench.device = device
        assert recorded_parts(SetTuning(WHOLE, bench, REGIME, families=["x86"])) == []
    assert store.offer(WHOLE, another, REGIME) is None, "nobody has asked for other devices"


def test_what_was_raced_of_the_smallest_size_counts_for_a_set(database: Database, tmp_path: Path) -> None:
    """Whose search in another environment says nothing: a config of it that was not raced is not known there."""
    of_set, other, not_raced = config_of(4), config_of(4).with_(unroll=2), config_of(4).with_(unroll=4)
    searched = measured_on(elsewhere(CPU), SMALLEST, [(not_raced, 0.1)])
    others = {"13..48": config_of(8), "49..64": config_of(14)}
    for us, parts in ((3.0, {"4": other, "5..12": of_set}), (30.0, {"4..12": of_set})):
        problems = [raced(of_set, 9.0), raced(other, us), *searched]
        records = ship(tmp_path / f"{us} us", CPU, problems, RANGES)
        assert parts_of(database, records, Range(4, 64)) == parts | others


def test_without_a_race_of_the_smallest_size_or_without_its_winner_there_is_no_set(
    database: Database, tmp_path: Path
) -> None:
    searched = measured_on(elsewhere(CPU), SMALLEST, [(config_of(4), 1.0)])
    gone = Config("x86", config_of(4).knobs[:-1])
    for number, (problems, is_set) in enumerate(
        (
            (searched, False),
            ([raced(config_of(4), 3.0)], True),
            ([raced(config_of(4), 3.0), raced(gone, 2.0)], False),
        )
    ):
        records = ship(tmp_path / str(number), CPU, problems, RANGES)
        assert bool(parts_of(database, records, Range(4, 64))) is is_set, number


# -- packing ---------------------------------------------------------------------------------------


def shipped_set_records(path: Path) -> set[tuple[str, Any]]:
    return {(str(candidate.gemm.m), candidate.config["tile_m"]) for candidate in read_candidates(path)}


def test_of_an_export_the_script_packs_the_sizes_of_whole_sets_and_nothing_else(
    database: Database, tmp_path: Path
) -> None:
    nowhere_fastest = sizes(6)
    other_sizes = [
        *measured_on(CPU, WHOLE.with_(m=Range(4, 20)), [(config_of(4), 30.0)]),  # the first part of a set
        *measured_on(CPU, WHOLE.with_(m=Range(25, 32)), [(config_of(8), 30.0)]),
        *measured_on(CPU, WHOLE.with_(m=25), [(config_of(8), 30.0)]),
        *measured_on(CPU, ANOTHER, [(config_of(8), 30.0)]),
        *measured_on(CPU, WHOLE, [(config_of(8), 30.0)], "isolated"),
    ]
    unfinished = sizes(4, 8, at=(4, 6, 8, 16, 64), problem=WHOLE.with_(n=97))
    file = exported(database, tmp_path / "all.jsonl.gz", [*SET, *nowhere_fastest, *other_sizes, *unfinished])
    module: Any = script("scripts/ship_records.py")
    folder = tmp_path / "shipped"
    folder.mkdir()
    (path,), sets = module.ship_sets([file], folder)
    assert path == folder / f"{MODEL}.sets.jsonl.gz"
    assert shipped_set_records(path) == {(str(c.gemm.m), c.config["tile_m"]) for c in SET}
    assert {c.regime for c in read_candidates(path)} == {REGIME}
    assert sets.names == ["4..64x96x64:f32:nt, sustained"]
    assert sets.left_out == ["4..64x97x64:f32:nt, sustained lacks m = 12, 24, 32, 48"]
    (tmp_path / "again").mkdir()
    (again,), _ = module.ship_sets([path], tmp_path / "again")
    assert shipped_set_records(again) == shipped_set_records(path), "it may be given again"


def test_a_packed_set_is_cut_as_its_export_is(database: Database, tmp_path: Path) -> None:
    file = exported(database, tmp_path / "all.jsonl.gz", [*SET, *sizes(6)])
    module: Any = script("scripts/ship_records.py")
    folder = tmp_path / "shipped"
    folder.mkdir()
    module.ship_sets([file], folder)
    with Database.embedded(tmp_path / "another") as another:
        for m in (Range(4, 64), Range(4, 24)):
            packed = parts_of(another, ShippedRecords(folder), m)
            assert packed == parts_of(another, ship(tmp_path / f"to {m.high}", CPU, SET), m)
            assert packed
        assert parts_of(another, ShippedRecords(folder), Range(8, 64)) == {}


@pytest.mark.parametrize(
    ("problems", "smallest", "is_packed"),
    [
        ([], SET[:3], True),
        ([], [], False),
        (measured_on(CPU, SMALLEST, [(config_of(4), 5.0)]), SET[:3], True),
        (measured_on(CPU, SMALLEST, [(config_of(4), 5.0)]), [], True),
        ([raced(config_of(4), 5.0)], [], True),
        (measured_on(elsewhere(CPU), SMALLEST, [(config_of(4), 5.0)]), SET[:3], False),
    ],
)
def test_the_smallest_size_is_of_the_file_of_problems_where_that_has_it(
    database: Database,
    tmp_path: Path,
    problems: list[Candidate],
    smallest: list[Candidate],
    is_packed: bool,
) -> None:
    """No problem is shipped twice, and a set that lacks a size is not shipped."""
    folder = tmp_path / "shipped"
    ship(folder, CPU, problems)
    file = exported(database, tmp_path / "all.jsonl", [*smallest, *RANGES])
    module: Any = script("scripts/ship_records.py")
    if not is_packed:
        with pytest.raises(
            InvalidRequest, match=r"^no kernel set is whole: 4\.\.64x96x64:f32:nt, sustained lacks m = 4"
        ):
            module.ship_sets([file], folder)
        return
    (path,), _ = module.ship_sets([file], folder)
    first, second = ShippedRecords(folder).files_of(CPU.key)
    assert second.path == path
    assert not {*first.places} & {*second.places}
    assert SMALLEST in first.gemms | second.gemms
    with Database.embedded(tmp_path / "another") as another:
        assert parts_of(another, ShippedRecords(folder), Range(4, 64))


def test_what_is_in_the_file_of_sets_is_not_packed_into_that_of_problems(database: Database, tmp_path: Path) -> None:
    alone = measured_on(CPU, ANOTHER, [(config_of(8), 30.0)])
    file = exported(database, tmp_path / "all.jsonl.gz", [*SET, *alone])
    folder = tmp_path / "shipped"
    folder.mkdir()
    module: Any = script("scripts/ship_records.py")
    (path,) = module.ship([file], folder)
    assert {c.gemm for c in read_candidates(path)} == {ANOTHER, *(c.gemm for c in SET)}
    path.unlink()
    module.ship_sets([file], folder)
    assert module.ship([file], folder) == [path]
    assert {c.gemm for c in read_candidates(path)} == {ANOTHER}


def test_without_a_range_of_m_there_is_no_set(database: Database, tmp_path: Path) -> None:
    file = exported(database, tmp_path / "all.jsonl.gz", SET[:3])
    module: Any = script("scripts/ship_records.py")
    folder = tmp_path / "shipped"
    folder.mkdir()
    with pytest.raises(InvalidRequest, match="no kernel set is whole: no m is a range"):
        module.ship_sets([file], folder)
    assert [*folder.iterdir()] == []


def test_the_option_packs_sets_and_says_which(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module: Any = script("scripts/ship_records.py")
    (tmp_path / "shipped").mkdir()
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    monkeypatch.setattr(module, "SIDES", tmp_path / "sides.json")
    file = exported(database, tmp_path / "all.jsonl.gz", [*SET, *sizes(4, at=(4, 64), problem=WHOLE.with_(n=97))[:1]])
    assert module.main(["--sets", str(file)]) == 0
    path = tmp_path / "shipped" / f"{MODEL}.sets.jsonl.gz"
    said = capsys.readouterr().out.splitlines()
    assert said == ["whole: 4..64x96x64:f32:nt, sustained", f"{path}: {path.stat().st_size:,} bytes"]
    assert "[64, 96, 64]" in (tmp_path / "sides.json").read_text(), "no seed draws its sizes"
    assert module.main(["--sets"]) == module.main(["--sets", "--other"]) == 2
    assert "ship_records.py --sets FILE.jsonl.gz..." in capsys.readouterr().out


# -- the package's own -----------------------------------------------------------------------------


H200 = "cuda:sm_90a:nvidia-h200:132"


def h200_bench(database: Database, **changes: Any) -> FakeBench:
    """A workbench of an H200 with the driver and TVM that its sets were measured under, or as it is changed."""
    bench = FakeBench(store=LayeredStore(database))
    bench.device = ShippedRecords().files_of(H200)[-1].devices[-1].with_(uuid="GPU-0", **changes)
    bench.store.put_device(bench.device)
    return bench


def test_every_set_of_the_package_is_whole_and_no_problem_is_shipped_twice(database: Database) -> None:
    problems, sets = ShippedRecords().files_of(H200)
    assert not {*problems.places} & {*sets.places}
    assert {regime for _, _, regime in sets.places} == {REGIME}
    widest: dict[Gemm, Gemm] = {}
    for gemm in sorted(sets.gemms, key=lambda gemm: gemm.m_max):
        widest[gemm.with_(m=gemm.m_min)] = gemm
    assert {*widest.values()} <= {*suite_named("sets").gemms}
    bench = h200_bench(database)
    for smallest, whole in widest.items():
        assert isinstance(whole.m, Range)
        for m in (whole.m, Range(1, 768), Range(1, 3)):
            parts = recorded_parts(SetTuning(whole.with_(m=m), bench, REGIME))
            assert parts, (whole, m)
            assert [part.gemm.m_min for part in parts] == [1, *(part.gemm.m_max + 1 for part in parts[:-1])]
            assert parts[-1].gemm.m_max == m.high
            offer = bench.store.offer(smallest, bench.device, REGIME)
            assert offer is not None
            timed = offer.raced or {c.config for c in offer.candidates if c.sample_sets}
            assert parts[0].config in timed, "it was timed at m = 1"
        for m in (Range(1, 1000), Range(64, 8192)):
            assert recorded_parts(SetTuning(whole.with_(m=m), bench, REGIME)) == []


@pytest.mark.parametrize("m", [Range(1, 8192), Range(1, 192)])
def test_a_range_of_a_layer_on_an_h200_is_answered_by_the_set_that_was_shipped(database: Database, m: Range) -> None:
    gemm = Gemm.parse("1..8192x4096x4096:f16:nt").with_(m=m)
    bench = h200_bench(database)
    record = SetTuning(gemm, bench, REGIME).run()
    assert bench.fake.evaluated == []
    assert (record.role, record.shipped, record.portable) == ("tuned", True, False)
    assert record.timings.ended == "shipped"
    assert record.timings.members is not None
    parts = recorded_parts(SetTuning(gemm, bench, REGIME))
    assert [one.m for one in record.timings.members] == [str(part.gemm.m) for part in parts]
    assert covers(record, Budget())


def test_under_another_driver_nothing_of_a_set_of_the_package_is_taken_unmeasured(database: Database) -> None:
    gemm = Gemm.parse("1..3x4096x4096:f16:nt")
    bench = h200_bench(database, environment=(("tvm", "0.27.0.post1"), ("driver", "1.2"), ("cuda", "13.0")))
    assert recorded_parts(SetTuning(gemm, bench, REGIME)) == []
    record = SetTuning(gemm, bench, REGIME).run()
    offers = [bench.store.offer(gemm.with_(m=Range(1, m)), bench.device, REGIME) for m in (1, 2, 3)]
    assert all(offer is not None and not offer.answers for offer in offers)
    measured = {*bench.fake.evaluated}
    assert all(offer is not None and measured & {c.config for c in offer.candidates} for offer in offers)
    assert (record.role, record.shipped, record.portable) == ("tuned", True, True)
