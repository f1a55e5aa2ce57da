"""README's picture: a dot for every problem, at its size and its speed, on made-up results files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pictures.speed_picture import problem_speeds, speed_picture
from tests.helpers.scripts import script
from tirgemm.bench.results import FORMAT

ROOT = Path(__file__).resolve().parents[3]
render: Any = script("benchmarks/render.py")
# Speed over torch.matmul and over cuBLASLt's best: twice and half as fast as the faster of the two, and odd rows.
SPEEDS = {
    "64x64x64:f16:nt": (2.0, 3.0),
    "1024x1024x1024:bf16:nn": (0.9, 0.5),
    "63x65x67:f16:nt": (1.0, 1.0),
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [
        {
            "gemm": gemm,
            "variant": variant,
            "baselines": {"torch.matmul": {"ratio": speeds[0]}, "cublaslt_best": {"ratio": speeds[1]}},
        }
        for variant in ("zero_shot", "quick")
        for gemm, speeds in SPEEDS.items()
    ]
    rows.append({"gemm": "128x128x128:f16:nt", "variant": "quick", "baselines": {}})  # not measured
    (tmp_path / "nvidia-h200").mkdir()
    path = tmp_path / "nvidia-h200" / "judge-120.sustained.json"
    path.write_text(json.dumps({"format": FORMAT, "rows": rows}))
    earlier = [rows[2] | {"gemm": "256x256x256:f16:nt"}]
    older = tmp_path / "nvidia-h200" / "judge-102.sustained.json"
    older.write_text(json.dumps({"format": FORMAT, "rows": earlier}))
    return tmp_path


def test_a_problem_is_compared_with_the_faster_of_the_baselines(results: Path) -> None:
    assert [(str(speed.gemm), speed.ratio) for speed in problem_speeds(results)] == [
        ("64x64x64:f16:nt", 2.0),
        ("1024x1024x1024:bf16:nn", 0.5),
        ("63x65x67:f16:nt", 1.0),
    ]


def test_a_dot_lies_where_its_problem_is_without_its_name_and_odd_rows_look_different(results: Path) -> None:
    drawn = speed_picture(results)
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3.2" class="(\w+)"><title>([^<]+)', drawn)
    assert [tip for *_, tip in dots] == ["2.00 x", "0.50 x", "1.00 x"]
    assert not [gemm for gemm in SPEEDS if gemm in drawn]
    fast, slow, even = ((float(x), float(y), kind) for x, y, kind, _ in dots)
    (line,) = {float(y) for y in re.findall(r'<path d="M[\d.]+ ([\d.]+)L[^"]*" class="o"/>', drawn)}
    assert fast[1] < even[1] == line < slow[1], "faster is higher up"
    assert fast[0] < even[0] < slow[0], "larger is further right"
    assert [dot[2] for dot in (fast, slow, even)] == ["aligned", "aligned", "other"]
    assert "2 problems, geometric mean 1.00 ×, slower than cuBLAS in 1" in drawn
    assert "on 3 problems" in drawn


def test_without_results_the_picture_says_how_to_get_them(tmp_path: Path) -> None:
    assert "Not measured yet" in speed_picture(tmp_path)


def test_a_picture_that_is_out_of_date_is_noticed_and_drawn_again(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = results / "speed.svg"
    monkeypatch.setattr(render, "PICTURES", {path: speed_picture})
    monkeypatch.setattr(render, "RESULTS", results)
    path.write_text("old")
    assert render.main(["--check", str(path)]) == 1
    assert path.read_text() == "old"
    assert "out of date" in capsys.readouterr().out
    assert render.main([str(path)]) == 0
    assert render.main(["--check", str(path)]) == 0


def test_readme_shows_a_picture_that_is_drawn_and_every_drawn_one_is_shown() -> None:
    def shown(page: Path) -> list[Path]:
        targets = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
        return [(page.parent / target).resolve() for target in targets]

    assert shown(ROOT / "README.md") == [ROOT / "docs" / "speed.svg"]
    assert {*render.PICTURES} <= {path for page in (ROOT / "docs").rglob("*.md") for path in shown(page)}
