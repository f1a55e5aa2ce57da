"""Suites in the variants of efforts: what a user without any records gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_samples import cpu
from tests.helpers.fake_workbench import FakeBench, hashed_us
from tests.observed_calls import observed
from tirgemm import Config, Gemm
from tirgemm.bench import suite_run
from tirgemm.bench.results import ResultsFile, Row, environment
from tirgemm.bench.suite_file import Suite
from tirgemm.bench.suite_run import Bench, BenchOptions, Work
from tirgemm.errors import InvalidRequest
from tirgemm.families import FAMILIES
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning.set_tuning import tuning_class
from tirgemm.tuning.tune import Tuning

GEMM = Gemm.parse("61x67x71:f16:nt")


def default(bench: FakeBench) -> Config:
    return FAMILIES["x86"].default(GEMM, bench.device, "sustained")


def rows(tmp_path: Path, bench: FakeBench, variants: str, *gemms: Gemm, **options: Any) -> dict[str, Row]:
    suite = Suite("tiny", "made up for this test", gemms or (GEMM,))
    file = ResultsFile(tmp_path / "tiny.json", suite.name, "sustained", environment(cpu(), None), resume=False)
    runner = Bench(bench, BenchOptions(seed=0, races=1, **options))
    assert runner.run([Work(suite, "sustained", file)], variants.split(), lambda _row, _kept: None) == 0
    assert bench._ahead == {}
    return {row["variant"]: row for row in file.rows}


def test_each_effort_has_a_row_of_the_same_race(tmp_path: Path) -> None:
    bench = FakeBench()
    by_variant = rows(tmp_path, bench, "zero_shot quick")
    assert list(by_variant) == ["zero_shot", "quick"]
    assert by_variant["zero_shot"]["config_hash"] == default(bench).digest
    assert by_variant["zero_shot"]["baselines"]["default"]["ratio"] == 1
    best = min(bench.built, key=hashed_us)
    assert by_variant["quick"]["config_hash"] == best.digest
    assert by_variant["quick"]["baselines"]["default"]["ratio"] == pytest.approx(
        hashed_us(default(bench)) / hashed_us(best)
    )
    assert by_variant["quick"]["races"][0]["at"] == by_variant["zero_shot"]["races"][0]["at"]
    assert "seconds" not in by_variant["quick"]
    assert [t.options.reason for t in bench.fake.timed].count("report") == 0, "no figures of its own"


def test_records_are_not_asked(tmp_path: Path) -> None:
    bench = FakeBench()
    config = default(bench)
    samples = (SampleSet((0.1,)),)
    bench.store.add_candidate(Candidate(GEMM, bench.device.key, "sustained", config, Status.WRONG, sample_sets=samples))
    assert rows(tmp_path, bench, "quick")["quick"]["status"] == "measured"
    assert config in bench.fake.evaluated, "though the store says that it is wrong"
    assert len(bench.store.candidates(GEMM, bench.device.key, "sustained")) == 1


def test_clocked_answers_are_whole_and_say_how_long_they_took(tmp_path: Path) -> None:
    bench = FakeBench()
    by_variant = rows(tmp_path, bench, "zero_shot quick", clock=True)
    assert by_variant["quick"]["seconds"] > by_variant["zero_shot"]["seconds"] > 0
    reports = [t.options.reason for t in bench.fake.timed].count("report")
    assert reports == 2, "a certified kernel with its figures, and one before that, which is not clocked"


def test_before_the_first_clocked_answer_the_processes_make_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, budgets = FakeBench(), list[Budget]()
    bench.pool.processes = 3
    run = Tuning.run

    def noted(tuning: Tuning) -> Any:
        budgets.append(tuning.budget)
        return run(tuning)

    monkeypatch.setattr(Tuning, "run", noted)
    rows(tmp_path, bench, "zero_shot quick", GEMM, Gemm.parse("61x67x73:f16:nt"), clock=True)
    efforts = [Effort.NONE, Effort.QUICK]
    assert [budget.effort for budget in budgets] == [Effort.QUICK, *efforts, *efforts]
    assert budgets[0].trials == 3


def test_a_second_search_draws_with_another_seed_and_is_raced_beside_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def recorded(gemm: Gemm) -> Any:
        return observed(tuning_class(gemm), lambda *_, seed, **_named: seeds.append(seed))

    monkeypatch.setattr(suite_run, "tuning_class", recorded)
    bench = FakeBench()
    by_variant = rows(tmp_path, bench, "standard standard_again")
    assert list(by_variant) == ["standard", "standard_again"]
    assert seeds[-1] == 1
    assert set(seeds[:-1]) == {0}
    assert by_variant["standard"]["races"][0]["at"] == by_variant["standard_again"]["races"][0]["at"]
    for variants, options in (("standard_again", {}), ("standard standard_again", {"clock": True})):
        with pytest.raises(InvalidRequest, match="'standard_again' is compared with 'standard'"):
            rows(tmp_path / "other", bench, variants, **options)
