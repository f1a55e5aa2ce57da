"""Shipped records beneath a database: what is read of them, beside the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.packed_records import pack
from tests.contract.storage.databases import DEVICE, GEMM, OTHER_DEVICE, OTHER_GEMM, candidate, config, samples
from tests.helpers.shipped_files import elsewhere, measured_on, ship
from tests.tuning_db.shipped.shipped_times import H200, REGIME, times
from tirgemm import Gemm
from tirgemm.errors import StoreError
from tirgemm.tuning.records import CandidateKey, SampleSet, Status
from tirgemm.tuning.records.offer import Offer, same_environment
from tirgemm.tuning_db import Database, SqlStore, shipped
from tirgemm.tuning_db.shipped.layered_store import LayeredStore
from tirgemm.tuning_db.shipped.records import ShippedRecords


def key(number: int) -> CandidateKey:
    return CandidateKey(GEMM, DEVICE.key, REGIME, config(number).digest)


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
    assert len({c.gemm for c in near}) == 20
    assert len(store.history(H200, REGIME)) == 10_000
    assert all(c.status is Status.MEASURED for c in near)


def test_own_candidates_of_the_same_problem_are_kept_apart_by_regime(store: LayeredStore) -> None:
    assert store.candidates(GEMM, DEVICE.key, "isolated") == []
    assert store.offer(GEMM, DEVICE, "isolated") is None
