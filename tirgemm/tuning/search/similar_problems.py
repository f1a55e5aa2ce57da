"""Problems like another one: of the same types and layout, nearest by the logarithms of their sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tirgemm.gemm import Gemm
from tirgemm.tuning.records import Candidate


def nearest(gemm: Gemm, problems: Iterable[Gemm]) -> list[Gemm]:
    """``problems`` of the gemm's types and layout but itself, nearest first; then those of others, likewise."""
    others = [problem for problem in dict.fromkeys(problems) if problem != gemm]
    return sorted(others, key=lambda problem: (_kind(problem) != _kind(gemm), math.dist(_sizes(gemm), _sizes(problem))))


def of_nearest(gemm: Gemm, candidates: Sequence[Candidate], most: int) -> list[Candidate]:
    """At most ``most`` of ``candidates``: those of the nearest problems, in the order given within each."""
    by_problem: dict[Gemm, list[Candidate]] = {}
    for candidate in candidates:
        by_problem.setdefault(candidate.gemm, []).append(candidate)
    order = [*([gemm] if gemm in by_problem else []), *nearest(gemm, by_problem)]
    return [candidate for problem in order for candidate in by_problem[problem]][:most]


def _kind(gemm: Gemm) -> tuple[str, str, str]:
    return gemm.dtype, gemm.out, gemm.layout


def _sizes(gemm: Gemm) -> tuple[float, ...]:
    return math.log2(gemm.m_max), math.log2(gemm.n), math.log2(gemm.k), math.log2(gemm.batch)
