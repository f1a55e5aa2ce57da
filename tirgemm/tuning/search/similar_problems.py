"""Problems like another one: of the same sizes, then of the same types and layout, nearest by the logarithms of their
sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tirgemm.gemm import Gemm
from tirgemm.tuning.records import Candidate


def nearest(gemm: Gemm, problems: Iterable[Gemm]) -> list[Gemm]:
    """``problems`` but the gemm itself: those of its sizes, then those of its types and layout, nearest first, then
    those of others, likewise."""
    others = [problem for problem in dict.fromkeys(problems) if problem != gemm]
    kind, sizes = _kind(gemm), _sizes(gemm)

    def distance(problem: Gemm) -> tuple[bool, bool, float]:
        theirs = _sizes(problem)
        return theirs != sizes, _kind(problem) != kind, math.dist(sizes, theirs)

    return sorted(others, key=distance)


def problems_of_same_sizes(gemm: Gemm, problems: Iterable[Gemm]) -> list[Gemm]:
    """``problems`` that differ from the gemm in types, layout, epilogue or promises alone, the nearest first. A range
    of m counts as its largest."""
    return [problem for problem in nearest(gemm, problems) if _sizes(problem) == _sizes(gemm)]


def candidates_of_nearest(gemm: Gemm, candidates: Sequence[Candidate], most: int) -> list[Candidate]:
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
