"""The race of kernel sets against kernels for one m, on the CPU with a tiny suite."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import check
from benchmarks.history import History
from benchmarks.kernel_sets import race as kernel_set_race
from benchmarks.kernel_sets.race import main, problems, tuned_package
from tests.helpers.fake_workbench import FakeBench
from tirgemm import Budget, Gemm
from tirgemm.bench.results import load
from tirgemm.bench.suites import suite_named
from tirgemm.errors import BuildFailed, DoesNotFit
from tirgemm.gemm import Range
from tirgemm.tuning.tune import Tuning

GEMMS = ["1x48x16:f32:nt", "2x48x16:f32:nt"]


def test_the_problems_of_one_n_and_k_make_one_set_over_their_range() -> None:
    by_model = [list(problems(suite_named(name).gemms)) for name in ("rows", "rows_70b")]
    for sets in by_model:
        assert [(str(whole.m), len(gemms)) for whole, gemms in sets] == [("1..8192", 20)] * 4
    llama = {(gemm.n, gemm.k) for gemm in suite_named("llama").gemms}
    assert {(whole.n, whole.k) for sets in by_model for whole, _ in sets} == llama


def test_a_set_is_raced_at_every_m_beside_the_kernel_for_that_m(tmp_path: Path) -> None:
    folder = tmp_path / "suites"
    folder.mkdir()
    suite, out = folder / "tiny.json", tmp_path / "tiny.sustained.json"
    suite.write_text(json.dumps({"name": "tiny", "source": "made up", "gemms": GEMMS}))
    options = ["--suite", str(suite), "--device", "cpu", "--effort", "quick", "--trials", "1", "--seconds", "0.1"]
    options += ["--data", str(tmp_path / "data"), "--lock-dir", str(tmp_path), "--out", str(out)]
    assert main(options) == 0
    document = load(out)
    assert [(row["gemm"], row["variant"]) for row in document["rows"]] == [(gemm, "set") for gemm in GEMMS]
    for row in document["rows"]:
        assert {"tuned", "numpy_f32"} <= row["baselines"].keys()
        assert row["conditions"].get("left_out") is None
    assert check.faults(out, folder, history=History(Path("/"))) == []
    before = out.read_bytes()
    assert main([*options, "--resume"]) == 0  # nothing is left to do
    assert load(out)["rows"] == json.loads(before)["rows"]


def test_without_a_search_the_kernel_for_one_m_is_its_default() -> None:
    bench, gemm = FakeBench(), Gemm.parse(GEMMS[1])
    package = tuned_package(Tuning(gemm, bench, "sustained", Budget.of("none")))
    known = bench.store.kernel(gemm, bench.device.key, "sustained")
    assert known is not None
    assert (known.role, bench.store.get_blob(known.artifact_sha256)) == ("fallback", package)


def test_a_problem_ahead_that_nobody_can_tune_costs_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, (first, second) = FakeBench(), [Gemm.parse(text) for text in GEMMS]
    told: list[Gemm] = []

    def begun(gemm: Gemm, *_: Any) -> Any:
        told.append(gemm)
        if gemm == second:
            raise DoesNotFit(f"{gemm} needs more memory than there is")
        return SimpleNamespace(build_ahead=lambda: None, effort=None, budget=None, selected=failing)

    def failing(_: Any) -> Any:
        raise BuildFailed("made up")

    monkeypatch.setattr(kernel_set_race, "Tuning", begun)
    row = kernel_set_race._row(bench, first.with_(m=Range(1, 2)), [first, second], "sustained", Budget.of("none"), 0.1)
    assert told == [first, second, first]
    assert (row["status"], row["message"]) == ("build_failed", "made up")
