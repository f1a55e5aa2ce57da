"""The picture of the ladder's page: a bar for the measured speed of every rung, as SVG from a results file."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pictures.standalone import STYLE
from benchmarks.tables import documents
from tirgemm.analysis.figures.svg import path, picture, rect, text
from tirgemm.bench.ladder_report import RungFigures, reported
from tirgemm.gemm import Gemm

DEVICE, GEMM = "nvidia-h200", Gemm.parse("4096x4096x4096:f32:nn")
# The bars are shares of its speed.
BASELINE = "cublaslt_best"
_WIDTH, _LEFT, _RIGHT, _UPPER, _STEP = 760, 120, 640, 40, 19


def ladder_picture(results: Path) -> str:
    """Rungs from the top down, each with its TFLOP/s as a bar; the line is cuBLAS."""
    for document in documents(results, "ladder.sustained", DEVICE):
        entries = [entry for entry in reported(document["rows"], GEMM) if entry.tflops is not None]
        if entries:
            return _drawn(entries, str(document["environment"]["device"]))
    return picture(_WIDTH, 40, "Not measured yet: tirgemm ladder --suite ladder", [STYLE])


def _drawn(entries: list[RungFigures], device: str) -> str:
    full = next(entry.tflops / entry.shares[BASELINE] for entry in entries if entry.tflops and BASELINE in entry.shares)
    lowest = _UPPER + _STEP * len(entries)

    def across(tflops: float) -> float:
        return _LEFT + tflops / full * (_RIGHT - _LEFT)

    shapes = [STYLE]
    for number, entry in enumerate(entries):
        assert entry.tflops is not None
        y = _UPPER + _STEP * number
        kind = "other" if entry.not_slower is False else "aligned"
        told = f"{entry.tflops:.1f} TFLOP/s" + ("" if entry.gain is None else f", {entry.gain:.2f} x its parent")
        shapes += [
            text(_LEFT - 8, y + 12, entry.step.name, "e"),
            rect(_LEFT, y + 2, across(entry.tflops) - _LEFT, _STEP - 6, kind, f"{entry.step.name}: {told}"),
            text(_WIDTH - 60, y + 12, f"{entry.tflops:.1f}", "s e"),
        ]
    shapes += [
        path([(across(full), _UPPER - 4), (across(full), lowest)], "o"),
        text(across(full), lowest + 14, f"cuBLAS: {full:.1f}", "s m"),
        text(_LEFT, lowest + 14, "TFLOP/s; an outlined bar is slower than its parent", "s"),
    ]
    title = f"The rungs of the ladder for {GEMM} on an {device}"
    return picture(_WIDTH, lowest + 24, title, shapes)
