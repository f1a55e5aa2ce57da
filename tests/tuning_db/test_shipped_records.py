"""Shipped records: the package's own file, reading one problem of a file, and the layer beneath a database."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.storage.databases import DEVICE, GEMM, OTHER_DEVICE, OTHER_GEMM, candidate, config, samples
from tests.helpers.fake_workbench import FakeBench
from tests.helpers.scripts import script
from tests.helpers.shipped_files import elsewhere, measured_on, ship
from tirgemm import Gemm
from tirgemm.bench.results import FORMAT
from tirgemm.errors import InvalidRequest, StoreError
from tirgemm.families import family_named
from tirgemm.gemm import Range, Regime, regime_named
from tirgemm.hardware import named_device
from tirgemm.tuning.records import Candidate, CandidateKey, SampleSet, Status
from tirgemm.tuning.records.comparable_times import fastest
from tirgemm.tuning.records.offer import Offer, raced_configs, same_environment
from tirgemm.tuning.shipped_kernel import TRIED, offered_configs
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning_db import Database, SqlStore, shipped
from tirgemm.tuning_db.shipped.layered_store import LayeredStore
from tirgemm.tuning_db.shipped.packing import pack
from tirgemm.tuning_db.shipped.records import ShippedFile, ShippedRecords
from tirgemm.tuning_db.transfer import export_records, import_records, read_candidates, read_devices

H200 = "cuda:sm_90a:nvidia-h200:132"
REGIME: Regime = "sustained"


def times(*numbers: int) -> list[tuple[Any, float]]:
    return [(config(number), 10.0 + number) for number in numbers]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.embedded(tmp_path / "data") as actual:
        yield actual


@pytest.fixture
def store(database: Database, tmp_path: Path) -> LayeredStore:
    """On a device whose class, driver and TVM are those of three shipped candidates."""
    layered = LayeredStore(database, ship(tmp_path / "shipped", DEVICE, measured_on(DEVICE, GEMM, times(1, 2, 3))))
    layered.put_device(DEVICE)
    return layered


def key(number: int) -> CandidateKey:
    return CandidateKey(GEMM, DEVICE.key, REGIME, config(number).digest)


# -- the package's own file ------------------------------------------------------------------------


def test_the_records_of_the_package_are_under_2_mib_and_name_what_was_measured() -> None:
    assert sum(path.stat().st_size for path in shipped.FOLDER.glob("*.gz")) < 2 << 20
    file = ShippedRecords().of(H200)
    assert file is not None
    assert {device.key for device in file.devices} == {H200}
    assert len({device.fingerprint for device in file.devices}) == len(file.devices)
    read = read_candidates(file.path)
    assert len(read) > 16_000
    one_by_one = [c for place in file.places for c in file.candidates(*place)]
    assert one_by_one == read, "the members are the file"
    assert read_devices(file.path) == list(file.devices)


def test_every_shipped_problem_has_configs_that_todays_families_take() -> None:
    """What was raced comes first. Of the fastest some have a knob's value that is gone: the next ones stand for
    them."""
    file = ShippedRecords().of(H200)
    assert file is not None
    device = file.devices[0]
    bench = FakeBench()
    bench.device = device
    best, answered = 0, 0
    for key, text, regime in file.places:
        candidates = file.candidates(key, text, regime)
        tuning = Tuning(Gemm.parse(text), bench, regime_named(regime))
        offered = offered_configs(tuning, Offer(device, candidates, same=False))
        if len(candidates) < TRIED:  # of a collection that was cut off: it is learnt from, and answers nothing
            assert len(offered) == len(candidates)
            continue
        # Of a range of m those are shipped that a kernel set is cut by.
        assert len(offered) == TRIED or (offered and isinstance(tuning.gemm.m, Range)), (text, regime)
        best += offered[0] == [*raced_configs(candidates), *fastest(candidates)][0]
        answered += 1
    assert best > 0.95 * len(file.places)
    assert best > 0.98 * answered


@pytest.mark.timing
def test_a_look_up_takes_less_than_50_ms_and_again_less_than_1() -> None:
    first: list[float] = []
    again: list[float] = []
    for _ in range(5):
        records = ShippedRecords()
        for times_taken in (first, again):
            start = time.perf_counter()
            file = records.of(H200)
            assert file is not None
            assert len(file.candidates(H200, "4096x4096x4096:f16:nt", REGIME)) > 200
            times_taken.append(1e3 * (time.perf_counter() - start))
    assert min(first) < 50
    assert min(again) < 1


def test_a_device_that_was_never_measured_reads_no_file(database: Database, tmp_path: Path) -> None:
    (tmp_path / f"nvidia-h200{shipped.SUFFIX}").write_bytes(b"read me and fail")
    layered = LayeredStore(database, ShippedRecords(tmp_path))
    layered.put_device(DEVICE)
    layered.add_candidate(candidate(1))
    assert layered.candidates(GEMM, DEVICE.key, REGIME) == [candidate(1)]
    assert layered.history(DEVICE.key, REGIME) == [candidate(1)]
    with pytest.raises(InvalidRequest, match="nvidia-h200"):
        layered.candidates(GEMM, OTHER_DEVICE.key, REGIME)


# -- files -----------------------------------------------------------------------------------------


def test_equal_records_make_equal_files_which_databases_import(database: Database, tmp_path: Path) -> None:
    given = [*measured_on(DEVICE, GEMM, times(1, 2)), *measured_on(DEVICE, OTHER_GEMM, times(2), "isolated")]
    given.append(given[0].with_(config=config(9), status=Status.BUILD_FAILED, message="no", sample_sets=()))
    for name in ("one.jsonl.gz", "two.jsonl.gz"):
        pack(tmp_path / name, [DEVICE], given)
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()
    file = ShippedFile(tmp_path / "one.jsonl.gz")
    assert file.candidates(DEVICE.key, str(OTHER_GEMM), "isolated") == (given[2],)
    assert file.candidates(DEVICE.key, str(GEMM), REGIME) == (given[0], given[1], given[3])
    assert file.candidates(DEVICE.key, str(GEMM), "isolated") == ()
    assert import_records(database, file.path).candidates == 4
    assert SqlStore(database).candidates(OTHER_GEMM, DEVICE.key, "isolated") == [given[2]]


def test_a_file_that_is_damaged_or_has_no_index_is_refused_with_its_name(database: Database, tmp_path: Path) -> None:
    SqlStore(database).add_candidate(candidate(1))
    plain = tmp_path / "plain.jsonl.gz"
    export_records(database, plain)
    with pytest.raises(InvalidRequest, match=r"plain\.jsonl\.gz has no index; scripts/ship_records\.py"):
        ShippedFile(plain).candidates(DEVICE.key, str(GEMM), REGIME)
    whole = tmp_path / "whole.jsonl.gz"
    pack(whole, [DEVICE], measured_on(DEVICE, GEMM, times(1, 2)))
    whole.write_bytes(whole.read_bytes()[:-30])
    with pytest.raises(InvalidRequest, match=r"whole\.jsonl\.gz is damaged"):
        ShippedFile(whole).candidates(DEVICE.key, str(GEMM), REGIME)
    whole.write_bytes(gzip.compress(b'{"format": "another"}\n'))
    with pytest.raises(InvalidRequest, match="whole"):
        ShippedFile(whole).candidates(DEVICE.key, str(GEMM), REGIME)
    with pytest.raises(StoreError, match="nowhere"):
        pack(tmp_path / "nowhere" / "x.jsonl.gz", [DEVICE], [])


@pytest.mark.parametrize(("count", "shared"), [(2, True), (64, False)])
def test_small_problems_share_a_member_which_ends_with_a_large_one(tmp_path: Path, count: int, shared: bool) -> None:
    first = measured_on(DEVICE, GEMM, times(*range(1, count + 1)))
    path = tmp_path / "cut.jsonl.gz"
    pack(path, [DEVICE], [*first, *measured_on(DEVICE, OTHER_GEMM, times(1))])
    whole = ShippedFile(path)
    assert whole.candidates(DEVICE.key, str(GEMM), REGIME) == tuple(first)
    assert len(whole.candidates(DEVICE.key, str(OTHER_GEMM), REGIME)) == 1
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InvalidRequest, match="is damaged at"):
        ShippedFile(path).candidates(DEVICE.key, str(OTHER_GEMM), REGIME)
    if shared:
        with pytest.raises(InvalidRequest, match="is damaged at"):
            ShippedFile(path).candidates(DEVICE.key, str(GEMM), REGIME)
    else:
        assert ShippedFile(path).candidates(DEVICE.key, str(GEMM), REGIME) == tuple(first)


def test_the_script_packs_exports_on_top_of_each_other(database: Database, tmp_path: Path) -> None:
    for number in (1, 2):
        SqlStore(database).add_candidate(candidate(number))
    SqlStore(database).add_candidate(candidate(3, status=Status.PRUNED, sample_sets=()))
    SqlStore(database).put_device(DEVICE)
    export_records(database, tmp_path / "one.jsonl.gz")
    SqlStore(database).add_samples(candidate(2).key, samples(99.0, "noise"))
    export_records(database, tmp_path / "two.jsonl.gz")
    module: Any = script("scripts/ship_records.py")
    (path,) = module.ship([tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz"], tmp_path)
    assert path == tmp_path / "test-cpu-3000.jsonl.gz"
    file = ShippedRecords(tmp_path).of(DEVICE.key)
    assert file is not None
    assert file.devices == (DEVICE.with_(uuid="", index=0),)
    actual = file.candidates(DEVICE.key, str(GEMM), REGIME)
    assert [(c.config, len(c.sample_sets), c.trace) for c in actual] == [(config(1), 1, None), (config(2), 2, None)]


def test_the_script_keeps_more_samples_of_what_may_be_chosen_than_of_what_is_only_learnt_from(
    database: Database, tmp_path: Path
) -> None:
    conditions = {"power_w": 600.0, "clock_mhz": 1980}
    taken = [
        SampleSet(tuple(base + step / 100 for step in range(20)), conditions=conditions) for base in (10.0, 10.3, 20.0)
    ]
    for number, one in enumerate(taken, 1):
        SqlStore(database).add_candidate(candidate(number, sample_sets=(one,)))
    SqlStore(database).put_device(DEVICE)
    export_records(database, tmp_path / "all.jsonl.gz")
    module: Any = script("scripts/ship_records.py")
    module.ship([tmp_path / "all.jsonl.gz"], tmp_path)
    file = ShippedRecords(tmp_path).of(DEVICE.key)
    assert file is not None
    kept = [c.sample_sets[0] for c in file.candidates(DEVICE.key, str(GEMM), REGIME)]
    assert [len(one.samples_us) for one in kept] == [7, 7, 3]
    assert [one.median_us for one in kept] == pytest.approx([one.median_us for one in taken])
    assert ["power_w" in one.conditions for one in kept] == [True, True, False]


def test_the_script_leaves_out_what_something_else_disturbed() -> None:
    module: Any = script("scripts/ship_records.py")
    h200, family, gemm = named_device("sm_90a"), family_named("mma"), Gemm.parse("803x88x1530:bf16:tt")
    default = family.default(gemm, h200, "sustained")
    us = family.predict_us(gemm, default, h200, "sustained")
    devices = {(h200.key, h200.fingerprint): h200}
    for times_as_long, disturbed in ((2, False), (50, False), (70, True)):
        taken = (SampleSet((times_as_long * us,) * 3),)
        took = Candidate(gemm, h200.key, "sustained", default, Status.MEASURED, sample_sets=taken)
        assert took.search_us is not None
        assert module._disturbed(took, devices) is disturbed
        assert not module._disturbed(took, {}), "nobody can say"


def test_the_script_adds_the_races_of_a_results_file_to_what_is_shipped(database: Database, tmp_path: Path) -> None:
    """Of problems that are shipped alone, each race in place of the one before; what is learnt from stays as it was."""
    store = SqlStore(database)
    for number in (1, 2):
        store.add_candidate(candidate(number))
    store.put_device(DEVICE)
    export_records(database, tmp_path / "all.jsonl.gz")
    module: Any = script("scripts/ship_records.py")
    (path,) = module.ship([tmp_path / "all.jsonl.gz"], tmp_path)
    before = {c.config: c.sample_sets for c in read_candidates(path)}
    about = {**dict(DEVICE.environment), "device_key": DEVICE.key}

    def results(name: str, times: dict[tuple[Gemm, int], float], **other: Any) -> Path:
        rows = [
            {"gemm": str(gemm), "config": config(number).to_json(), "status": "measured", "at": "2026-01-02"}
            | {"samples_us": [us] * 9, "error": 0.5}
            for (gemm, number), us in times.items()
        ]
        document = {"format": FORMAT, "suite": "made", "regime": REGIME, "environment": about | other, "rows": rows}
        (tmp_path / name).write_text(json.dumps(document))
        return tmp_path / name

    first = results("first.json", {(GEMM, 1): 9.0, (GEMM, 2): 8.0, (OTHER_GEMM, 1): 1.0})
    second = results("second.json", {(GEMM, 2): 7.0, (GEMM, 5): 6.0})
    for given in ([path, first], [path, second], [path, second]):
        assert module.ship(given, tmp_path) == [path]
    actual = {c.config: c.sample_sets for c in read_candidates(path)}
    assert [*actual] == [config(1), config(2), config(5)], "and no other problem"
    assert actual[config(1)] == before[config(1)]
    assert actual[config(2)][:-1] == before[config(2)]
    conditions = {"at": "2026-01-02", "fingerprint": DEVICE.fingerprint}
    assert actual[config(5)] == (SampleSet((6.0,) * 3, "report", conditions=conditions),)
    third = results("third.json", {(GEMM, 1): 5.0, (GEMM, 2): 4.0})
    document = json.loads(third.read_text())
    document["rows"][0]["at"] = "2026-01-03"
    third.write_text(json.dumps(document))
    module.ship([path, third], tmp_path)
    assert raced_configs(read_candidates(path)) == [config(1)], "the other row ran beside another one"
    with pytest.raises(InvalidRequest, match="was measured in an environment that no device of the records has"):
        module.ship([path, results("else.json", {(GEMM, 2): 7.0}, tvm="0.1")], tmp_path)


# -- the layer -------------------------------------------------------------------------------------


def test_shipped_candidates_lie_beneath_the_databases_own(store: LayeredStore, database: Database) -> None:
    own = candidate(2, sample_sets=(samples(50.0),))
    store.add_candidate(own)
    candidates = store.candidates(GEMM, DEVICE.key, REGIME)
    assert [c.config for c in candidates] == [config(2), config(1), config(3)]
    assert candidates[0] == store.candidate(key(2)) == own
    assert store.candidate(key(3)) == candidates[2]
    assert store.candidate(key(4)) is None
    assert store.history(DEVICE.key, REGIME) == candidates
    assert SqlStore(database).candidates(GEMM, DEVICE.key, REGIME) == [own], "nothing was written"


def test_what_is_added_to_a_shipped_candidate_is_written_into_the_database(
    store: LayeredStore, database: Database
) -> None:
    before = store.candidate(key(1))
    assert before is not None
    taken = SampleSet((7.0,), "report")
    store.add_samples(key(1), taken)
    kept = before.with_(sample_sets=(*before.sample_sets, taken))
    assert store.candidate(key(1)) == SqlStore(database).candidate(key(1)) == kept
    with pytest.raises(StoreError, match="no candidate"):
        store.add_samples(key(4), taken)


def test_a_race_elsewhere_takes_no_record_of_this_environment_out_of_it(database: Database, tmp_path: Path) -> None:
    first, second = measured_on(DEVICE, GEMM, times(1, 2))
    race = SampleSet((3.0,), "report", conditions={"fingerprint": elsewhere(DEVICE).fingerprint})
    raced = first.with_(sample_sets=(*first.sample_sets, race))
    only_raced = second.with_(config=config(3), sample_sets=(race,))
    store = LayeredStore(database, ship(tmp_path / "shipped", DEVICE, [raced, second, only_raced]))
    store.put_device(DEVICE)
    assert store.candidates(GEMM, DEVICE.key, REGIME) == [first, second]
    assert store.offer(GEMM, DEVICE, REGIME) == Offer(DEVICE, (first, second), same=True)
    assert store.history(DEVICE.key, REGIME) == [raced, second], "and nothing is learnt from what was only raced"


def test_records_of_another_environment_are_offered_and_are_no_candidates(database: Database, tmp_path: Path) -> None:
    there = elsewhere(DEVICE)
    store = LayeredStore(database, ship(tmp_path / "shipped", there, measured_on(there, GEMM, times(1))))
    assert store.candidates(GEMM, DEVICE.key, REGIME) == [], "nobody has said what this machine's environment is"
    store.put_device(DEVICE)
    assert store.candidates(GEMM, DEVICE.key, REGIME) == []
    assert store.candidate(key(1)) is None
    offer = store.offer(GEMM, DEVICE, REGIME)
    assert offer is not None
    assert (offer.same, offer.device, len(offer.candidates)) == (False, there.with_(uuid=""), 1)
    assert [c.config for c in store.history(DEVICE.key, REGIME)] == [config(1)], "models learn from it"
    assert store.offer(OTHER_GEMM, DEVICE, REGIME) is None


@pytest.mark.parametrize("name", ["tvm", "driver"])
def test_another_tvm_or_driver_is_another_environment_and_so_is_an_unknown_one(name: str) -> None:
    gpu = OTHER_DEVICE.with_(environment=(("python", "3.12"), ("tvm", "0.27"), ("driver", "580.65"), ("cuda", "13.0")))
    assert same_environment(gpu, gpu.with_(environment=(("driver", "580.65"), ("tvm", "0.27"))))
    changed = dict(gpu.environment) | {name: "1"}
    assert not same_environment(gpu, gpu.with_(environment=tuple(changed.items())))
    assert not same_environment(gpu, gpu.with_(environment=()))
    unknown = gpu.with_(environment=tuple((dict(gpu.environment) | {name: "unknown"}).items()))
    assert not same_environment(unknown, unknown)
    assert not same_environment(gpu, gpu.with_(units=114))
    assert not same_environment(gpu, gpu.with_(power_limit_w=450))
    assert same_environment(gpu, gpu.with_(memory_bytes=gpu.memory_bytes * 99 // 100)), "a driver may reserve some"
    assert not same_environment(gpu, gpu.with_(memory_bytes=gpu.memory_bytes // 2)), "a model of two sizes of memory"


def test_samples_that_do_not_say_their_environment_are_of_another(database: Database, tmp_path: Path) -> None:
    silent = [c.with_(sample_sets=(SampleSet((5.0,)),)) for c in measured_on(DEVICE, GEMM, times(1))]
    store = LayeredStore(database, ship(tmp_path / "shipped", DEVICE, [*silent, *measured_on(DEVICE, GEMM, times(2))]))
    store.put_device(DEVICE)
    offer = store.offer(GEMM, DEVICE, REGIME)
    assert offer is not None
    assert not offer.same, "the fastest is one of them"
    assert store.candidates(GEMM, DEVICE.key, REGIME) == []


def test_a_similar_device_is_offered_what_was_measured_on_the_nearest(database: Database) -> None:
    store = LayeredStore(database)
    h100 = OTHER_DEVICE.with_(model="NVIDIA H100", units=114, uuid="GPU-1")
    gemm = Gemm.parse("4096x4096x4096:f16:nt")
    offer = store.offer(gemm, h100, REGIME, other_devices=True)
    assert offer is not None
    assert (offer.same, offer.other_device, offer.device.key) == (False, True, H200)
    assert store.candidates(gemm, h100.key, REGIME) == []
    assert store.offer(gemm, h100.with_(arch="sm_80"), REGIME, other_devices=True) is None
    h200 = offer.device
    own = store.offer(gemm, h200, REGIME)
    assert own is not None
    assert not own.other_device
    for another in (h100, h200.with_(memory_bytes=96 << 30), h200.with_(power_limit_w=450), h200.with_(model="H20")):
        assert store.offer(gemm, another, REGIME) is None, another
        asked = store.offer(gemm, another, REGIME, other_devices=True)
        assert asked is not None, another
        assert asked.origin.other_device, another


def test_a_device_is_not_offered_what_another_class_in_the_same_file_measured(
    database: Database, tmp_path: Path
) -> None:
    gpu = OTHER_DEVICE.with_(uuid="GPU-1", environment=(("driver", "580.65"), ("tvm", "0.27")))
    limited = gpu.with_(power_limit_w=450)
    file = tmp_path / f"{gpu.key.split(':')[2]}{shipped.SUFFIX}"
    pack(file, [gpu, limited], [*measured_on(gpu, OTHER_GEMM, times(1)), *measured_on(limited, GEMM, times(1))])
    records = ShippedRecords(tmp_path)
    assert LayeredStore(database, records).offer(OTHER_GEMM, gpu, REGIME) is not None
    assert LayeredStore(database, records).offer(GEMM, gpu, REGIME) is None
    assert LayeredStore(database, records).offer(GEMM, gpu, REGIME, other_devices=True) is not None


def test_the_history_near_a_problem_is_of_the_problems_most_like_it(database: Database) -> None:
    store = LayeredStore(database)
    gemm = Gemm.parse("4000x4096x4096:f16:nt")
    near = store.history(H200, REGIME, near=gemm)
    assert len(near) == 1_000
    assert str(near[0].gemm) == "4096x4096x4096:f16:nt"
    assert len({c.gemm for c in near}) < 20
    assert len(store.history(H200, REGIME)) == 10_000
    assert all(c.status is Status.MEASURED for c in near)


def test_own_candidates_of_the_same_problem_are_kept_apart_by_regime(store: LayeredStore) -> None:
    assert store.candidates(GEMM, DEVICE.key, "isolated") == []
    assert store.offer(GEMM, DEVICE, "isolated") is None
