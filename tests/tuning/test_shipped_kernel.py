"""Tuning on shipped records: taken as they are in their own environment, tried first and raced in any other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.packed_records import pack
from tests.helpers.fake_workbench import CPU, FakeBench, hashed_us
from tests.helpers.shipped_files import elsewhere, measured_on, ship
from tests.present_timings import shipped_of, timing_of
from tirgemm import Budget, Config, Gemm
from tirgemm.device import Device
from tirgemm.errors import Cancelled
from tirgemm.events import CandidateRecorded, Event, KernelSelected
from tirgemm.families import FAMILIES, is_valid
from tirgemm.families.base import rejected
from tirgemm.families.choice import ranked_defaults
from tirgemm.gemm import Regime
from tirgemm.tuning import budget, shipped_kernel
from tirgemm.tuning.budget import covers
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.records import Candidate, KernelRecord, SampleSet, Status
from tirgemm.tuning.records.comparable_times import fastest
from tirgemm.tuning.records.offer import raced_times
from tirgemm.tuning.shipped_kernel import TRIED
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control, chosen_families
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.shipped import SUFFIX
from tirgemm.tuning_db.shipped.layered_store import LayeredStore
from tirgemm.tuning_db.shipped.records import ShippedRecords

pytestmark = pytest.mark.usefixtures("all_scored")

GEMM = Gemm.parse("61x67x71:f16:nt")
REGIME: Regime = "sustained"
SEARCHED = budget.SEARCHED
H200 = ShippedRecords().of("cuda:sm_90a:nvidia-h200:132")


@pytest.fixture(autouse=True)
def searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few shipped configs as these tests have are what a search has left."""
    monkeypatch.setattr(budget, "SEARCHED", TRIED)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.embedded(tmp_path / "data") as actual:
        yield actual


def configs(count: int) -> list[Config]:
    """Valid configs of the x86 family but its default, as the space has them."""
    family = FAMILIES["x86"]
    valid = (c for c in family.space(GEMM, CPU) if rejected(family, GEMM, c, CPU) is None)
    default = family.default(GEMM, CPU, REGIME)
    return list(itertools.islice((c for c in valid if c != default), count))


SHIPPED = configs(6)
DEFAULT = FAMILIES["x86"].default(GEMM, CPU, REGIME)


def bench_on(database: Database, folder: Path, measured: Device, times: list[tuple[Config, float]]) -> FakeBench:
    """A workbench of this CPU whose store has records of ``measured`` beneath."""
    store = LayeredStore(database, ship(folder / "shipped", measured, measured_on(measured, GEMM, times)))
    bench = FakeBench(store=store)
    store.put_device(bench.device)
    return bench


@pytest.fixture
def same(database: Database, tmp_path: Path) -> FakeBench:
    """Records of this very environment; the third shipped config is the fastest by them."""
    return bench_on(database, tmp_path, CPU, list(zip(SHIPPED, (30.0, 20.0, 10.0, 40.0, 50.0, 60.0), strict=True)))


@pytest.fixture
def other(database: Database, tmp_path: Path) -> FakeBench:
    """The same of another TVM."""
    times = list(zip(SHIPPED, (30.0, 20.0, 10.0, 40.0, 50.0, 60.0), strict=True))
    bench = bench_on(database, tmp_path, elsewhere(CPU), times)
    speeds = {config: 100.0 - number for number, config in enumerate(SHIPPED)}
    bench.us = lambda config: speeds.get(config, 200.0)
    return bench


def tuned(bench: FakeBench, spent: Budget | None = None, on_event: Any = None, **options: Any) -> KernelRecord:
    control = Control(on_event, **options)
    return Tuning(GEMM, bench, REGIME, spent, control=control).run()


# -- taken as they are -----------------------------------------------------------------------------


def test_the_best_config_of_this_environment_is_built_once_and_served_with_no_search(same: FakeBench) -> None:
    events: list[Event] = []
    record = tuned(same, on_event=events.append)
    assert same.built == [SHIPPED[2]]
    assert same.fake.evaluated == []
    assert (record.role, record.config, record.trials) == ("tuned", SHIPPED[2], 6)
    assert (record.shipped, record.portable) == (True, False)
    assert record.certificate is not None
    assert record.certificate.passed
    assert record.timings.ended == "shipped"
    assert shipped_of(record.timings).to_json() == {
        "device": CPU.key,
        "environment": dict(CPU.environment),
        "same": True,
        "configs": 6,
    }
    assert timing_of(record.timings, REGIME).median_us == hashed_us(SHIPPED[2]), "measured here"
    assert "fastest of 6 shipped" in record.timings.reason
    assert [e.kernel for e in events if isinstance(e, KernelSelected)] == [record.id]
    assert not [e for e in events if isinstance(e, CandidateRecorded)]
    assert same.store.kernel(GEMM, CPU.key, REGIME) == record
    assert covers(record, Budget())
    assert not covers(record, Budget(65))


@pytest.mark.parametrize("where", ["same", "other"])
def test_what_was_only_collected_answers_quick_and_a_larger_effort_searches_on(
    where: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "SEARCHED", len(SHIPPED) + 1)
    bench: FakeBench = request.getfixturevalue(where)
    quick = tuned(bench, Budget.of("quick"))
    assert (quick.role, quick.timings.ended, shipped_of(quick.timings).configs) == ("tuned", "shipped", 6)
    assert set(bench.fake.evaluated) <= {*SHIPPED, DEFAULT}
    assert covers(quick, Budget.of("quick"))
    assert not covers(quick, Budget.of("standard"))
    standard = tuned(bench, Budget(12))
    assert standard.timings.ended != "shipped"
    assert set(bench.fake.evaluated) - {*SHIPPED, DEFAULT}
    assert covers(standard, Budget(12))


def test_the_fallback_is_the_shipped_kernel_too(same: FakeBench) -> None:
    record = Tuning(GEMM, same, REGIME).fallback()
    assert (record.role, record.config) == ("tuned", SHIPPED[2])


@pytest.mark.parametrize("fate", ["uncertified", "unbuildable", "dies"])
def test_a_shipped_config_that_fails_here_is_recorded_so_and_the_next_is_taken(same: FakeBench, fate: str) -> None:
    same.fate = lambda config: fate if config == SHIPPED[2] else "right"
    record = tuned(same)
    assert record.config == SHIPPED[1]
    marked = next(c for c in same.store.candidates(GEMM, CPU.key, REGIME) if c.config == SHIPPED[2])
    assert marked.status is not Status.MEASURED


def test_where_all_fail_the_default_is_built_and_the_search_goes_on_from_the_records(same: FakeBench) -> None:
    same.fate = lambda config: "unbuildable" if config in SHIPPED else "right"
    record = tuned(same, Budget(12))
    assert record.config not in SHIPPED
    assert not record.shipped
    assert record.timings.ended == "trials"
    assert record.trials == 12


def test_a_larger_budget_goes_on_from_the_shipped_records(same: FakeBench) -> None:
    same.us = lambda config: 1.0 if config not in SHIPPED else 100.0
    record = tuned(same, Budget(40, effort=Effort.EXHAUSTIVE))
    assert (6 < record.trials <= 40, record.shipped) == (True, False)
    assert record.config not in SHIPPED
    assert not set(same.fake.evaluated) & set(SHIPPED), "what is recorded is not measured again by a search"


def test_records_of_other_families_than_the_best_predicted_do_not_answer(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_on(database, tmp_path, CPU, [(SHIPPED[0], 10.0)])
    monkeypatch.setattr(Tuning, "default", lambda _: (FAMILIES["x86"], Config("another", ())))
    assert not tuned(bench, Budget(4)).shipped


def test_fewer_records_than_are_raced_where_they_are_offered_answer_nothing(database: Database, tmp_path: Path) -> None:
    few = list(zip(SHIPPED[: TRIED - 1], (30.0, 20.0, 10.0), strict=True))
    record = tuned(bench_on(database, tmp_path, CPU, few), Budget(2))
    assert (record.shipped, record.timings.ended) == (False, "trials")


def test_cancelling_while_a_shipped_config_is_built_ends_the_tuning(same: FakeBench) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        tuned(same, cancel=cancel)
    assert same.store.kernel(GEMM, CPU.key, REGIME) is None


# -- raced behind a search -------------------------------------------------------------------------


@pytest.fixture
def raced(database: Database, tmp_path: Path) -> FakeBench:
    """Records of an environment that nobody noted, of which two were raced in this one: what was the fastest there is
    the slower of them, and one was not measured before."""
    unknown = CPU.with_(environment=())
    recorded = measured_on(unknown, GEMM, list(zip(SHIPPED[:5], (30.0, 20.0, 10.0, 40.0, 50.0), strict=True)))
    new = recorded[0].with_(config=SHIPPED[5], sample_sets=())
    for number, us in ((2, 12.0), (5, 11.0)):
        of = SampleSet((us, us), "report", conditions={"fingerprint": CPU.fingerprint, "at": "2026-01-02"})
        candidate = [*recorded, new][number]
        recorded[number : number + 1] = [candidate.with_(sample_sets=(*candidate.sample_sets, of))]
    folder = tmp_path / "raced"
    folder.mkdir()
    pack(folder / f"{CPU.key.split(':')[2]}{SUFFIX}", [unknown, CPU], recorded)
    bench = FakeBench(store=LayeredStore(database, ShippedRecords(folder)))
    bench.store.put_device(bench.device)
    return bench


def test_the_winner_of_a_race_in_this_environment_is_built_once_and_served(raced: FakeBench) -> None:
    record = tuned(raced)
    assert (raced.built, raced.fake.evaluated) == ([SHIPPED[5]], [])
    assert (record.role, record.shipped, record.portable) == ("tuned", True, False)
    assert shipped_of(record.timings).to_json() == {
        "device": CPU.key,
        "environment": dict(CPU.environment),
        "same": True,
        "configs": 6,
    }
    assert "the fastest of 2 that were raced on such a device" in record.timings.reason
    assert raced.store.kernel(GEMM, CPU.key, REGIME) == record
    (timed,) = raced.store.candidates(GEMM, CPU.key, REGIME)
    assert [samples.reason for samples in timed.sample_sets] == ["search"], "no search times it again"
    assert covers(record, Budget())


def test_where_the_winner_fails_the_next_of_the_race_is_taken_and_nothing_that_ran_in_none(raced: FakeBench) -> None:
    raced.fate = lambda config: "unbuildable" if config == SHIPPED[5] else "right"
    assert tuned(raced).config == SHIPPED[2]
    assert raced.fake.evaluated == []


def test_a_winner_that_failed_here_before_is_not_tried_again(raced: FakeBench) -> None:
    failed = Candidate(GEMM, CPU.key, REGIME, SHIPPED[5], Status.CRASHED, "it hung")
    raced.store.add_candidate(failed)
    assert (tuned(raced).config, raced.built) == (SHIPPED[2], [SHIPPED[2]])
    assert raced.store.candidate(failed.key) == failed


def test_a_race_whose_winner_is_not_taken_is_run_again_here(raced: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_kernel, "is_valid", lambda gemm, c, on: c != SHIPPED[5] and is_valid(gemm, c, on))
    tuned(raced)
    (race,) = [t for t in raced.fake.timed if t.options.reason == "selection"]
    assert {SHIPPED[2], SHIPPED[1], DEFAULT} <= set(race.configs)


def test_where_all_of_a_race_fail_what_is_recorded_is_raced_here(raced: FakeBench) -> None:
    raced.fate = lambda config: "unbuildable" if config in (SHIPPED[2], SHIPPED[5]) else "right"
    record = tuned(raced)
    assert {SHIPPED[1], SHIPPED[0]} <= set(raced.fake.evaluated)
    assert record.config not in (SHIPPED[2], SHIPPED[5])


def test_a_search_begins_with_what_was_raced_and_keeps_the_winner_where_that_stays_the_fastest(
    raced: FakeBench,
) -> None:
    raced.us = lambda config: 1.0 if config == SHIPPED[5] else 2.0
    record = tuned(raced, Budget(40, effort=Effort.EXHAUSTIVE))
    offered = [SHIPPED[2], SHIPPED[1], SHIPPED[0]]
    assert raced.fake.evaluated[:4] == [DEFAULT, *offered], "the winner was certified before"
    assert record.config == SHIPPED[5]


# -- offered ---------------------------------------------------------------------------------------


def test_configs_of_another_environment_are_raced_with_the_default_and_the_winner_is_portable(
    other: FakeBench, database: Database
) -> None:
    record = tuned(other)
    offered = [SHIPPED[2], SHIPPED[1], SHIPPED[0], SHIPPED[3]]
    assert other.built == [DEFAULT, *offered], "the fastest there, each built once"
    assert other.fake.evaluated == offered, "each verified and timed here"
    assert record.config == SHIPPED[3], "the fastest here, not there"
    assert (record.role, record.shipped, record.portable) == ("tuned", True, True)
    assert shipped_of(record.timings).environment["tvm"] == "0.1"
    assert timing_of(record.timings, REGIME).baselines["default"].ratio == pytest.approx(200 / 97)
    (race,) = [t for t in other.fake.timed if t.options.reason == "selection"]
    assert set(race.configs) == {DEFAULT, *offered}
    assert (record.trials, record.certificate is not None) == (5, True)
    assert len(SqlStore(database).candidates(GEMM, CPU.key, REGIME)) == 5, "own measurements"
    assert covers(record, Budget())
    assert not covers(record, Budget(65))


def test_a_default_that_is_faster_than_what_is_offered_stays(other: FakeBench) -> None:
    other.us = lambda config: 10.0 if config == DEFAULT else 20.0
    record = tuned(other)
    assert (record.config, record.portable) == (DEFAULT, True)


def test_a_larger_budget_tries_the_offered_first_and_its_kernel_is_not_portable(other: FakeBench) -> None:
    record = tuned(other, Budget(40, effort=Effort.EXHAUSTIVE))
    assert other.fake.evaluated[:4] == [SHIPPED[2], SHIPPED[1], SHIPPED[0], SHIPPED[3]]
    assert (5 < record.trials <= 40, record.shipped, record.portable) == (True, False, False)


def test_a_search_on_top_of_a_portable_kernel_takes_the_mark_away(other: FakeBench) -> None:
    first = tuned(other)
    assert first.portable
    second = tuned(other, Budget(12).on_top_of(first.trials))
    assert (second.portable, second.timings.ended) == (False, "trials")
    assert other.store.kernel(GEMM, CPU.key, REGIME) == second


def test_an_offered_config_that_is_wrong_here_is_recorded_so_and_not_served(other: FakeBench) -> None:
    other.fate = lambda config: "wrong" if config == SHIPPED[3] else "right"
    record = tuned(other)
    assert record.config == SHIPPED[2]
    wrong = next(c for c in other.store.candidates(GEMM, CPU.key, REGIME) if c.config == SHIPPED[3])
    assert wrong.status is Status.WRONG


def test_stopping_among_the_offered_gives_the_best_until_then(other: FakeBench) -> None:
    stop = threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, CandidateRecorded):
            stop.set()

    record = tuned(other, on_event=on_event, stop=stop)
    assert record.timings.ended == "interrupted"
    assert not record.shipped
    assert len(other.fake.evaluated) == 1


# -- the package's records, on a made-up GPU -------------------------------------------------------


def test_no_default_is_built_ahead_of_what_was_shipped_for_this_very_environment(
    database: Database, tmp_path: Path
) -> None:
    assert H200 is not None
    bench, gemm, here = FakeBench(), Gemm.parse("1001x1003x71:f16:nt"), H200.devices[-1].with_(uuid="GPU-0")
    default = ranked_defaults(chosen_families(gemm, here, None), gemm, here, REGIME)[0][1]
    bench.device = here
    for shipped in (False, True):
        records = ship(tmp_path / "shipped", here, measured_on(here, gemm, [(default, 10.0)])) if shipped else None
        bench.store = LayeredStore(database, records)
        bench.store.put_device(here)
        assert Tuning(gemm, bench, REGIME).default_ahead() == ([] if shipped else [default])


@pytest.mark.parametrize("shape", ["4096x4096x4096", "1x4096x4096", "1024x2112x7168", "64x512x8192"])
def test_a_suite_shape_on_an_h200_of_the_published_races_is_answered_by_their_winner(
    database: Database, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "SEARCHED", SEARCHED)
    assert H200 is not None
    gemm, here = Gemm.parse(f"{shape}:f16:nt"), H200.devices[-1].with_(uuid="GPU-0")
    bench = FakeBench(store=LayeredStore(database))
    bench.device = here
    bench.store.put_device(here)
    record = Tuning(gemm, bench, REGIME).run()
    winner = next(iter(raced_times(H200.candidates(here.key, str(gemm), REGIME))))
    assert (bench.built, bench.fake.evaluated, record.config) == ([winner], [], winner)
    assert (record.role, record.shipped, record.portable) == ("tuned", True, False)


@pytest.mark.parametrize("model", ["NVIDIA H200", "NVIDIA H100 PCIe"])
def test_a_suite_shape_on_a_hopper_is_answered_by_a_race_of_what_was_shipped(database: Database, model: str) -> None:
    assert H200 is not None
    gemm = Gemm.parse("4096x4096x4096:f16:nt")
    measured = H200.devices[0]
    others = model != "NVIDIA H200"
    bench = FakeBench(store=LayeredStore(database))
    bench.device = measured.with_(
        model=model, uuid="GPU-0", environment=(("tvm", "0.27"), ("driver", "580.1"), ("cuda", "13.0"))
    )
    bench.store.put_device(bench.device)
    bench.us = lambda config: 200.0 if config == wgmma else 100.0
    wgmma = FAMILIES["wgmma"].default(gemm, bench.device, REGIME)
    task = Tuning(gemm, bench, REGIME, other_devices=others)
    assert task.default_ahead() == [wgmma], "its fallback is that, whatever its search tries first"
    record = task.run()
    offer = bench.store.offer(gemm, bench.device, REGIME, other_devices=others)
    assert offer is not None
    # Where a ranking model chose the default it is one of those that were shipped; two that were raced come first.
    first = dict.fromkeys([*list(raced_times(offer.candidates))[:2], *fastest(offer.candidates, 4)])
    assert set(bench.built) == {wgmma, *[*first][:4]}
    assert len(bench.built) == len(set(bench.built))
    assert (record.role, record.portable, record.device.model) == ("tuned", True, model)
    assert record.config.family == "wgmma"
    told = {"device": measured.key, "environment": {}, "same": False, "configs": len(offer.candidates)}
    told |= {"other_device": True} if others else {}
    assert shipped_of(record.timings).to_json() == told
    assert record.other_device == (measured.key if others else None)
    assert bench.store.kernel(gemm, bench.device.key, REGIME, other_devices=True) == record
    unasked = bench.store.kernel(gemm, bench.device.key, REGIME)
    assert (unasked == record, unasked is None or unasked.role == "fallback") == (not others, others)
