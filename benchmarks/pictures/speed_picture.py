"""The picture of README: speed against cuBLAS over problems that nothing was fitted to, as SVG from results files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pictures.standalone import STYLE
from benchmarks.suite_tables import has_aligned_rows
from benchmarks.tables import documents
from tirgemm.analysis.figures.svg import circle, path, picture, text
from tirgemm.bench.held_out import NEWEST_SEEDS
from tirgemm.gemm import Gemm

DEVICE, VARIANT = "nvidia-h200", "quick"
# Both call cuBLAS; a problem is compared with the faster.
BASELINES = ("torch.matmul", "cublaslt_best")
_WIDTH, _LEFT, _RIGHT, _UPPER, _LOWER = 760, 62, 744, 70, 362


@dataclass(frozen=True, slots=True)
class ProblemSpeed:
    """One problem: what it is, and the speed of our kernel over the faster of the baselines."""

    gemm: Gemm
    ratio: float


def problem_speeds(results: Path) -> list[ProblemSpeed]:
    """The problems of the newest judge suites that were measured on the device, in the regime ``sustained``: earlier
    ones were measured with earlier programs."""
    return [
        ProblemSpeed(Gemm.parse(row["gemm"]), min(row["baselines"][name]["ratio"] for name in BASELINES))
        for seed in NEWEST_SEEDS
        for document in documents(results, f"judge-{seed}.sustained", DEVICE)
        for row in document["rows"]
        if row["variant"] == VARIANT and row["baselines"].keys() >= {*BASELINES}
    ]


def speed_picture(results: Path) -> str:
    """Work across, speed over cuBLAS up, both logarithmic: a dot a problem, and the line on which both are as fast."""
    shown = problem_speeds(results)
    if not shown:
        return picture(
            _WIDTH, 40, f"Not measured yet: tirgemm bench judge-{NEWEST_SEEDS[0]} --variants {VARIANT}", [STYLE]
        )
    work = [math.log10(point.gemm.flops) for point in shown]
    speed = [math.log2(point.ratio) for point in shown]
    x0, x1 = math.floor(min(work)), math.ceil(max(work))
    y0, y1 = min(-1, math.floor(min(speed))), max(1, math.ceil(max(speed)))

    def across(value: float) -> float:
        return _LEFT + (value - x0) / (x1 - x0) * (_RIGHT - _LEFT)

    def up(value: float) -> float:
        return _LOWER - (value - y0) / (y1 - y0) * (_LOWER - _UPPER)

    shapes = [STYLE]
    for decade in range(x0, x1 + 1):
        shapes += [
            path([(across(decade), _UPPER), (across(decade), _LOWER)], "l"),
            text(across(decade), _LOWER + 16, _operations(decade), "s m"),
        ]
    for power in range(y0, y1 + 1):
        kind = "o" if power == 0 else "l"
        shapes += [
            path([(_LEFT, up(power)), (_RIGHT, up(power))], kind),
            text(_LEFT - 6, up(power) + 4, f"{2.0**power:g} ×", "s e"),
        ]
    shapes.append(text(_LEFT + 4, up(0) + 14, "as fast as cuBLAS", "s"))
    groups = [
        ("aligned", "rows of whole 16 bytes", [point for point in shown if has_aligned_rows(point.gemm)]),
        ("other", "other rows", [point for point in shown if not has_aligned_rows(point.gemm)]),
    ]
    for kind, _, group in groups:
        for point in group:
            # No names: by what nobody has looked at problem by problem later programs are judged too.
            at = across(math.log10(point.gemm.flops)), up(math.log2(point.ratio))
            shapes.append(circle(*at, 3.2, kind, f"{point.ratio:.2f} x"))
    shapes += _legend(groups)
    shapes.append(text((_LEFT + _RIGHT) / 2, _LOWER + 34, "floating-point operations of the problem (2mnk)", "s m"))
    title = f"Speed over cuBLAS on {len(shown)} problems drawn by a seed, NVIDIA H200, after a quick search"
    return picture(_WIDTH, _LOWER + 44, title, shapes)


def _legend(groups: Sequence[tuple[str, str, list[ProblemSpeed]]]) -> Iterator[str]:
    for line, (kind, name, group) in enumerate(groups):
        if group:
            y = 40 + 17 * line
            mean = statistics.geometric_mean(point.ratio for point in group)
            behind = sum(point.ratio < 1 for point in group)
            yield circle(_LEFT + 4, y - 4, 4, kind, name)
            words = f"{name}: {len(group)} problems, geometric mean {mean:.2f} ×, slower than cuBLAS in {behind}"
            yield text(_LEFT + 13, y, words)


def _operations(decade: int) -> str:
    """10 to the power of ``decade`` with the usual prefix."""
    prefixes = {3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
    exponent = max((e for e in prefixes if e <= decade), default=0)
    return f"{10 ** (decade - exponent)} {prefixes.get(exponent, '')}".strip()
