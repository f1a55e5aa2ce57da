"""``Search``: what to try next for one problem, and what came of it.

Proposals are asked for in batches and results reported whenever they come, in any order and any subset. A seed fixes
what is proposed for given measurements.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig, InvalidRequest
from tirgemm.families.base import Family
from tirgemm.families.choice import opening
from tirgemm.families.common.ranking_model import ranking_model
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning.search.cost_model import MAX_HISTORY, BoostedTrees, CostModel, Scores
from tirgemm.tuning.search.evolution import Evolution
from tirgemm.tuning.search.expected_gain import expected_gain
from tirgemm.tuning.search.neighbourhood import Neighbourhood, adapted, cache_variants
from tirgemm.tuning.search.proposal_filter import ProposalFilter
from tirgemm.tuning.search.ranked_model import RankedModel
from tirgemm.tuning.search.similar_problems import candidates_of_nearest, nearest, problems_of_same_sizes
from tirgemm.tuning.search.space_trace import Point, point_of

# Problems whose fast configs are tried here, and how many of each.
SIMILAR, OF_EACH = 4, 2
# So many configs that are fast where only types, layout, epilogue or promises differ are tried before those that the
# model expects.
SAME_SIZES = 3
# In spaces of more points than this a random population of the evolution has few good ones.
LARGE = 1_000_000
# The share of proposals that come from the neighbourhood of what is fast, while fewer than NEAR_FIRST were measured and
# from then on; the others come from the evolution.
NEAR_FIRST, NEAR_SHARES = 8, (1.0, 0.0)
# Before so many were tried nothing is said of what the next batch may gain.
LEAST_TRIED = 16
# Spaces up to this size are enumerated, so that their last points are found and their end is known.
ENUMERATED = 20_000
# Where fewer unknown points than this are left, they are all scored: evolution would mostly meet known ones.
ALL_SCORED = 64
# Draws from a larger space, where evolution found too little, before it counts as exhausted.
DRAWS = 20_000
# So many points of a round of evolution are kept, and so many proposals made of them, each time scored anew by what has
# been learnt since: a round takes a second, and a batch may be a single proposal.
KEPT, PROPOSED_OF_KEPT = 48, 8
# The share of a batch that is picked at random: before anything was measured, and after.
EXPLORE_UNTRAINED = 0.5
EXPLORE = 0.125


@dataclass(frozen=True, slots=True)
class Proposal:
    """A config to build, verify and measure. ``predicted_us`` is None where nothing says."""

    config: Config
    predicted_us: float | None = None


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How a search proposes.

    ``offered`` are configs to try first, whatever the model says of them. ``first`` is how many of the best-expected
    configs come before all others, ``variants`` how many of the fastest's with other cache policies come next.
    ``near_shares`` are the shares of the neighbourhood in the first proposals and
    later; by default it proposes in large spaces alone. ``cost_model`` stands in place of the trained model of the
    device or of one that learns. ``given_up`` is asked while proposals are made.
    """

    offered: Sequence[Config] = ()
    first: int = 8
    variants: int = 0
    near_shares: tuple[float, float] | None = None
    cost_model: CostModel | None = None
    given_up: Callable[[], bool] = lambda: False


class Search:
    """The search of one problem on one device in one regime over the spaces of ``families``.

    ``recorded`` are the candidates of this problem from earlier: never proposed again, they teach the cost model and
    seed the population. ``history`` are candidates of other problems or of the other regime: those of the nearest
    problems warm a model that is not trained yet. Raises InvalidRequest where there is no family.
    """

    def __init__(
        self,
        gemm: Gemm,
        device: Device,
        regime: Regime,
        families: Sequence[Family],
        options: SearchOptions | None = None,
        *,
        seed: int = 0,
        recorded: Sequence[Candidate] = (),
        history: Sequence[Candidate] = (),
    ) -> None:
        options = options or SearchOptions()
        if not families:
            raise InvalidRequest(f"search of {gemm} on {device.name} was given no family; give at least one")
        self.gemm = gemm
        self.device = device
        self.regime = regime
        self.families = tuple(families)
        self.offered = tuple(options.offered)
        self.first_count = options.first
        self.variant_count = options.variants
        self.seed = seed
        self.filter = ProposalFilter(gemm, device, families, options.given_up)
        self.near_shares = options.near_shares or (NEAR_SHARES if self._size > LARGE else (0.0, 0.0))
        ranking = ranking_model(device)
        self._covered = {f.name for f in families if ranking is not None and ranking.covers(f.name, gemm, regime)}
        if options.cost_model is not None:
            self.model: CostModel = options.cost_model
        elif ranking is not None and self._covered:
            self.model = RankedModel(gemm, device, regime, families, ranking)
        else:
            self.model = BoostedTrees(gemm, device, regime, families, seed=seed)
        self.evolution = Evolution(gemm, self.filter)
        self.best_us: float | None = None
        self._points: list[Point] | None = None
        self._neighbourhoods: dict[str, Neighbourhood] = {}
        self._times: dict[Config, float | None] = {}
        self._elsewhere: dict[Gemm, dict[Config, float]] = {}
        self._kept: list[Point] = []
        self._proposed_of_kept = 0
        self._variants: set[Config] = set()
        self.learn(candidates_of_nearest(gemm, history, MAX_HISTORY))
        self._take_in(recorded)

    def ask(self, count: int) -> list[Proposal]:
        """At most ``count`` configs that were neither recorded nor proposed before; [] where the space is exhausted.

        The best default comes first, then what was offered, then what is expected to be the best (``opening``), then
        the fastest with other cache policies (``variants``). Raises
        InvalidRequest for a count below 1, Cancelled where it was given up.
        """
        if count < 1:
            raise InvalidRequest(f"a search was asked for {count} proposals; ask for at least 1")
        draw = self._random()
        picks = self.first()[:count]
        self.filter.seen_points.update(picks)
        if len(picks) < count and (varied := self.variants()[: count - len(picks)]):
            self._variants.update(map(self.filter.config, varied))
            self.filter.seen_points.update(varied)
            picks += varied
        if len(picks) < count:
            picks += self._next(count - len(picks), draw)
            self.filter.seen_points.update(picks)
        times = self._predicted_us(picks)
        return [Proposal(self.filter.config(point), us) for point, us in zip(picks, times, strict=True)]

    def tell(self, candidates: Sequence[Candidate]) -> None:
        """Take in results, whatever their status. Candidates of another problem, device or regime are refused."""
        for candidate in candidates:
            if (candidate.gemm, candidate.device_key, candidate.regime) != (self.gemm, self.device.key, self.regime):
                raise InvalidRequest(
                    f"candidate of {candidate.gemm} on {candidate.device_key} ({candidate.regime}) was reported to the "
                    f"search of {self.gemm} on {self.device.key} ({self.regime})"
                )
        self._take_in(candidates)

    @property
    def tried(self) -> int:
        """How many candidates are recorded, whatever became of them."""
        return len(self._times)

    def expected_gain(self, proposals: Sequence[Proposal]) -> float | None:
        """The gain in speed that a batch is expected to bring, as a share; None while too little was measured to
        say, what was measured taught the model nothing yet, or the batch has variants, of which no model knows that."""
        if any(proposal.config in self._variants for proposal in proposals):
            return None
        times = [us for us in self._times.values() if us is not None]
        if not times or self.tried < LEAST_TRIED or not self.model.trained:
            return None
        speeds = self.model.expected([proposal.config for proposal in proposals])
        return expected_gain(speeds, self.model.errors(), times)

    def learn(self, candidates: Iterable[Candidate]) -> None:
        """Let the model learn from candidates of other problems, or of this one in the other regime."""
        others = [c for c in candidates if (c.gemm, c.regime) != (self.gemm, self.regime)]
        self.model.learn(others)
        for candidate in others:
            us = candidate.search_us if candidate.status is Status.MEASURED else None
            if us is not None:
                self._elsewhere.setdefault(candidate.gemm, {})[candidate.config] = us

    # -- choosing ------------------------------------------------------------------------------

    def first(self) -> list[Point]:
        """What is tried before anything is searched for and is not known yet: the best default, the offered configs
        that are valid here, what is fast in problems of the same sizes, and what is expected to be the best."""
        best, *others = [point_of(self.filter.spaces[config.family], config) for config in self._opening]
        points = dict.fromkeys([best, *self._valid(self.offered), *self._fast_of_same_sizes, *others])
        return [point for point in points if point not in self.filter.seen_points]

    def variants(self) -> list[Point]:
        """What is to be tried of the fastest measured config with other cache policies, and is not known yet."""
        best = self._fastest if self.variant_count else None
        if best is None:
            return []
        nearest_first = cache_variants(best, self.filter.spaces[best.family])[: self.variant_count]
        return [point for point in self._valid(nearest_first) if point not in self.filter.seen_points]

    @property
    def _fastest(self) -> Config | None:
        measured = {config: us for config, us in self._times.items() if us is not None}
        return min(measured, key=lambda config: measured[config], default=None)

    def _valid(self, configs: Iterable[Config]) -> list[Point]:
        """The points of those configs that today's spaces have and the rules accept."""
        return [point for point in map(self._point, configs) if point is not None and self.filter.valid(point)]

    def _of_same_sizes(self) -> list[Config]:
        """The fastest configs of problems that have the gemm's sizes, fitted to this one: every problem's best, then
        the second ones."""
        elsewhere = [self._elsewhere[gemm] for gemm in problems_of_same_sizes(self.gemm, self._elsewhere)]
        fastest = [sorted(times, key=lambda config: times[config])[:OF_EACH] for times in elsewhere]
        configs = [config for row in itertools.zip_longest(*fastest) for config in row if config is not None]
        spaces = self.filter.spaces
        return [adapted(config, spaces[config.family]) for config in configs if config.family in spaces]

    @cached_property
    def _opening(self) -> list[Config]:
        return opening(self.families, self.gemm, self.device, self.regime, self.first_count)

    @cached_property
    def _fast_of_same_sizes(self) -> list[Point]:
        """What is fast in problems of the same sizes, where more is tried than was offered."""
        return list(dict.fromkeys(self._valid(self._of_same_sizes())))[:SAME_SIZES] if self.first_count else []

    def _next(self, count: int, draw: random.Random) -> list[Point]:
        """A part from the neighbourhood of what is fast, the others from the evolution."""
        whole = count * self.near_shares[len(self._times) >= NEAR_FIRST]
        near = self._near(int(whole) + (draw.random() < whole % 1))
        self.filter.seen_points.update(near)
        return near + (self._evolved(count - len(near), draw) if len(near) < count else [])

    def _near(self, count: int) -> list[Point]:
        if not count:
            return []
        best = self._fastest
        family = self.filter.families[best.family] if best is not None else self.families[0]
        if family.name not in self._neighbourhoods:
            self._neighbourhoods[family.name] = Neighbourhood(
                self.gemm, family, self.device, self.regime, seed=self.seed
            )
        known = {config: us for config, us in self._times.items() if config.family == family.name}
        space = self.filter.spaces[family.name]
        flying = [self.filter.config(p) for p in self.filter.seen_points if p.family == family.name]
        configs = self._neighbourhoods[family.name].next(count, known, self._borrowed(family.name), flying)
        return [point_of(space, config) for config in configs]

    def _borrowed(self, family: str) -> list[Config]:
        """The fastest configs of the most similar problems."""
        return [
            config
            for gemm in [*([self.gemm] if self.gemm in self._elsewhere else []), *nearest(self.gemm, self._elsewhere)][
                :SIMILAR
            ]
            for config in [
                c for c in sorted(self._elsewhere[gemm], key=lambda c: self._elsewhere[gemm][c]) if c.family == family
            ][:OF_EACH]
        ]

    def _evolved(self, count: int, draw: random.Random) -> list[Point]:
        share = EXPLORE if self.model.trained else EXPLORE_UNTRAINED
        explore = min(count - 1, round(count * share + 0.001)) if count > 1 else 0
        left = self._left() if self._size <= ENUMERATED else None
        if left is not None and len(left) <= max(ALL_SCORED, 2 * count):
            return self._best_of(left, count, explore, draw)
        self._kept = [point for point in self._kept if point not in self.filter.seen_points]
        self._proposed_of_kept += count
        if self._proposed_of_kept <= PROPOSED_OF_KEPT and len(self._kept) > 2 * count:
            return self._best_of(self._kept, count, explore, draw)
        seed = draw.randrange(1, 2**31 - 1)
        picks = self.evolution.round(max(count, KEPT), explore, self._scores, seed)
        self._kept, self._proposed_of_kept = picks, count
        if len(picks) > count:
            picks = picks[: count - explore] + picks[len(picks) - explore :]
        if len(picks) < count:
            self.filter.seen_points.update(picks)
            others = left if left is not None else self._drawn(ALL_SCORED, draw)
            others = [point for point in others if point not in self.filter.seen_points]
            picks = picks + self._best_of(others, count - len(picks), explore, draw)
        return picks

    def _best_of(self, points: list[Point], count: int, explore: int, draw: random.Random) -> list[Point]:
        """The best-scored of ``points`` and ``explore`` random ones of the rest."""
        scores = self._scores(points)
        order = sorted(range(len(points)), key=lambda i: (-scores[i], i))
        best = [points[i] for i in order[: max(0, count - explore)]]
        rest = [points[i] for i in order[len(best) :]]
        return best + draw.sample(rest, min(count - len(best), len(rest)))

    @property
    def _size(self) -> int:
        return sum(space.size for space in self.filter.spaces.values())

    def _left(self) -> list[Point]:
        """Every valid point that is not known; for spaces that are enumerated."""
        if self._points is None:
            self._points = [point for point in self._all_points() if self.filter.valid(point)]
        self._points = [point for point in self._points if point not in self.filter.seen_points]
        return self._points

    def _all_points(self) -> Iterator[Point]:
        for space in self.filter.spaces.values():
            for indices in itertools.product(*(range(len(knob.choices)) for knob in space.knobs)):
                yield Point(space.family, indices)

    def _drawn(self, count: int, draw: random.Random) -> list[Point]:
        """At most ``count`` valid unknown points, drawn at random from all families alike."""
        points: dict[Point, None] = {}
        spaces = list(self.filter.spaces.values())
        for _ in range(DRAWS):
            space = draw.choice(spaces)
            point = Point(space.family, tuple(draw.randrange(len(knob.choices)) for knob in space.knobs))
            if point not in self.filter.seen_points and self.filter.valid(point):
                points[point] = None
                if len(points) == count:
                    break
        return list(points)

    def _random(self) -> random.Random:
        """A generator that the seed and what is known fix, so that a resumed search goes on as if never stopped."""
        known = sorted((point.family, point.indices) for point in self.filter.seen_points)
        digest = hashlib.sha256(repr((self.seed, str(self.gemm), known)).encode()).digest()
        return random.Random(int.from_bytes(digest[:8], "big"))

    # -- learning ------------------------------------------------------------------------------

    def _scores(self, points: Sequence[Point]) -> Scores:
        return self.model.scores([self.filter.config(point) for point in points])

    def _predicted_us(self, points: list[Point]) -> list[float | None]:
        if self.best_us is not None and self.model.trained:
            expected = self.model.expected([self.filter.config(point) for point in points])
            return [self.best_us * math.exp(-score) for score in expected]
        return [
            self.filter.families[p.family].predict_us(self.gemm, self.filter.config(p), self.device, self.regime)
            for p in points
        ]

    def _take_in(self, candidates: Iterable[Candidate]) -> None:
        taken = [c for c in candidates if c.status is not Status.PRUNED]
        self.model.learn(taken)
        for candidate in taken:
            point = self._point(candidate.config)
            if point is None:
                continue
            self.filter.seen_points.add(point)
            us = candidate.search_us if candidate.status is Status.MEASURED else None
            self._times[candidate.config] = us
            if us is not None:
                self.best_us = us if self.best_us is None else min(self.best_us, us)
                self.evolution.record(point, us)

    def _point(self, config: Config) -> Point | None:
        """The point of a recorded config, or None where today's spaces do not have it."""
        space = self.filter.spaces.get(config.family)
        try:
            return point_of(space, config) if space is not None else None
        except InvalidConfig:
            return None
