"""Random problems with random configs of a family, such that every choice of every knob occurs. Pure; seeded.

Everything goes through the family contract by name (``supports``, ``space``, ``rejected``), so that a knob or a problem
that a family learns is drawn from then on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product

from tirgemm.config import Config, Space, Value
from tirgemm.device import Device
from tirgemm.errors import InvalidGemm, Unsupported
from tirgemm.families.base import Family
from tirgemm.gemm import ACTIVATIONS, DTYPE_BYTES, LAYOUTS, Gemm

# A choice of a knob.
KnobChoice = tuple[str, Value]
# What a case covers: choices of knobs, and fields of the problem.
Feature = tuple[str, object]

_DTYPES = ("f16", "bf16", "f32")
# Reference and operands of a case stay small: fp64 flops of one m, and elements of one operand.
_MOST_FLOPS = 2**34
_MOST_ELEMENTS = 2**25
_TRIES_PER_GEMM = 40
_TRIES_PER_SPECIAL = 500
# Problems drawn in vain for a choice of a knob before it counts as one that no problem here can take.
_MISSES = 5000
# Problems drawn in vain that count as much as a case: what is hard to draw is drawn less.
_MISSES_A_CASE = 100
# Problems in a row that are drawn for one target.
_PROBLEMS_PER_TARGET = 12
# Steps towards a config that every rule accepts, before another is drawn.
_STEPS_PER_DRAW = 20
# Draws of which the best is taken.
_CANDIDATES = 6
# Sizes by what they are for: many tiles of few steps, few tiles of many steps, anything.
_SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "many": ((1000, 2500, 2501, 4099, 6000), (576, 1000, 2049, 2304, 4104), (1, 8, 63, 72, 200, 520)),
    "few": (
        (1, 7, 16, 33, 64, 65, 129, 200, 333),
        (1, 9, 24, 100, 257, 576),
        (523, 1023, 2048, 4100, 7168, 16392, 40960),
    ),
    "any": ((1, 17, 64, 65, 129, 333, 1000, 2500), (1, 7, 33, 100, 257, 576, 1000, 2049), (1, 16, 65, 200, 523, 1023)),
}


@dataclass(frozen=True)
class Case:
    """A problem and a config that the family's rules accept for it."""

    gemm: Gemm
    config: Config

    @property
    def key(self) -> str:
        """What names the case in a results file."""
        return f"{self.gemm} {self.config.digest}"

    @property
    def features(self) -> frozenset[Feature]:
        """Every choice of a knob and every property of the problem that this case has."""
        return frozenset([*self.config.knobs, *problem_features(self.gemm)])


def problem_features(gemm: Gemm) -> Iterator[Feature]:
    """The properties of a problem that kernels have code for."""
    yield "layout, dtype", (gemm.layout, gemm.dtype)
    yield "acc, out", (gemm.acc, gemm.out)
    yield "act", gemm.act
    yield "alpha, beta, bias", (gemm.alpha, gemm.beta, gemm.bias)
    yield "batch", gemm.batch > 1
    yield "range", gemm.m_min < gemm.m_max
    yield "align", gemm.align
    yield "odd n", gemm.n % 2 == 1
    yield "invariant", gemm.invariant
    yield "rows of A, of B by 16 bytes", tuple(_rows_by(gemm, name) for name in ("a", "b"))


def special_cases(family: Family, device: Device, seed: int = 0) -> tuple[list[Case], list[Gemm]]:
    """k = 1, m = 1, n = 1 and their pairs, in every layout, with rows 16 bytes apart and as dense as can be.

    And the problems among them that the family supports and has no config for, which is a mistake of the family.
    """
    rng = random.Random(seed)
    shapes = [(1, 1, 1), (1, 1, 777), (1, 300, 1), (130, 1, 1), (1, 577, 1030), (333, 1, 1030), (333, 577, 1)]
    cases: dict[Case, None] = {}
    without: list[Gemm] = []
    taken = dtypes(family, device)
    for number, ((m, n, k), layout, padded) in enumerate(product(shapes, LAYOUTS, (True, False))):
        text = f"{m}x{n}x{k}:{taken[number % 3 % len(taken)]}:{layout}"
        if padded:
            text += _leading(m, n, k, layout, lambda columns: -(-columns // 8) * 8)
        gemm = Gemm.parse(f"{text}:beta:bias" if number % 5 == 0 else text)
        if family.supports(gemm, device) is not None:
            continue
        case = _with_config(rng, family, device, gemm, None, _TRIES_PER_SPECIAL) or _default(family, device, gemm)
        if case is None:
            without.append(gemm)
        else:
            cases[case] = None
    return list(cases), without


def random_cases(
    family: Family,
    device: Device,
    count: int,
    seed: int = 2024,
    *,
    draw: Callable[[random.Random], Gemm | None] | None = None,
) -> list[Case]:
    """``count`` different cases of problems that ``draw`` gives (``random_gemm``), with every choice of every knob.

    Every second draw aims at the choice of a knob that has been drawn least. A draw with a choice that no case had is
    taken; else of some draws the one with most new and rare pairs of features.
    """
    drawing = _Drawing(random.Random(seed), family, device, draw or partial(random_gemm, dtypes=dtypes(family, device)))
    cases: dict[Case, None] = {}
    while len(cases) < count:
        candidates: list[Case] = []
        while len(candidates) < _CANDIDATES:
            case = drawing.aimed() if len(candidates) % 2 == 0 else drawing.free()
            if case is not None and case not in cases:
                candidates.append(case)
                if drawing.is_new(case):
                    break
        rarest = max(candidates, key=lambda case: sum(1 / (1 + 20 * drawing.pairs[pair]) for pair in pairs_of(case)))
        best = candidates[-1] if drawing.is_new(candidates[-1]) else rarest
        cases[best] = None
        drawing.take(best)
    return list(cases)


class _Drawing:
    """What has been drawn so far, and in vain."""

    def __init__(
        self, rng: random.Random, family: Family, device: Device, draw: Callable[[random.Random], Gemm | None]
    ) -> None:
        self._rng, self._family, self._device, self._draw = rng, family, device, draw
        self._drawn: Counter[KnobChoice] = Counter()
        self._misses: Counter[KnobChoice] = Counter()
        self._known: dict[KnobChoice, None] = {}
        self.pairs: Counter[tuple[Feature, Feature]] = Counter()

    def is_new(self, case: Case) -> bool:
        """Whether it has a choice that no case had."""
        return not all(self._drawn[choice] for choice in case.config.knobs)

    def take(self, case: Case) -> None:
        self._drawn.update(case.config.knobs)
        self.pairs.update(pairs_of(case))

    def free(self) -> Case | None:
        """A random problem with a random config."""
        gemm, _ = self._problem()
        return _with_config(self._rng, self._family, self._device, gemm, None, _TRIES_PER_GEMM)

    def aimed(self) -> Case | None:
        """A random problem among those that offer the choice drawn least, with a config that has it."""
        if not self._known:
            self._problem()
        reachable = [choice for choice in self._known if self._drawn[choice] or self._misses[choice] < _MISSES]
        target = min(
            reachable,
            key=lambda choice: (self._drawn[choice] + self._misses[choice] / _MISSES_A_CASE, self._rng.random()),
        )
        for _ in range(_PROBLEMS_PER_TARGET):
            gemm, space = self._problem()
            if target in _choices(space):
                case = _with_config(self._rng, self._family, self._device, gemm, target, _TRIES_PER_GEMM)
                if case is not None:
                    return case
            self._misses[target] += 1
        return None

    def _problem(self) -> tuple[Gemm, Space]:
        """A problem that the family supports, and its space, whose choices are known from then on."""
        while True:
            gemm = self._draw(self._rng)
            if gemm is not None and self._family.supports(gemm, self._device) is None:
                space = self._family.space(gemm, self._device)
                self._known.update(dict.fromkeys(_choices(space)))
                return gemm, space


def pairs_of(case: Case) -> Iterator[tuple[Feature, Feature]]:
    """Every two features that the case has together."""
    return combinations(sorted(case.features, key=repr), 2)


def missing_choices(family: Family, device: Device, cases: Iterable[Case]) -> list[KnobChoice]:
    """Choices of knobs that the spaces of random problems offer, and rules accept for some, and no case has."""
    rng = random.Random(1)
    had = {choice for case in cases for choice in case.config.knobs}
    wanted: dict[KnobChoice, bool] = {}
    taken = dtypes(family, device)
    gemms = [gemm for gemm in (random_gemm(rng, taken) for _ in range(2000)) if gemm is not None]
    for gemm in gemms:
        if family.supports(gemm, device) is None:
            space = family.space(gemm, device)
            for choice in _choices(space):
                if choice not in had and not wanted.get(choice):
                    example = _with_config(rng, family, device, gemm, choice, _TRIES_PER_GEMM)
                    wanted[choice] = example is not None
    return sorted((choice for choice, possible in wanted.items() if possible), key=repr)


def dtypes(family: Family, device: Device) -> tuple[str, ...]:
    """The dtypes of operands that the family takes: fp16 and bf16, and fp32 where it does."""
    return tuple(d for d in _DTYPES if family.supports(Gemm.parse(f"64x64x64:{d}:nn"), device) is None)


def random_gemm(rng: random.Random, dtypes: tuple[str, ...] = _DTYPES[:2]) -> Gemm | None:
    """A problem with odd sizes, gaps, batches, ranges and epilogues; None where the draw cannot be a problem."""
    sizes = _SIZES[rng.choice(("many", "few", "any"))]
    m, n, k = (rng.choice(choices) for choices in sizes)
    layout, dtype = rng.choice(LAYOUTS), rng.choice(dtypes)
    ranged = rng.random() < 0.25 and m > 1
    text = f"{f'{rng.randint(1, m)}..{m}' if ranged else m}x{n}x{k}:{dtype}:{layout}"
    text += f":acc={rng.choice(('f32', 'f16'))}" if dtype == "f16" and rng.random() < 0.4 else ""
    # Half of the problems have every row of A and B 16 bytes apart, which is what TMA takes.
    aligned = rng.random() < 0.5
    if aligned:
        text += _leading(m, n, k, layout, lambda columns: (columns + rng.choice((7, 23))) // 8 * 8)
    elif rng.random() < 0.7:
        text += _leading(m, n, k, layout, lambda columns: columns + rng.choice((0, 1, 2, 3, 4, 12)))
    text += f":ldd={n + rng.choice((1, 2, 8))}" if rng.random() < 0.25 else ""
    out = rng.choice(("f16", "bf16", "f32", "f32")) if rng.random() < 0.3 else dtype
    text += f":out={out}" if out != dtype else ""
    text += f":batch={rng.choice((2, 3))}" if rng.random() < 0.25 else ""
    text += "" if aligned and rng.random() < 0.9 else f":align={rng.choice((2, 4, 8, 16))}"
    beta = rng.random() < 0.4
    for part, occurs in (("alpha", rng.random() < 0.4), ("beta", beta), ("bias", rng.random() < 0.4)):
        text += f":{part}" if occurs else ""
    text += f":ldc={n + rng.choice((1, 2, 8))}" if beta and rng.random() < 0.4 else ""
    text += f":act={rng.choice(ACTIVATIONS[1:])}" if rng.random() < 0.4 else ""
    text += ":deterministic" if rng.random() < 0.2 else ""
    text += ":invariant" if rng.random() < 0.15 else ""
    try:
        gemm = Gemm.parse(text)
    except InvalidGemm:
        return None
    small = gemm.flops <= _MOST_FLOPS and all(gemm.span(name) <= _MOST_ELEMENTS for name in ("a", "b", "d"))
    return gemm if small else None


def _leading(m: int, n: int, k: int, layout: str, padded: Callable[[int], int]) -> str:
    """lda and ldb, as a function of the columns of a row in memory."""
    rows = {"lda": m if layout[0] == "t" else k, "ldb": k if layout[1] == "t" else n}
    return "".join(f":{name}={padded(columns)}" for name, columns in rows.items())


def _rows_by(gemm: Gemm, name: str) -> bool:
    ld = gemm.leading("a" if name == "a" else "b")
    return isinstance(ld, int) and ld * DTYPE_BYTES[gemm.dtype] % 16 == 0 and gemm.align % 16 == 0


def _choices(space: Space) -> list[KnobChoice]:
    return [(knob.name, choice) for knob in space.knobs for choice in knob.choices]


def _with_config(
    rng: random.Random, family: Family, device: Device, gemm: Gemm, target: KnobChoice | None, tries: int
) -> Case | None:
    """The problem with a random config that has the target, where the rules accept one soon."""
    if family.supports(gemm, device) is not None:
        return None
    space = family.space(gemm, device)
    if target is not None and target not in _choices(space):
        return None
    fixed = dict([target] if target is not None else [])
    free = [knob for knob in space.knobs if knob.name not in fixed and len(knob.choices) > 1]
    config, passed = space.at(0), -1
    known: dict[Config, int] = {}  # a fifth of the steps come back to where they were
    for number in range(tries):
        # From time to time a new draw; between, another choice of a knob or two, unless an earlier rule then rejects
        # it.
        fresh = number % _STEPS_PER_DRAW == 0
        start = space.at(rng.randrange(space.size)).with_(**fixed) if fresh else config
        knobs = rng.sample(free, min(len(free), rng.choice((1, 2)))) if not fresh else []
        changed = start.with_(**{knob.name: rng.choice(knob.choices) for knob in knobs})
        if (now := known.get(changed, -1)) < 0:
            now = known[changed] = _rules_passed(family, gemm, changed, device)
        if now == len(family.rules):
            return Case(gemm, changed)
        if fresh or now >= passed:
            config, passed = changed, now
    return None


def _rules_passed(family: Family, gemm: Gemm, config: Config, device: Device) -> int:
    """How many of the family's rules, in their order, accept the config before one rejects it."""
    for number, rule in enumerate(family.rules):
        if rule.check(gemm, config, device) is not None:
            return number
    return len(family.rules)


def _default(family: Family, device: Device, gemm: Gemm) -> Case | None:
    try:
        return Case(gemm, family.default(gemm, device, "sustained"))
    except Unsupported:
        return None
