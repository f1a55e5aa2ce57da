"""``Search``: what to try next for one problem, and what came of it.

Proposals are asked for in batches and results reported whenever they come, in any order and any subset. A seed fixes
what is proposed for given measurements.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig, InvalidRequest
from tirgemm.families.base import Family
from tirgemm.gemm import Gemm
from tirgemm.tuning.cost_model import BoostedTrees, CostModel, Scores
from tirgemm.tuning.evolution import Evolution, Pick
from tirgemm.tuning.gate import Gate
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning.space_trace import Point, point_of, point_schedule, trace_json

if TYPE_CHECKING:
    from tvm.s_tir.meta_schedule import Database

# Spaces up to this size are enumerated, so that their last points are found and their end is known.
ENUMERATED = 20_000
# Where fewer unknown points than this are left, they are all scored: evolution would mostly meet known ones.
ALL_SCORED = 64
# Draws from a larger space, where evolution found too little, before it counts as exhausted.
DRAWS = 20_000
# The share of a batch that is picked at random: before anything was measured, and after.
EXPLORE_UNTRAINED = 0.5
EXPLORE = 0.125


@dataclass(frozen=True, slots=True)
class Proposal:
    """A config to build, verify and measure. ``predicted_us`` is None where nothing says."""

    config: Config
    trace_json: Any
    predicted_us: float | None = None


class Search:
    """The search of one problem on one device in one regime over the spaces of ``families``.

    ``recorded`` are the candidates of this problem from earlier: never proposed again, they teach the cost model and
    seed the population. ``history`` are candidates of other problems or of the other regime, newest first, which warm the model.
    ``database`` is the MetaSchedule database that the population starts from; one that is given is taken to hold
    ``recorded`` already. Raises InvalidRequest where there is no family.
    """

    def __init__(
        self,
        gemm: Gemm,
        device: Device,
        regime: str,
        families: Sequence[Family],
        *,
        seed: int = 0,
        recorded: Sequence[Candidate] = (),
        history: Sequence[Candidate] = (),
        database: Database | None = None,
        cost_model: CostModel | None = None,
    ) -> None:
        if not families:
            raise InvalidRequest(f"search of {gemm} on {device.name} was given no family; give at least one")
        self.gemm = gemm
        self.device = device
        self.regime = regime
        self.families = tuple(families)
        self.seed = seed
        self.gate = Gate(gemm, device, families)
        self.model: CostModel = cost_model or BoostedTrees(gemm, device, regime, families, seed=seed)
        self.evolution = Evolution(gemm, self.gate, database)
        self.best_us: float | None = None
        self._points: list[Point] | None = None
        self.model.learn(c for c in history if (c.gemm, c.regime) != (gemm, regime))
        self._take_in(recorded, commit=database is None)

    @property
    def pruned(self) -> dict[str, int]:
        """How many distinct points each rule has rejected so far."""
        return dict(self.gate.pruned)

    @property
    def pruned_examples(self) -> dict[str, list[tuple[Config, str]]]:
        """For each rule the first few configs that it rejected, with the reason."""
        return {rule: list(found) for rule, found in self.gate.examples.items()}

    @property
    def repeats(self) -> int:
        """How often the evolution came upon a point that was already known, and dropped it."""
        return self.gate.repeats

    def propose(self, count: int) -> list[Proposal]:
        """At most ``count`` configs that were neither recorded nor proposed before; [] where the space is exhausted.

        The families' defaults come first. Raises InvalidRequest for a count below 1.
        """
        if count < 1:
            raise InvalidRequest(f"a search was asked for {count} proposals; ask for at least 1")
        draw = self._random()
        picks = self._defaults(count)
        self.gate.known.update(pick.point for pick in picks)
        if len(picks) < count:
            picks += self._next(count - len(picks), draw)
            self.gate.known.update(pick.point for pick in picks)
        times = self._predicted_us([pick.point for pick in picks])
        return [Proposal(self.gate.config(p.point), p.trace, us) for p, us in zip(picks, times, strict=True)]

    def report(self, candidates: Sequence[Candidate]) -> None:
        """Take in results, whatever their status. Candidates of another problem, device or regime are refused."""
        for candidate in candidates:
            if (candidate.gemm, candidate.device_key, candidate.regime) != (self.gemm, self.device.key, self.regime):
                raise InvalidRequest(
                    f"candidate of {candidate.gemm} on {candidate.device_key} ({candidate.regime}) was reported to the "
                    f"search of {self.gemm} on {self.device.key} ({self.regime})"
                )
        self._take_in(candidates, commit=True)

    # -- choosing ------------------------------------------------------------------------------

    def _defaults(self, count: int) -> list[Pick]:
        """The families' defaults that are not known yet."""
        found: list[Pick] = []
        for family in self.families:
            config = family.default(self.gemm, self.device, self.regime)
            point = point_of(self.gate.spaces[family.name], config)
            if point not in self.gate.known and len(found) < count:
                found.append(self._pick(point))
        return found

    def _next(self, count: int, draw: random.Random) -> list[Pick]:
        share = EXPLORE if self.model.trained else EXPLORE_UNTRAINED
        explore = min(count - 1, round(count * share + 0.001)) if count > 1 else 0
        left = self._left() if self._size <= ENUMERATED else None
        if left is not None and len(left) <= max(ALL_SCORED, 2 * count):
            return self._best_of(left, count, explore, draw)
        seed = draw.randrange(1, 2**31 - 1)
        picks = self.evolution.round(count, explore, self._scores, seed)
        if len(picks) < count:
            self.gate.known.update(pick.point for pick in picks)
            others = left if left is not None else self._drawn(ALL_SCORED, draw)
            others = [point for point in others if point not in self.gate.known]
            picks += self._best_of(others, count - len(picks), explore, draw)
        return picks

    def _best_of(self, points: list[Point], count: int, explore: int, draw: random.Random) -> list[Pick]:
        """The best-scored of ``points`` and ``explore`` random ones of the rest."""
        scores = self._scores(points)
        order = sorted(range(len(points)), key=lambda i: (-scores[i], i))
        best = [points[i] for i in order[: max(0, count - explore)]]
        rest = [points[i] for i in order[len(best) :]]
        chosen = best + draw.sample(rest, min(count - len(best), len(rest)))
        return [self._pick(point) for point in chosen]

    @property
    def _size(self) -> int:
        return sum(space.size for space in self.gate.spaces.values())

    def _left(self) -> list[Point]:
        """Every valid point that is not known; for spaces that are enumerated."""
        if self._points is None:
            self._points = [point for point in self._all_points() if self.gate.valid(point)]
        self._points = [point for point in self._points if point not in self.gate.known]
        return self._points

    def _all_points(self) -> Iterator[Point]:
        for space in self.gate.spaces.values():
            for config in space:
                yield point_of(space, config)

    def _drawn(self, count: int, draw: random.Random) -> list[Point]:
        """At most ``count`` valid unknown points, drawn at random from all families alike."""
        found: dict[Point, None] = {}
        spaces = list(self.gate.spaces.values())
        for _ in range(DRAWS):
            space = draw.choice(spaces)
            point = Point(space.family, tuple(draw.randrange(len(knob.choices)) for knob in space.knobs))
            if point not in self.gate.known and self.gate.valid(point):
                found[point] = None
                if len(found) == count:
                    break
        return list(found)

    def _pick(self, point: Point) -> Pick:
        return Pick(point, trace_json(point_schedule(self.gemm, self.gate.spaces[point.family], point)))

    def _random(self) -> random.Random:
        """A generator that the seed and what is known fix, so that a resumed search goes on as if never stopped."""
        known = sorted((point.family, point.indices) for point in self.gate.known)
        digest = hashlib.sha256(repr((self.seed, str(self.gemm), known)).encode()).digest()
        return random.Random(int.from_bytes(digest[:8], "big"))

    # -- learning ------------------------------------------------------------------------------

    def _scores(self, points: Sequence[Point]) -> Scores:
        return self.model.scores([self.gate.config(point) for point in points])

    def _predicted_us(self, points: list[Point]) -> list[float | None]:
        if self.best_us is not None and self.model.trained:
            expected = self.model.expected([self.gate.config(point) for point in points])
            return [self.best_us * math.exp(-score) for score in expected]
        return [
            self.gate.families[p.family].predict_us(self.gemm, self.gate.config(p), self.device, self.regime)
            for p in points
        ]

    def _take_in(self, candidates: Iterable[Candidate], *, commit: bool) -> None:
        taken = [c for c in candidates if c.status is not Status.PRUNED]
        self.model.learn(taken)
        for candidate in taken:
            point = self._point(candidate.config)
            if point is None:
                continue
            self.gate.known.add(point)
            us = candidate.search_us
            if candidate.status is Status.MEASURED and us is not None:
                self.best_us = us if self.best_us is None else min(self.best_us, us)
                if commit:
                    self.evolution.record(point, us)

    def _point(self, config: Config) -> Point | None:
        """The point of a recorded config, or None where today's spaces do not have it."""
        space = self.gate.spaces.get(config.family)
        try:
            return point_of(space, config) if space is not None else None
        except InvalidConfig:
            return None
