"""Reduction of problem sizes that keeps the generated code.

For emulators, to which large problems take hours. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tirgemm.analysis.tile_shape import output_tile
from tirgemm.device import Device
from tirgemm.families import family_named
from tirgemm.families.base import WithDerivedKnobs
from tirgemm.families.common.knob_parts import knob_parts
from tirgemm.gemm import Gemm, Range
from verification.cases import Case

# Sizes keep what they are by this many elements, so that every address keeps its alignment.
_CLASS = 16
# Tiles along m and along n: more for a persistent kernel, whose blocks compute several, one after the other.
_TILES, _PERSISTENT_TILES = 2, 3
# How often each stage of shared memory is used, at least; more where fewer steps make other code.
_ROUNDS = (3, 5, 9)


def smaller(case: Case, device: Device) -> Iterator[Gemm]:
    """The problem with fewer rows, columns and steps of k, from the smallest up, at last as it is.

    Two tiles, or clusters of them, in m and n where it has two or more (of a persistent kernel three), as many in n as
    ``raster`` divides; each stage in use several times, the same one last; every size and leading dimension congruent
    to its own by 16 elements, and divisible by its tile or not as it was.
    """
    gemm, knobs = case.gemm, dict(case.config.knobs)
    parts = knob_parts(knobs)
    tile_m, tile_n, tile_k = (int(parts.get(f"tile_{d}", 64)) * int(knobs.get(f"cluster_{d}", 1)) for d in "mnk")
    if knobs.get("swap"):
        tile_m, tile_n = tile_n, tile_m
    tile = output_tile(gemm, case.config, device, gemm.m_max)
    further = (_TILES if tile is None or tile.tiles is None else _PERSISTENT_TILES) - 1
    family: object = family_named(case.config.family)
    derived = family.derived_knobs(case.config) if isinstance(family, WithDerivedKnobs) else {}
    stages = int(parts.get("stages", derived.get("stages", 2)))
    split = int(parts.get("split", 1))
    raster = int(knobs.get("raster", 1))

    def last_stage(k: int) -> int:
        """Behind it, where the sums of an epilogue are staged must not be read any more."""
        return (-(-k // (tile_k * split)) - 1) % stages

    last = last_stage(gemm.k)
    problems: dict[Gemm, None] = {}
    for rounds in _ROUNDS:
        m, n = (
            _reduced(gemm.m_max, further * tile_m + 1, tile_m),
            _reduced(gemm.n, further * tile_n + 1, tile_n, lambda n: -(-n // tile_n) % raster == 0),
        )
        k = _reduced(gemm.k, split * (rounds * stages - 1) * tile_k + 1, tile_k, lambda k: last_stage(k) == last)
        problems[_resized(gemm, m, n, k)] = None
    problems[gemm] = None
    yield from problems


def _reduced(size: int, least: int, tile: int, fits: Callable[[int], bool] = lambda _: True) -> int:
    """The least size not below ``least`` of the same class that ``fits``; ``size`` where there is none."""
    return next((s for s in range(least, size) if _alike(s, size, tile) and fits(s)), size)


def _alike(one: int, other: int, tile: int) -> bool:
    return one % _CLASS == other % _CLASS and (one % tile == 0) == (other % tile == 0)


def _resized(gemm: Gemm, m: int, n: int, k: int) -> Gemm:
    low = gemm.m.low if isinstance(gemm.m, Range) else m
    words = str(gemm).split(":")[1:]
    before = {
        "lda": gemm.m_max if gemm.trans_a else gemm.k,
        "ldb": gemm.k if gemm.trans_b else gemm.n,
        "ldc": gemm.n,
        "ldd": gemm.n,
    }
    after = {"lda": m if gemm.trans_a else k, "ldb": k if gemm.trans_b else n, "ldc": n, "ldd": n}
    for at, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in before:
            words[at] = f"{name}={int(value) - before[name] + after[name]}"
    size = f"{min(low, m)}..{m}" if isinstance(gemm.m, Range) else str(m)
    return Gemm.parse(":".join([f"{size}x{n}x{k}", *words]))
