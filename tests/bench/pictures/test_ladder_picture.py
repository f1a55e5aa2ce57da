"""The picture of the ladder: a bar for each measured rung, as long as it is fast beside cuBLAS."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.pictures.ladder_picture import ladder_picture
from tirgemm.bench.ladder_report import reported
from tirgemm.bench.results import load
from tirgemm.gemm import Gemm

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


def test_a_bar_is_as_long_as_its_rung_is_fast_and_a_slower_one_is_outlined() -> None:
    drawn = ladder_picture(RESULTS)
    bars = re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)"[^>]* class="(\w+)"[^>]*><title>(\w+):', drawn)
    gemm = Gemm.parse("4096x4096x4096:f32:nn")
    entries = reported(load(RESULTS / "nvidia-h200" / "ladder.sustained.json.gz")["rows"], gemm)
    assert [name for _, _, name in bars] == [entry.step.name for entry in entries if entry.tflops]
    (line,) = {float(x) for x in re.findall(r'<path d="M([\d.]+) [^"]*" class="o"/>', drawn)}
    start = float(re.findall(r'<rect x="([\d.]+)"', drawn)[0])
    for (width, kind, _), entry in zip(bars, entries, strict=True):
        assert float(width) / (line - start) == pytest.approx(entry.shares["cublaslt_best"], abs=0.003)
        assert (kind == "other") == (entry.not_slower is False)


def test_without_results_the_picture_says_the_command(tmp_path: Path) -> None:
    assert "Not measured yet: tirgemm ladder --suite ladder" in ladder_picture(tmp_path)
