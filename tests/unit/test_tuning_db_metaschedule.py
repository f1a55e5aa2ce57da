"""The candidates table as MetaSchedule's database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm", reason="the tune extra is not installed")

from tvm.s_tir.meta_schedule.database import MemoryDatabase, TuningRecord
from tvm.target import Target

from tests.unit.toy_family import DEVICE, Toy, simulated_us
from tirgemm.config import Config
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning.search import Search
from tirgemm.tuning.space_trace import point_of, point_schedule, replay, search_module, trace_of
from tuning_db import Database, SqlStore
from tuning_db.metaschedule import MetaScheduleDatabase

GEMM = Gemm(1023, 1021, 1027)
OTHER = Gemm(17, 33, 65)
TOY = Toy()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with Database.embedded(tmp_path) as database:
        yield SqlStore(database)


@pytest.fixture
def records(store: SqlStore) -> Any:
    return MetaScheduleDatabase(store.db, DEVICE, "sustained", [TOY])


def config(number: int) -> Config:
    return TOY.space(GEMM, DEVICE).at(number)


def candidate(number: int, us: float, **changes: Any) -> Candidate:
    values: dict[str, Any] = {
        "gemm": GEMM, "device_key": DEVICE.key, "regime": "sustained", "config": config(number),
        "status": Status.MEASURED, "trace": trace_of(GEMM, DEVICE, config(number), [TOY]),
        "sample_sets": (SampleSet((us, us, us + 1)),),
    }  # fmt: skip
    return Candidate(**values | changes)


def record(records: Any, number: int, *seconds: float) -> TuningRecord:
    schedule = point_schedule(GEMM, TOY.space(GEMM, DEVICE), point_of(TOY.space(GEMM, DEVICE), config(number)))
    return TuningRecord(schedule.trace, records.commit_workload(search_module(GEMM)), list(seconds), None, None)


def test_a_workload_is_there_once_it_was_committed(records: Any) -> None:
    assert not records.has_workload(search_module(GEMM))
    workload = records.commit_workload(search_module(GEMM))
    records.commit_workload(search_module(GEMM))
    assert records.has_workload(search_module(GEMM))
    assert not records.has_workload(search_module(OTHER))
    assert records.get_top_k(workload, 3) == []
    assert len(records) == 0


def test_modules_that_no_search_made_are_no_workloads(records: Any) -> None:
    from tvm import IRModule, tirx

    empty = IRModule({"main": tirx.PrimFunc([], tirx.Evaluate(0))})
    posing = IRModule({"main": empty["main"].with_attr("tirgemm.gemm", str(GEMM))})
    records.commit_workload(search_module(GEMM))
    for module in (empty, posing):
        assert not records.has_workload(module)
        with pytest.raises(InvalidRequest):
            MetaScheduleDatabase(records.db, DEVICE, "sustained", [TOY]).commit_workload(module)


def test_stored_candidates_are_records_and_replay(store: SqlStore, records: Any) -> None:
    for number, us in ((11, 30.0), (12, 10.0), (13, 20.0)):
        store.add_candidate(candidate(number, us))
    best = records.get_top_k(records.commit_workload(search_module(GEMM)), 2)
    assert [float(found.run_secs[0]) * 1e6 for found in best] == pytest.approx([10.0, 20.0])
    assert [replay(found.as_json()[0], GEMM, DEVICE, [TOY]) for found in best] == [config(12), config(13)]
    assert len(records) == len(records.get_all_tuning_records()) == 3


def test_what_was_not_measured_here_in_this_regime_is_no_record(store: SqlStore, records: Any) -> None:
    store.add_candidate(candidate(1, 9.0, status=Status.WRONG))
    store.add_candidate(candidate(2, 9.0, trace=None))
    store.add_candidate(candidate(3, 9.0, regime="isolated"))
    store.add_candidate(candidate(4, 9.0, device_key="cuda:sm_80:other:1"))
    store.add_candidate(candidate(5, 9.0, sample_sets=(SampleSet((9.0,), "selection"),)))
    assert len(records) == 0
    assert records.get_all_tuning_records() == []


def test_the_newest_samples_of_the_search_rank_a_record(store: SqlStore, records: Any) -> None:
    store.add_candidate(candidate(1, 10.0))
    store.add_candidate(candidate(2, 20.0))
    store.add_samples(candidate(1, 0).key, SampleSet((5.0,), "selection"))
    store.add_samples(candidate(1, 0).key, SampleSet((40.0,), "noise"))
    best = records.get_top_k(records.commit_workload(search_module(GEMM)), 9)
    assert [float(found.run_secs[0]) * 1e6 for found in best] == pytest.approx([20.0, 40.0])


def test_a_committed_record_becomes_a_candidate(store: SqlStore, records: Any) -> None:
    records.commit_tuning_record(record(records, 7, 2e-6, 4e-6, 3e-6))
    (found,) = store.candidates(GEMM, DEVICE.key, "sustained")
    assert (found.config, found.status) == (config(7), Status.MEASURED)
    assert found.sample_sets[0].samples_us == pytest.approx((2.0, 4.0, 3.0))
    assert replay(found.trace, GEMM, DEVICE, [TOY]) == config(7)
    assert [float(r.run_secs[0]) for r in records.get_all_tuning_records()] == pytest.approx([3e-6])


def test_committing_what_the_store_holds_adds_no_samples(store: SqlStore, records: Any) -> None:
    known = candidate(7, 12.0, trace=None)
    store.add_candidate(known)
    records.commit_tuning_record(record(records, 7, 5e-6))
    found = store.candidate(known.key)
    assert found is not None
    assert found.sample_sets == known.sample_sets
    assert replay(found.trace, GEMM, DEVICE, [TOY]) == config(7)


@pytest.mark.parametrize("seconds", [(), (float("inf"),), (0.0,)])
def test_a_record_without_a_time_is_refused(store: SqlStore, seconds: tuple[float, ...]) -> None:
    records = MetaScheduleDatabase(store.db, DEVICE, "sustained", [TOY])
    with pytest.raises(InvalidRequest, match="a time"):
        records.commit_tuning_record(record(records, 7, *seconds))
    assert store.candidates(GEMM, DEVICE.key, "sustained") == []


def test_tvm_queries_the_best_record_and_copies_to_its_own_database(store: SqlStore, records: Any) -> None:
    for number, us in ((11, 30.0), (12, 10.0)):
        store.add_candidate(candidate(number, us))
    target = Target("llvm")
    found = records.query_tuning_record(search_module(GEMM), target, "main")
    assert replay(found.as_json()[0], GEMM, DEVICE, [TOY]) == config(12)
    assert records.query_tuning_record(search_module(OTHER), target, "main") is None
    copy = MemoryDatabase()
    records.dump_pruned(copy)
    assert len(copy) == 1


def test_a_search_goes_on_from_the_records_of_another_session(store: SqlStore) -> None:
    proposed = []
    for _ in range(2):
        recorded = store.candidates(GEMM, DEVICE.key, "sustained")
        records = MetaScheduleDatabase(store.db, DEVICE, "sustained", [TOY])
        search = Search(GEMM, DEVICE, "sustained", [TOY], recorded=recorded, database=records)
        proposals = search.propose(6)
        for proposal in proposals:
            us = simulated_us(GEMM, proposal.config)
            tried = Candidate(
                GEMM, DEVICE.key, "sustained", proposal.config, Status.MEASURED, trace=proposal.trace_json,
                sample_sets=(SampleSet((us,)),),
            )  # fmt: skip
            store.add_candidate(tried)
            search.report([tried])
        proposed += [proposal.config for proposal in proposals]
    assert len(set(proposed)) == len(proposed) == 12
    assert all(len(found.sample_sets) == 1 for found in store.candidates(GEMM, DEVICE.key, "sustained"))
    assert len(records) == 12
