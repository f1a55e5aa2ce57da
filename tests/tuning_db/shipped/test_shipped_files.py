"""Shipped files: the package's own, how they are packed, and the script that adds to them."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.packed_records import pack
from tests.contract.storage.databases import DEVICE, GEMM, OTHER_DEVICE, OTHER_GEMM, candidate, config, samples
from tests.helpers.fake_workbench import FakeBench
from tests.helpers.scripts import script
from tests.helpers.shipped_files import measured_on
from tests.tuning_db.shipped.shipped_times import H200, REGIME, times
from tirgemm import Gemm
from tirgemm.bench.results import FORMAT
from tirgemm.errors import InvalidRequest
from tirgemm.families import family_named
from tirgemm.gemm import Range, regime_named
from tirgemm.hardware import named_device
from tirgemm.tuning.records import Candidate, CandidateKey, SampleSet, Status
from tirgemm.tuning.records.comparable_times import fastest
from tirgemm.tuning.records.offer import Offer, raced_times
from tirgemm.tuning.shipped_kernel import TRIED, offered_configs
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning_db import Database, SqlStore, shipped
from tirgemm.tuning_db.shipped.layered_store import LayeredStore
from tirgemm.tuning_db.shipped.records import ShippedFile, ShippedRecords
from tirgemm.tuning_db.transfer import export_records, import_records, read_candidates, read_devices


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
        best += offered[0] == [*raced_times(candidates), *fastest(candidates)][0]
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
    with pytest.raises(InvalidRequest, match="nowhere"):
        pack(tmp_path / "nowhere" / "x.jsonl.gz", [DEVICE], [])


@pytest.mark.parametrize(("count", "shared"), [(2, True), (256, False)])
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
    assert [len(one.samples_us) for one in kept] == [7, 7, 1]
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
    assert list(raced_times(read_candidates(path))) == [config(1)], "the other row ran beside another one"
    with pytest.raises(InvalidRequest, match="was measured in an environment that no device of the records has"):
        module.ship([path, results("else.json", {(GEMM, 2): 7.0}, tvm="0.1")], tmp_path)
