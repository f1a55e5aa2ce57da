"""The tuned row taken from recorded candidates, and kernels that are the default."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench.suite_run.fake_bench import TUNED, FakeMeasurer, FakeTuning, FakeWorkbench, measured, recorded
from tests.helpers.artifact_samples import CONFIG
from tirgemm import Config
from tirgemm.bench.suite_file import Suite
from tirgemm.config import Knob, Space
from tirgemm.service.commands.bench import _line


@pytest.mark.parametrize("by_config", [True, False])
def test_a_tuned_kernel_that_is_the_default_has_its_samples_and_a_ratio_of_one(
    tmp_path: Path, suite: Suite, tuning: type[FakeTuning], monkeypatch: pytest.MonkeyPatch, by_config: bool
) -> None:
    """The default's config, or another one that compiles to the same."""
    monkeypatch.setattr(tuning, "best", CONFIG if by_config else TUNED)
    bench = FakeWorkbench(FakeMeasurer(times={CONFIG.digest: 3.0, TUNED.digest: 2.9}), same=(TUNED,))
    file = measured(tmp_path / "tiny.sustained.json", suite, bench)
    assert bench.measurer.calls == [("sustained", (), ("numpy_f32",))] * 3, "it is not timed against itself"
    for default, tuned in zip(file.rows[::2], file.rows[1::2], strict=True):
        assert tuned["samples_us"] == tuned["baselines"]["default"]["samples_us"] == default["samples_us"]
        assert tuned["baselines"]["default"]["ratio"] == 1
        assert tuned["config"] == default["config"]
    assert file.document["summary"]["tuned"]["default"] == {"geomean": 1, "min": 1, "count": 3}
    assert "(the default is the best)" in _line(tuned, False)
    assert "the default is the best" not in _line(default, False)


@pytest.mark.usefixtures("sample_family")
def test_a_config_that_fails_beside_one_that_is_the_default_costs_no_row(tmp_path: Path, suite: Suite) -> None:
    wrong = Config("sample", (("rows", 4),))
    bench = recorded(FakeWorkbench(FakeMeasurer(wrong=wrong.digest), same=(TUNED,)), wrong, TUNED)
    one = Suite("tiny", "the first", suite.gemms[:1])
    file = measured(tmp_path / "tiny.sustained.json", one, bench, recorded=True)
    assert [row["status"] for row in file.rows] == ["measured", "measured"]
    assert file.rows[1]["baselines"]["default"]["ratio"] == 1


ROWS = [Config("sample", (("rows", rows),)) for rows in (1, 2, 4, 8)]


@pytest.mark.usefixtures("sample_family")
def test_the_tuned_row_is_the_fastest_now_of_the_recorded_best(tmp_path: Path, suite: Suite) -> None:
    one = Suite("tiny", "the first", suite.gemms[:1])
    times = {CONFIG.digest: 4.0, TUNED.digest: 3.0, ROWS[2].digest: 2.5}
    # By the records 2 rows are faster than 4; beside each other it is the other way round.
    bench = recorded(FakeWorkbench(FakeMeasurer(times=times, alone=2.0)), ROWS[3], TUNED, ROWS[2])
    file = measured(tmp_path / "tiny.sustained.json", one, bench, recorded=True)
    tuned = file.rows[1]
    assert bench.measurer.calls == [
        ("sustained", (TUNED.digest, ROWS[2].digest), ()),
        ("sustained", (ROWS[2].digest,), ("numpy_f32",)),
    ], "one race chooses, another reports"
    assert (tuned["config_hash"], tuned["median_us"]) == (ROWS[2].digest, 2.5)
    assert tuned["conditions"]["selection_us"].keys() == {CONFIG.digest, TUNED.digest, ROWS[2].digest}
    assert tuned["conditions"]["selection_us"][TUNED.digest] == [6.0] * 3, "every contender's samples are kept"
    assert set(tuned["samples_us"]) == {2.5}, "and none of those that chose is reported"
    assert tuned["baselines"]["default"]["ratio"] == 4.0 / 2.5
    assert tuned["conditions"]["entrants"] == [CONFIG.digest, TUNED.digest, ROWS[2].digest]
    assert FakeTuning.runs == [], "nothing is tuned"
    one_only = recorded(FakeWorkbench(FakeMeasurer(times=times)), ROWS[3], TUNED, ROWS[2])
    again = measured(tmp_path / "again.sustained.json", one, one_only, recorded=True, finalists=1)
    assert again.rows[1]["config_hash"] == TUNED.digest, "the second is not run"


@pytest.mark.usefixtures("sample_family")
def test_the_fastest_recorded_configs_run_whatever_the_order_of_their_families(
    tmp_path: Path, suite: Suite, tuning: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Space("first", (Knob("rows", (1, 2, 4, 8)),))
    first = SimpleNamespace(name="first", space=lambda *_: space, rules=())
    monkeypatch.setattr(tuning, "families", (first, *tuning.families))
    slower = [Config("first", (("rows", rows),)) for rows in (1, 2)]
    bench = recorded(FakeWorkbench(), TUNED, ROWS[2], *slower)
    one = Suite("tiny", "the first", suite.gemms[:1])
    measured(tmp_path / "tiny.sustained.json", one, bench, recorded=True)
    assert bench.measurer.calls[0] == ("sustained", (TUNED.digest, ROWS[2].digest), ())


@pytest.mark.usefixtures("sample_family")
def test_the_default_is_the_tuned_row_where_nothing_is_faster_or_known(tmp_path: Path, suite: Suite) -> None:
    bench = recorded(FakeWorkbench(FakeMeasurer(times={TUNED.digest: 2.5})), TUNED)
    file = measured(tmp_path / "tiny.sustained.json", suite, bench, recorded=True)
    assert {row["config_hash"] for row in file.rows if row["variant"] == "tuned"} == {CONFIG.digest}
    assert file.rows[1]["baselines"]["default"]["ratio"] == 1.0
    before = len(bench.measurer.calls)
    measured(tmp_path / "tiny.sustained.json", suite, bench, recorded=True)
    assert len(bench.measurer.calls) == before, "all is kept"


@pytest.mark.usefixtures("sample_family")
@pytest.mark.parametrize(("trouble", "status"), [("wrong", "wrong"), ("dies", "crashed")])
def test_a_best_config_that_fails_does_not_cost_the_default_its_row(
    tmp_path: Path, suite: Suite, trouble: str, status: str
) -> None:
    measurer = FakeMeasurer(wrong=TUNED.digest) if trouble == "wrong" else FakeMeasurer(dies_with=TUNED.digest)
    one = Suite("tiny", "the first", suite.gemms[:1])
    bench = recorded(FakeWorkbench(measurer), TUNED)
    file = measured(tmp_path / "tiny.sustained.json", one, bench, recorded=True)
    assert file.rows[0]["status"] == "measured"
    assert (file.rows[1]["status"], file.rows[1]["config_hash"]) == (status, TUNED.digest)
    assert file.rows[0]["conditions"]["entrants"] == [CONFIG.digest]
