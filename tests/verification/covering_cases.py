"""Cases of ``verification.covering`` for tests: deterministic ones, those of calls that follow one another, and the
values of knobs by classes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from tirgemm.config import Value
from tirgemm.device import Device
from tirgemm.families.base import Family, rejected
from tirgemm.gemm import Gemm
from verification.cases import Case, Feature, random_cases
from verification.covering import build_cost, covering, paths, small_cases

# An integer knob with more values than this is covered by classes: its ends, and by which power of two it divides.
_MOST_VALUES = 8
# Families some of whose kernels split k over several blocks.
SPLITTING = ("mma", "wgmma", "wmma")
# Cases that a family's deterministic and chained ones are chosen from.
_DETERMINISTIC_DRAWN, _CHAINED_DRAWN = 80, 40


def classes(cases: Sequence[Case]) -> Callable[[Case], frozenset[Feature]]:
    """``Case.features`` with the values of knobs that have many taken by classes, as they occur in ``cases``."""
    values: dict[str, set[Value]] = defaultdict(set)
    for case in cases:
        for name, value in case.config.knobs:
            values[name].add(value)
    many = {
        name: numbers
        for name, numbers in values.items()
        if len(numbers) > _MOST_VALUES and all(type(v) is int for v in numbers)
    }
    ends = {name: (min(map(int, numbers)), max(map(int, numbers))) for name, numbers in many.items()}

    def classed(feature: Feature) -> Iterator[Feature]:
        name, value = feature
        if name not in many or not isinstance(value, int):
            yield feature
            return
        yield f"{name} divides by", value & -value
        if value in ends[name]:
            yield feature

    return lambda case: frozenset(part for feature in case.features for part in classed(feature))


def deterministic_cases(family: Family, device: Device) -> list[Case]:
    """Cases of small problems that ask for determinism, such that every path that the family offers them occurs."""
    asked = [
        Case(case.gemm.with_(deterministic=True), case.config)
        for case in small_cases(family, device, _DETERMINISTIC_DRAWN, plain=True)
    ]
    taken = [
        case
        for case in asked
        if family.supports(case.gemm, device) is None and rejected(family, case.gemm, case.config, device) is None
    ]
    return covering(taken, paths, build_cost)


@cache
def chained_cases(family: Family, device: Device) -> list[Case]:
    """Cases whose D may be the A of the next call: B is square, and both are by rows. Every path that the family offers
    them occurs."""
    return covering(random_cases(family, device, _CHAINED_DRAWN, 11, draw=_square_gemm), paths, build_cost)


def splits_k(case: Case) -> bool:
    """Whether several blocks compute parts of k of the same outputs."""
    return int(dict(case.config.knobs).get("split", 1)) > 1


def _square_gemm(rng: random.Random) -> Gemm:
    """A problem whose n is its k. Rows of 522 are copied by words, not by TMA; those of 521 are no multiple of what any
    copy takes; of 2056 an invariant problem splits k, and adds the parts in every way."""
    m, n = rng.choice((60, 200, 1100)), rng.choice((520, 521, 522, 1032, 2056))
    text = f"{m}x{n}x{n}:{rng.choice(('f16', 'bf16'))}:{rng.choice(('nn', 'nt'))}"
    return Gemm.parse(f"{text}:invariant" if n == 2056 else text)
