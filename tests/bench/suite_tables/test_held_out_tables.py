"""Tables of the held-out and the judge suites, with and without siblings of shipped records, on made-up files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import suite_tables
from scripts.packed_records import pack
from tests.bench.suite_tables.made_up_results import GPU, cells, config, raced
from tests.bench.test_results import COMMIT, faults
from tirgemm import Gemm
from tirgemm.bench.results import ResultsFile, environment, unmeasured_row
from tirgemm.bench.suites import suite_named
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning_db import shipped


@pytest.fixture
def no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shipped record has siblings of these problems."""
    (tmp_path / "shipped").mkdir()
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")


@pytest.mark.usefixtures("no_records")
def test_held_out_suites_are_tabled_by_effort_and_aligned_rows_apart(tmp_path: Path) -> None:
    path = tmp_path / "results" / "gpu" / "judge-102.sustained.json"
    file = ResultsFile(path, "judge-102", "sustained", environment(GPU, None, COMMIT), resume=False)
    for text, us in (("64x64x64:f16:nt", 8.0), ("64x64x65:f16:nt", 20.0)):
        file.put(raced(text, "quick", us, {"torch.matmul": 10.0, "cublaslt_best": 16.0}))
    table = suite_tables.held_out(path.parent, tmp_path)
    mean = math.sqrt(10 / 8 * 10 / 20)
    means = [f"{mean:.3f} (0.500)", f"{mean * 1.6:.3f} (0.800)"]
    assert cells(table, "judge-102, all; 2") == ["quick", *means, "1", "1", "2", *means]
    aligned = ["1.250 (1.250)", "2.000 (2.000)"]
    assert cells(table, "judge-102, rows of whole 16 bytes; 1") == ["quick", *aligned, "0", "0", "1", *aligned]
    assert "Not measured yet" in suite_tables.held_out(tmp_path / "results" / "other", tmp_path)


def test_held_out_suites_are_tabled_without_siblings_of_shipped_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped_folder = tmp_path / "shipped"
    shipped_folder.mkdir()
    sibling = Candidate(Gemm.parse("64x64x72:bf16:tn"), GPU.key, "sustained", config(), Status.MEASURED)
    pack(shipped_folder / f"gpu{shipped.SUFFIX}", [GPU], [sibling])
    monkeypatch.setattr(shipped, "FOLDER", shipped_folder)
    path = tmp_path / "results" / "gpu" / "judge-102.sustained.json"
    file = ResultsFile(path, "judge-102", "sustained", environment(GPU, None, COMMIT), resume=False)
    for text, us in (("64x64x64:f16:nt", 8.0), ("64x64x72:f16:nt", 4.0)):
        file.put(raced(text, "quick", us, {"torch.matmul": 10.0, "cublaslt_best": 16.0}))
    row = cells(suite_tables.held_out(path.parent, tmp_path), "judge-102, all; 2")
    assert row[1] == f"{math.sqrt(10 / 8 * 10 / 4):.3f} (1.250)"
    assert row[-3:] == ["1", "1.250 (1.250)", "2.000 (2.000)"]


@pytest.mark.usefixtures("no_records")
def test_judge_suites_are_tabled_together_and_the_grid_is_not_among_them(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "gpu"
    suites = (("judge-102", "64x64x64", 8.0), ("judge-103", "64x64x65", 20.0), ("grid", "64x64x128", 5.0))
    for suite, text, us in suites:
        path = folder / f"{suite}.sustained.json"
        file = ResultsFile(path, suite, "sustained", environment(GPU, None, COMMIT), resume=False)
        file.put(raced(f"{text}:f16:nt", "quick", us, {"torch.matmul": 10.0, "cublaslt_best": 16.0}))
        if suite == "judge-102":
            assert "together" not in suite_tables.held_out(folder, tmp_path)
    table = suite_tables.held_out(folder, tmp_path)
    mean = math.sqrt(10 / 8 * 10 / 20)
    means = [f"{mean:.3f} (0.500)", f"{mean * 1.6:.3f} (0.800)"]
    both = [*means, "1", "1", "2", *means]
    assert cells(table, "**judge-102, judge-103 together**, all; 2") == ["quick", *both]
    aligned = cells(table, "**judge-102, judge-103 together**, rows of whole 16 bytes; 1")
    assert aligned == ["quick", "1.250 (1.250)", "2.000 (2.000)", "0", "0", "1", "1.250 (1.250)", "2.000 (2.000)"]
    assert cells(table, "grid, all; 1")[1] == "2.000 (2.000)"


def test_judge_suites_that_were_read_and_the_others_are_not_tabled_together(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "gpu"
    for number, suite in enumerate(("judge-102", "judge-103", "judge-107", "judge-108", "judge-120", "twice-120"), 1):
        path = folder / f"{suite}.sustained.json"
        file = ResultsFile(path, suite, "sustained", environment(GPU, None, COMMIT), resume=False)
        file.put(raced(f"64x64x{64 * number}:f16:nt", "quick", 5.0 * number, {"torch.matmul": 10.0}))
    table = suite_tables.held_out(folder, tmp_path)
    assert cells(table, "**judge-102, judge-103 together**, all; 2")[1] == f"{math.sqrt(2):.3f} (1.000)"
    assert cells(table, "**judge-107, judge-108 together**, all; 2")[1] == f"{math.sqrt(10 / 15 * 10 / 20):.3f} (0.500)"
    assert table.count("together") == 4, "of all and of aligned rows"
    assert cells(table, "judge-120, all; 1")[1] == "0.400 (0.400)"
    assert cells(table, "twice-120, all; 1")[1] == "0.333 (0.333)"


def test_two_versions_stand_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "results" / "gpu" / "redesign.sustained.json"
    (tmp_path / "redesign.json").write_text(json.dumps({"name": "redesign", "source": "x", "gemms": ["8x8x8:f16:nt"]}))
    about = environment(GPU, None, COMMIT) | {"before_commit": "882d4fb"}
    file = ResultsFile(path, "redesign", "sustained", about, resume=False)
    times = {"before_default": 6.0, "default": 5.0, "before_tuned": 4.0, "tuned": 4.0}
    for variant, us in times.items():
        file.put(raced("8x8x8:f16:nt", variant, us, {"torch.matmul": 10.0} | times))
    table = suite_tables.versions(path.parent, tmp_path)
    assert cells(table, "`8x8x8:f16:nt`") == ["6.00", "5.00", "4.00", "4.00", "1.200", "1.000", "2.000", "2.500"]
    assert cells(table, "**geometric mean (least)**")[4] == "1.200 (1.200)"
    assert "`882d4fb`" in table


def test_a_held_out_suite_is_complete_or_its_file_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "judge-102.sustained.json"
    file = ResultsFile(path, "judge-102", "sustained", environment(GPU, None, COMMIT), resume=False)
    gemms = suite_named("judge-102").gemms
    file.put(*(unmeasured_row(gemm, None, "quick", "skipped", "no time") for gemm in gemms[1:]))
    assert [s for s in faults(path) if "no row" in s] == [f"{gemms[0]} has no row in variant quick"]
    file.put(unmeasured_row(gemms[0], None, "quick", "skipped", "no time"))
    assert not [sentence for sentence in faults(path) if "no row" in sentence or "not in suite" in sentence]
