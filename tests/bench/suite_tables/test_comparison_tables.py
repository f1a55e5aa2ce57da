"""Tables within one file: of suite ``breadth`` each problem beside the plain one, searches from nothing beside
each other, and ways of a call."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import comparison_tables
from tests.bench.suite_tables.made_up_results import GPU, cells, raced
from tests.bench.test_results import COMMIT
from tirgemm.bench.results import ResultsFile, environment
from tirgemm.gemm import Gemm


def test_a_problem_stands_beside_the_plain_one_of_its_sizes(tmp_path: Path) -> None:
    changed = ["64x64x64:f16:nt:bias:act=relu", "1..64x64x64:bf16:tt:batch=2", "64x64x64:f16:nt:out=f32"]
    for text in changed:
        assert comparison_tables.plain(Gemm.parse(text)) == Gemm.parse("64x64x64:f16:nt")
    gemms = [str(Gemm.parse(text)) for text in ("64x64x64:f16:nt", *changed)]
    (tmp_path / "breadth.json").write_text(json.dumps({"name": "breadth", "source": "", "gemms": gemms}))
    path = tmp_path / "results" / "gpu" / "breadth.sustained.json"
    assert "Not measured yet" in comparison_tables.breadth(path.parent, tmp_path)
    file = ResultsFile(path, "breadth", "sustained", environment(GPU, None, COMMIT), resume=False)
    file.put(raced(gemms[0], "quick", 10.0, {"torch.matmul": 11.0, "cublaslt_best": 8.0}))
    file.put(raced(gemms[1], "quick", 12.5, {"torch.matmul": 25.0, "torch.compile": 15.0}))
    file.put(raced(gemms[2], "quick", 20.0, {"torch.matmul": 10.0}))
    table = comparison_tables.breadth(path.parent, tmp_path)
    assert cells(table, f"`{gemms[0]}`") == ["10.00", "1.000", "1.100", "", "0.800"]
    assert cells(table, f"`{gemms[1]}`") == ["12.50", "0.800", "2.000", "1.200", ""]
    assert cells(table, f"`{gemms[2]}`")[:3] == ["20.00", "1.000", "0.500"], "two products in twice the time"
    assert cells(table, f"`{gemms[3]}`")[0] == "not measured"
    assert cells(table, "**geometric mean (least)**")[2:] == [
        "1.032 (0.500)",
        "1.200 (1.200; 1 of 3)",
        "0.800 (0.800; 1 of 3)",
    ]


def test_two_searches_of_a_problem_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "gpu" / "judge-103.sustained.json"
    assert "Not measured yet" in comparison_tables.repeated(path.parent, tmp_path)
    file = ResultsFile(path, "judge-103", "sustained", environment(GPU, None, COMMIT), resume=False)
    for text, first, again in (("64x64x64", 10.0, 10.1), ("64x64x128", 10.0, 9.5), ("64x64x256", 4.0, 4.0)):
        file.put(raced(f"{text}:f16:nt", "standard", first, {}), raced(f"{text}:f16:nt", "standard_again", again, {}))
    file.put(raced("64x64x512:f16:nt", "standard", 1.0, {}))
    table = comparison_tables.repeated(path.parent, tmp_path)
    assert cells(table, "judge-103") == ["sustained", "3", "3", "2 (67%)", "5.3%"]


def test_what_efforts_choose_stands_beside_baselines_and_default(tmp_path: Path) -> None:
    path = tmp_path / "gpu" / "skinny.sustained.json"
    assert "Not measured yet" in comparison_tables.answers(path.parent, tmp_path)
    file = ResultsFile(path, "skinny", "sustained", environment(GPU, None, COMMIT), resume=False)
    for text, us in (("64x64x64", 10.0), ("64x64x128", 5.0)):
        baselines = {"torch.matmul": 9.0, "cublaslt_best": 12.0, "default": 10.0}
        file.put(
            raced(f"{text}:f16:nt", "quick", us, baselines),
            raced(f"{text}:f16:nt", "tuned", 1.0, baselines),
            raced(f"{text}:f16:nt", "standard_again", 1.0, baselines),
        )
    table = comparison_tables.answers(path.parent, tmp_path)
    shown = ["quick", file.document["environment"]["date"][:10], "1.273 (0.900)", "1.697 (1.200)", "1", "0"]
    assert cells(table, "skinny; 2") == [*shown, "1.414 (1.000)"]
    assert len(table.splitlines()) == 5, "no row of another variant"
    isolated = ResultsFile(
        path.with_name("skinny.isolated.json"), "skinny", "isolated", environment(GPU, None, COMMIT), resume=False
    )
    isolated.put(raced("64x64x64:f16:nt", "quick", 10.0, {"torch.matmul": 11.0, "cublaslt_best": 9.0, "default": 10.0}))
    sustained, other = comparison_tables.answers(path.parent, tmp_path).split("\n\nisolated; ")
    assert sustained == table
    assert cells(other, "skinny; 1") == [*shown[:2], "1.100 (1.100)", "0.900 (0.900)", "0", "1", "1.000 (1.000)"]


def test_the_mean_over_the_suites_needs_all_of_them(tmp_path: Path) -> None:
    """Each suite counts once, however many problems it has."""
    times = {"square": [10.0, 10.0, 10.0], "deepgemm": [5.0], "llama": [20.0], "skinny": [40.0]}
    for name, each in times.items():
        assert "mean over" not in comparison_tables.answers(tmp_path / "gpu", tmp_path)
        path = tmp_path / "gpu" / f"{name}.sustained.json"
        file = ResultsFile(path, name, "sustained", environment(GPU, None, COMMIT), resume=False)
        beside = {"torch.matmul": 10.0, "cublaslt_best": 20.0, "default": 10.0}
        file.put(*(raced(f"64x64x{64 * (i + 1)}:f16:nt", "quick", us, beside) for i, us in enumerate(each)))
    table = comparison_tables.answers(tmp_path / "gpu", tmp_path)
    means = ["**0.707** (0.250)", "**1.414** (0.500)", "", "", "**0.707** (0.250)"]
    assert cells(table, "**mean over the suites**") == ["quick", "", *means]


def test_clocked_answers_have_their_seconds_by_effort(tmp_path: Path) -> None:
    path = tmp_path / "gpu" / "square.sustained.json"
    assert "Not measured yet" in comparison_tables.answer_seconds(path.parent, tmp_path)
    file = ResultsFile(path, "square", "sustained", environment(GPU, None, COMMIT), resume=False)
    gemm = "64x64x64:f16:nt"
    file.put(
        raced(gemm, "zero_shot", 3.0, {}) | {"seconds": 0.84}, raced(gemm, "standard", 2.0, {}) | {"seconds": 11.0}
    )
    file.put(raced("64x64x128:f16:nt", "quick", 2.0, {}))
    table = comparison_tables.answer_seconds(path.parent, tmp_path)
    assert cells(table, f"`{gemm}`") == ["0.8", "", "11.0"]
    assert "64x64x128" not in table


def test_calls_of_a_second_problem_have_a_table_of_their_own(tmp_path: Path) -> None:
    row = {"way": "raw", "call": "raw(a, b, out)", "median_us": 1.25, "min_us": 1.0}
    rows = [row, row | {"way": "layer", "gemm": "1x64x64:f32:nt"}]
    about = {"device": "a CPU", "torch": "2.13"}
    document = {"gemm": "1x16x16:f32:nt", "environment": about, "rows": rows}
    (tmp_path / "calls.json").write_text(json.dumps(document))
    first, second = comparison_tables.calls(tmp_path, tmp_path).split("\n\none call of")
    assert first.startswith("one call of `1x16x16:f32:nt` from Python on a CPU, torch 2.13")
    assert cells(first, "raw") == ["`raw(a, b, out)`", "1.25", "1.00"]
    assert cells(second, "layer") == ["`raw(a, b, out)`", "1.25", "1.00"]
