"""Held-out suites: problems drawn by a seed, on which tuned and untuned kernels are judged and nothing is fitted.

``judge-SEED`` and ``fit-SEED`` are 100 problems each, or those of them that no other suite has. Results of the judge
seeds are published; models and estimates are fitted to records of other problems, of the fit seeds among them. What is
fitted after a judge seed's results were looked at shape by shape is judged by other seeds. ``twice-SEED``, of a judge
seed, is the first 40 of its problems, each to be searched twice. ``grid`` is 300 of the 1,000 problems whose sides are
in ``GRID``, with which others publish results.

``rows16-SEED`` and ``kinds-SEED`` are 100 problems each to collect records from, too, of which judge and fit seeds draw
few or none. The first have sides of some hundreds or thousands: rows of A, B and D begin at multiples of 16 bytes,
those of A or of B not of 128, so that TMA reads them from more lines of L2 than they fill. The others have fp32
outputs, fp16 sums, batches, or add to C.

A third of the problems of a judge or fit suite each have: n and k of a linear layer of a public model, with m from 1 to
16,384; all sides from ``GRID``; sides of any value, odd ones too. Draws use nothing of ``random`` but ``random()``,
which is the same in every version of Python.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib import resources
from itertools import chain, cycle, islice, product
from typing import TypeVar

from tirgemm import expr
from tirgemm.bench.suite_file import Suite
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm

# The least rows of these were read one by one, of the first three on 2026-11-27, of 105 and 106 on 2026-11-28, of the
# 91 that were measured of 118 on 2026-11-30: what was fitted after that is judged by the other seeds.
READ_SEEDS = (102, 103, 104, 105, 106, 118)
# Two by two measured with about the same kernels and models. 108 was read on 2026-11-28, too: 116 judged what came
# then.
EARLIER_SEEDS = ((107, 108), (116, 119))
# To judge today's models and searches; of these 120 and 121 have been measured. Seeds 109 to 115 were free to collect
# records from. Drawn apart from 117, what is collected of other kinds would have few batches of layout tt.
NEWEST_SEEDS = (120, 121, 122, 123)
JUDGE_SEEDS = (*READ_SEEDS, *chain(*EARLIER_SEEDS), *NEWEST_SEEDS)
FIRST_APART = 105
# The sides of all that was shipped or is of a published suite; ``scripts/ship_records.py`` adds to it.
RECORDED_SIDES = "recorded_sides.json"
# Seed 104 draws a problem of suite ``llama``, which was fitted to: 99 problems are left.
_FITTED = frozenset({Gemm(1024, 8192, 8192)})
# The goal for two searches is of 40 problems.
COUNT, GRID_COUNT, TWICE_COUNT = 100, 300, 40
GRID = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
GRID_NAME = "grid"
MOST_ROWS = 16384
# Sides of any value lie in this range, evenly over its logarithm.
LEAST_SIDE, MOST_SIDE = 17, 12288
# (n, k) of linear layers, from the configuration files that the models are published with: fused q, k and v; attention
# output; fused gate and up; down; of those without a gate, up and down. No pair is of another suite.
LAYERS: dict[str, tuple[tuple[int, int], ...]] = {
    "GPT-2 XL": ((4800, 1600), (1600, 1600), (6400, 1600), (1600, 6400)),
    "BERT large": ((3072, 1024), (4096, 1024), (1024, 4096)),
    "Qwen2.5 7B": ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)),
    "Qwen2.5 72B": ((59136, 8192), (8192, 29568)),
    "Gemma 2 9B": ((8192, 3584), (3584, 4096), (28672, 3584), (3584, 14336)),
    "Phi-3 medium": ((7680, 5120), (5120, 5120), (35840, 5120), (5120, 17920)),
    "Falcon 7B": ((4672, 4544), (4544, 4544), (18176, 4544), (4544, 18176)),
    "Mixtral 8x22B": ((8192, 6144), (32768, 6144), (6144, 16384)),
}
DTYPES = ("f16", "f16", "bf16")
LAYOUTS = ("nt", "nt", "nn", "tn", "tt")
# Elements of one operand: what is drawn fits beside its copies on one device.
_MOST_ELEMENTS = 2**30
# Of ``kinds``: how many products a batch is of, and how many elements one operand of it has at most.
BATCHES, _MOST_OF_BATCH = (2, 4, 8, 16, 64), 2**26
_NAME = re.compile(r"(judge|twice|fit|rows16|kinds)-(0|[1-9][0-9]{0,8})")
# Elements of 2 bytes in 16 bytes, and in a line of L2.
_WORD, _LINE = 8, 64
# Sides of ``rows16`` are so many words, evenly over the logarithm.
_WORDS_A_ROW = (32, 1024)
# Draws in a row from a distribution that has no more problems that are not known.
_DRAWS = 10_000

Drawn = TypeVar("Drawn")
Sides = tuple[int, int, int]
Draw = Callable[[random.Random], Sides]


def held_out(name: str) -> Suite | None:
    """The suite of that name, None where it is no name of one.

    Raises InvalidRequest for a seed to judge by, or to search twice, that is none of ``JUDGE_SEEDS``, and for a fit
    seed that is one.
    """
    if name == GRID_NAME:
        return Suite(name, f"{GRID_COUNT} of the problems with sides in {GRID}, drawn by seed 0.", _grid_sample())
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    kind, seed = match[1], int(match[2])
    if kind in _FIT_KINDS:
        about, draw = _FIT_KINDS[kind]
        return Suite(
            name, f"{COUNT} problems {about}, drawn by seed {seed}: see tirgemm/bench/held_out.py.", draw(seed)
        )
    if (seed in JUDGE_SEEDS) == (kind == "fit"):
        judges = ", ".join(map(str, JUDGE_SEEDS))
        raise InvalidRequest(f"suite {name!r}: the seeds to judge by are {judges}, all others are to fit to")
    if kind == "twice":
        return Suite(name, f"The first {TWICE_COUNT} problems of judge-{seed}.", _drawn(seed)[:TWICE_COUNT])
    return Suite(name, f"{COUNT} problems drawn by seed {seed}: see tirgemm/bench/held_out.py.", _drawn(seed))


@cache
def _grid_sample() -> tuple[Gemm, ...]:
    """``GRID_COUNT`` of the grid's problems, in their order."""
    gemms = [Gemm(m, n, k) for m, n, k in product(GRID, repeat=3)]
    source = random.Random(0)
    keys = [source.random() for _ in gemms]
    chosen = sorted(range(len(gemms)), key=keys.__getitem__)[:GRID_COUNT]
    return tuple(gemms[index] for index in sorted(chosen))


def sides_of(gemm: Gemm) -> Sides:
    """m, or the largest m of a range, n and k: what siblings have in common."""
    return gemm.m_max, gemm.n, gemm.k


def siblings(gemms: Iterable[Gemm], recorded: Collection[Sides]) -> list[Gemm]:
    """Those of the problems whose very m, n and k are recorded, with whatever dtype and layout."""
    return [gemm for gemm in gemms if sides_of(gemm) in recorded]


@cache
def recorded_sides() -> frozenset[Sides]:
    """Sides that no seed from ``FIRST_APART`` on draws: those of every record shipped so far and of other suites."""
    sides = json.loads((resources.files("tirgemm.bench") / RECORDED_SIDES).read_text())
    return frozenset((int(m), int(n), int(k)) for m, n, k in sides)


def _drawn(seed: int) -> tuple[Gemm, ...]:
    apart = seed >= FIRST_APART
    avoided = recorded_sides() if apart else frozenset()
    if seed in JUDGE_SEEDS:
        return _judging(seed, avoided)
    suites = _to_judge_by()
    judged = {gemm for gemms in suites.values() for gemm in gemms}
    sides = {sides_of(g) for judge, gemms in suites.items() if apart or judge >= FIRST_APART for g in gemms}
    return tuple(islice(_distinct(random.Random(seed), (_layer, _grid, _any), judged, avoided | sides), COUNT))


@lru_cache(maxsize=16)  # those of every judge seed are drawn with each suite to fit to
def _judging(seed: int, avoided: frozenset[Sides]) -> tuple[Gemm, ...]:
    drawn = islice(_distinct(random.Random(seed), (_layer, _grid, _any), set(), avoided), COUNT)
    return tuple(gemm for gemm in drawn if gemm not in _FITTED)


def _to_judge_by() -> dict[int, tuple[Gemm, ...]]:
    """The problems of each judge seed, and, as those of 0, of ``grid``."""
    return {0: _grid_sample(), **{judge: _drawn(judge) for judge in JUDGE_SEEDS}}


def _rows16(seed: int) -> tuple[Gemm, ...]:
    drawn = _to_fit_to(random.Random(seed), (_multiples_of_a_word,))
    return tuple(islice((gemm for gemm in drawn if _has_rows_off_lines(gemm)), COUNT))


def _kinds(seed: int) -> tuple[Gemm, ...]:
    source = random.Random(seed)
    changed: dict[Gemm, None] = {}
    for gemm, change in zip(_to_fit_to(source, (_layer, _grid, _any)), cycle(_CHANGES), strict=False):
        if (one := change(source, gemm)) is not None:  # what one draws in bf16 and another in fp16 may become the same
            changed[one] = None
        if len(changed) == COUNT:
            break
    return tuple(changed)


def _to_fit_to(source: random.Random, distributions: Sequence[Draw]) -> Iterator[Gemm]:
    """Problems of sizes that are neither recorded nor judged by."""
    judged = {sides_of(gemm) for gemms in _to_judge_by().values() for gemm in gemms}
    return _distinct(source, distributions, set(), judged | recorded_sides())


def _batched(source: random.Random, gemm: Gemm) -> Gemm | None:
    """A batch that fits ``_MOST_OF_BATCH`` elements, None where none does."""
    most = _MOST_OF_BATCH // max(gemm.m_max * gemm.n, gemm.n * gemm.k, gemm.m_max * gemm.k)
    counts = [count for count in BATCHES if count <= most]
    return gemm.with_(batch=_one(source, counts)) if counts else None


_CHANGES: tuple[Callable[[random.Random, Gemm], Gemm | None], ...] = (
    lambda _source, gemm: gemm.with_(out="f32"),
    lambda _source, gemm: gemm.with_(dtype="f16", out="f16", acc="f16"),
    _batched,
    lambda _source, gemm: gemm.with_(alpha=True, beta=True),
)
_FIT_KINDS = {
    "rows16": ("with rows at multiples of 16 bytes, some not of 128", _rows16),
    "kinds": ("with fp32 outputs, fp16 sums, batches or C", _kinds),
}


def _has_rows_off_lines(gemm: Gemm) -> bool:
    return any(expr.evaluate(gemm.leading(operand), gemm.m_max) % _LINE for operand in ("a", "b"))


def _distinct(
    source: random.Random, distributions: Sequence[Draw], known: set[Gemm], avoided: Collection[Sides]
) -> Iterator[Gemm]:
    """Problems of the distributions by turns, none twice, none that is ``known``, none of ``avoided`` sides. One that
    has no more of these, as the grid has some day, loses its turns."""
    left = list(distributions)
    while left:
        for draw in distributions:
            if draw not in left:
                continue
            drawn = (_problem(source, draw) for _ in range(_DRAWS))
            new = (gemm for gemm in drawn if gemm is not None and gemm not in known and sides_of(gemm) not in avoided)
            if (gemm := next(new, None)) is None:
                left.remove(draw)
                continue
            known.add(gemm)
            yield gemm


def _problem(source: random.Random, draw: Draw) -> Gemm | None:
    """One draw, None where an operand is too large."""
    m, n, k = draw(source)
    dtype, layout = _one(source, DTYPES), _one(source, LAYOUTS)
    return Gemm(m, n, k, dtype=dtype, layout=layout) if max(m * n, n * k, m * k) <= _MOST_ELEMENTS else None


def _layer(source: random.Random) -> Sides:
    n, k = _one(source, LAYERS[_one(source, tuple(LAYERS))])
    return _side(source, 1, MOST_ROWS), n, k


def _grid(source: random.Random) -> Sides:
    return _one(source, GRID), _one(source, GRID), _one(source, GRID)


def _any(source: random.Random) -> Sides:
    m, n, k = (_side(source, LEAST_SIDE, MOST_SIDE) for _ in range(3))
    return m, n, k


def _multiples_of_a_word(source: random.Random) -> Sides:
    m, n, k = (_WORD * _side(source, *_WORDS_A_ROW) for _ in range(3))
    return m, n, k


def _side(source: random.Random, least: int, most: int) -> int:
    """A number of that range, evenly over its logarithm."""
    return min(most, int(least * math.exp(source.random() * math.log((most + 1) / least))))


def _one(source: random.Random, values: Sequence[Drawn]) -> Drawn:
    return values[int(source.random() * len(values))]
