"""Neighbourhood of the fastest configs as a source of proposals: pure functions of what is recorded.

The family's analytic estimate ranks; what was measured near a config corrects it. Diversity is enforced: a config that
is like one that is chosen already counts as slower. Knobs that decide how the work is cut (``COARSE``) count most.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from tirgemm.config import Config, Space, Value
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.families import Family
from tirgemm.families.base import rejected
from tirgemm.families.common.knob_parts import CACHE_POLICY, COARSE
from tirgemm.gemm import Gemm, Regime

# Random points that are looked at, and valid ones among them that are kept.
_DRAWS, _POOL = 20_000, 400
_CLIMBS, _CLIMBERS, _POLISHED = 3, 8, 100
_PAIRS = 60
_UNLIKE = 1.015
# Of ranked configs so many are looked at; being like one that is chosen already raises a score by such a share.
_RANKED, _FIRST_REPULSION, _REPULSION = 200, 0.4, 0.1
_FINE_STEP = 0.1
# An estimate does not tell fine knobs apart that are within this factor.
_VAGUE = 1.15
# A measured config says half as much about one that differs in a knob, a quarter where it is a coarse one.
_FADE, _COARSE_DISTANCE = 0.5, 2
_PRIOR = 0.25
# A failed config counts as this many times slower than its estimate.
_FAILED = 4.0


class Neighbourhood:
    """The configs of one family for one problem in one regime. Deterministic for a seed and what is known."""

    def __init__(self, gemm: Gemm, family: Family, device: Device, regime: Regime, *, seed: int = 0) -> None:
        self.gemm = gemm
        self.family = family
        self.device = device
        self.regime = regime
        self.space: Space = family.space(gemm, device)
        self._seed = f"{seed} {gemm} {regime}"
        self._random = random.Random(self._seed)
        self._estimates: dict[Config, float] = {}

    def next(
        self,
        count: int,
        known: Mapping[Config, float | None],
        others: Sequence[Config] = (),
        flying: Sequence[Config] = (),
    ) -> list[Config]:
        """Unknown configs: best of ``others`` (fast ones of similar problems), neighbours of the best, one far from
        all.

        ``known`` holds microseconds by config, None for what failed; what was measured with other knobs, of an earlier
        space, is like what similar problems have. Fewer than ``count`` where no more are left.
        """
        knobs = {knob.name for knob in self.space.knobs}
        earlier = [config for config in known if {name for name, _ in config.knobs} != knobs]
        others = [*others, *(config for config in earlier if known[config] is not None)]
        known = {config: us for config, us in known.items() if config not in earlier}
        measured = {config: us for config, us in known.items() if us is not None}
        tried = {*known, *flying}
        # Of what is known alone, so that a search that is started again goes on as if never stopped.
        self._random = random.Random(f"{self._seed} {len(tried)}")
        pool = [config for config in self.pool if config not in tried]
        seen = {group(config) for config in tried}
        if not measured:
            fresh = [config for config in pool if group(config) not in seen] or pool
            chosen = [c for c in self._valid(adapted(config, self.space) for config in others) if c not in tried]
            chosen = list(dict.fromkeys(chosen))[: count // 2]
            scored = {config: self._first_score(config) for config in fresh[:_RANKED]}
            return _spread(scored, count, chosen, repulsion=_FIRST_REPULSION)
        correction = _Correction(known, self.estimate)
        best = sorted(measured, key=lambda config: measured[config])

        def scores(configs: Iterable[Config]) -> dict[Config, float]:
            fresh = (config for config in dict.fromkeys(configs) if config not in tried)
            pairs = [(self._score(config, best[:1]) * correction(config), config) for config in fresh]
            return {config: score for score, config in sorted(pairs, key=lambda pair: pair[0])[:_RANKED]}

        leaders = _leaders(best, 2)
        around = scores([*self._near(leaders), *pool])
        borrowed = scores(self._valid(adapted(config, self.space) for config in others))
        strange = scores(config for config in pool if group(config) not in seen) if count > 2 else {}
        chosen = _spread(borrowed, max(1, count // 3), repulsion=_REPULSION)
        chosen = _spread(around, count - bool(strange), chosen, repulsion=_REPULSION)
        return _spread(strange or around, count, chosen, repulsion=_FIRST_REPULSION)

    def estimate(self, config: Config) -> float:
        """The family's own estimate in microseconds."""
        us = self._estimates.get(config)
        if us is None:
            us = self._estimates[config] = self.family.predict_us(self.gemm, config, self.device, self.regime)
        return us

    @cached_property
    def pool(self) -> list[Config]:
        """Valid configs, best-estimated first: a random sample of the space, improved knob by knob where it is best."""
        draw = random.Random(self._seed)
        if self.space.size <= _DRAWS:
            points: Iterable[Config] = (self.space.at(i) for i in draw.sample(range(self.space.size), self.space.size))
        else:
            points = (self.space.at(draw.randrange(self.space.size)) for _ in range(_DRAWS))
        configs: dict[Config, None] = {}
        for config in self._valid(points):
            configs[config] = None
            if len(configs) >= _POOL:
                break
        climbed: set[Config] = set()
        for _ in range(_CLIMBS):
            leaders = _leaders(sorted(configs, key=self._first_score), _CLIMBERS)
            for config in leaders:
                if config not in climbed:
                    climbed.add(config)
                    configs |= dict.fromkeys(self._valid(neighbours(config, self.space)))
        for config in _leaders(sorted(configs, key=self._first_score), _POLISHED):
            configs[self._polished(config)] = None
        return sorted(configs, key=self._first_score)

    def _polished(self, config: Config) -> Config:
        """The config with fine knobs as near to the default's as is valid: a sample's are random, estimates vague."""
        model = dict(self._default[0].knobs) if self._default else {}
        limit = _VAGUE * self.estimate(config)
        for knob in self.space.knobs:
            if knob.name in COARSE or knob.name not in model:
                continue
            for choice in sorted(knob.choices, key=lambda choice: _step(choice, model[knob.name]) ** 2):
                changed = config.with_(**{knob.name: choice})
                if self.estimate(changed) <= limit and any(self._valid([changed])):
                    config = changed
                    break
        return config

    @cached_property
    def _default(self) -> list[Config]:
        try:
            return list(self._valid([self.family.default(self.gemm, self.device, self.regime)]))
        except Unsupported:
            return []

    def _first_score(self, config: Config) -> float:
        return self._score(config, self._default)

    def _score(self, config: Config, models: Sequence[Config]) -> float:
        """The estimate, and a little for every fine knob that is not as in a good config: estimates leave those
        alike."""
        unlike = sum(a != b for model in models for a, b in _fine_pairs(config, model))
        return self.estimate(config) * _UNLIKE**unlike

    def _near(self, leaders: Sequence[Config]) -> Iterator[Config]:
        """Valid configs one knob, and some two knobs, away."""
        for leader in leaders:
            one = list(neighbours(leader, self.space))
            yield from self._valid(one)
            twice = [self._random.choice(list(neighbours(config, self.space))) for config in one[:_PAIRS]]
            yield from self._valid(twice)

    def _valid(self, configs: Iterable[Config]) -> Iterator[Config]:
        return (config for config in configs if rejected(self.family, self.gemm, config, self.device) is None)


class _Correction:
    """By what the measurements near a config multiply its estimate."""

    def __init__(self, known: Mapping[Config, float | None], estimate: Callable[[Config], float]) -> None:
        self._known = [
            (config, math.log(us / estimate(config)) if us is not None else math.log(_FAILED))
            for config, us in known.items()
        ]
        worked = [log for (_, log), us in zip(self._known, known.values(), strict=True) if us is not None]
        self._overall = sum(worked) / len(worked)

    def __call__(self, config: Config) -> float:
        weights, total = _PRIOR, _PRIOR * self._overall
        for other, log in self._known:
            weight = _FADE ** distance(config, other)
            weights += weight
            total += weight * log
        return math.exp(total / weights)


def neighbours(config: Config, space: Space) -> Iterator[Config]:
    """Every config that differs in the choice of one knob."""
    for knob in space.knobs:
        yield from (config.with_(**{knob.name: choice}) for choice in knob.choices if choice != config[knob.name])


def cache_variants(config: Config, space: Space) -> list[Config]:
    """The config with every other cache policy; those that differ in one knob come first."""
    knobs = [knob for knob in space.knobs if knob.name in CACHE_POLICY]
    policies = itertools.product(*(knob.choices for knob in knobs)) if knobs else ()
    variants = (config.with_(**dict(zip((knob.name for knob in knobs), policy, strict=True))) for policy in policies)
    return sorted((one for one in variants if one != config), key=lambda one: distance(one, config))


def group(config: Config) -> tuple[tuple[str, Value], ...]:
    """What two configs share that cut the work alike."""
    coarse = tuple((name, value) for name, value in config.knobs if name in COARSE)
    return coarse or config.knobs


def distance(one: Config, other: Config) -> int:
    """How many knobs differ; a coarse one counts twice, a knob that one of them lacks as well."""
    mine, theirs = dict(one.knobs), dict(other.knobs)
    different = [name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)]
    return sum(_COARSE_DISTANCE if name in COARSE else 1 for name in different)


def _fine_pairs(one: Config, other: Config) -> Iterator[tuple[Value, Value | None]]:
    theirs = dict(other.knobs)
    return ((value, theirs.get(name)) for name, value in one.knobs if name not in COARSE)


def adapted(config: Config, space: Space) -> Config:
    """The point of ``space`` next to a config of another problem, or of an older space: the nearest number, else the
    first choice. ``config`` is of the space's family.
    """
    given = dict(config.knobs)
    return Config(space.family, tuple((k.name, _choice(k.choices, given.get(k.name))) for k in space.knobs))


def fitted(configs: Iterable[Config], families: Iterable[Family], gemm: Gemm, device: Device) -> list[Config]:
    """``configs``, in their order, as each one's family would write it today; those of ``families`` that its rules
    accept."""
    spaces = {family.name: (family, family.space(gemm, device)) for family in families}
    ours = [(config, *spaces[config.family]) for config in configs if config.family in spaces]
    points = [(family, adapted(config, space)) for config, family, space in ours]
    return [point for family, point in points if rejected(family, gemm, point, device) is None]


def _choice(choices: tuple[Value, ...], wanted: Value | None) -> Value:
    if wanted in choices and wanted is not None:
        return wanted
    numbers = [choice for choice in choices if type(choice) is int]
    if type(wanted) is not int or not numbers:
        return choices[0]
    return min(numbers, key=lambda number: abs(math.log2(max(number, 0.5)) - math.log2(max(wanted, 0.5))))


def _leaders(configs: Iterable[Config], count: int) -> list[Config]:
    """The first ``count`` of different groups."""
    leaders: dict[object, Config] = {}
    for config in configs:
        leaders.setdefault(group(config), config)
        if len(leaders) == count:
            break
    return list(leaders.values())


def _spread(
    scores: Mapping[Config, float], count: int, chosen: Sequence[Config] = (), *, repulsion: float
) -> list[Config]:
    """``chosen`` and, up to ``count``, those of the lowest score, which is raised by being like what is chosen
    already."""
    configs = list(chosen[:count])
    left = {config: score for config, score in scores.items() if config not in configs}
    for config in configs:
        _repel(left, config, repulsion)
    while left and len(configs) < count:
        config = min(left, key=lambda config: left[config])
        del left[config]
        configs.append(config)
        _repel(left, config, repulsion)
    return configs


def _repel(scores: dict[Config, float], chosen: Config, repulsion: float) -> None:
    for config in scores:
        scores[config] *= 1 + repulsion * math.exp(-_apart(config, chosen))


def _apart(one: Config, other: Config) -> float:
    """Squared distance: knobs that are numbers by their logarithms, the fine ones counting little."""
    theirs = dict(other.knobs)
    total = 0.0
    for name, mine in one.knobs:
        value = theirs.get(name)
        total += _step(mine, value) ** 2 * (1.0 if name in COARSE else _FINE_STEP)
    return total


def _step(one: Value, other: Value | None) -> float:
    """How far two choices of a knob are apart: numbers by their logarithms, words by 1."""
    if one == other:
        return 0.0
    if isinstance(one, int) and isinstance(other, int):
        return math.log2(max(one, 0.5) / max(other, 0.5))
    return 1.0
