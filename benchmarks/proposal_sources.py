"""Sources of proposals compared at equal trials: evolution, neighbourhood of the fastest, half of each, ranking model.

    python benchmarks/proposal_sources.py --out benchmarks/results/nvidia-h200/proposal_sources.json

Runs ``Search`` without a device on recorded times: a complete space of ``simt`` (``tests/data``), and for problems of
``wgmma`` the configs in ``tuning_db/shipped`` as the space, with and without the records of other problems. In these
pools evolution cannot mutate; what is compared there is which unknown config the model takes next. The ranking model is
trained without the problems of a pool's (n, k); the family's default in a pool is the best-estimated config of it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.recorded_space import RecordedFamily, RecordedPoint, RecordedSpace
from tirgemm.bench.results import environment
from tirgemm.config import Config, Space
from tirgemm.detect import device as detect
from tirgemm.device import Device
from tirgemm.families import Family, family_named
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.ranking_model import RankingModel
from tirgemm.families.features import expected_us, features
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.ranking_training import problem_rows, train
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning.records.comparable_times import comparable_times
from tirgemm.tuning.search import search as search_module
from tirgemm.tuning.search.cost_model import BoostedTrees
from tirgemm.tuning.search.ranked_model import RankedModel
from tirgemm.tuning.search.search import Search, SearchOptions
from tirgemm.tuning_db.transfer import read_candidates, read_devices
from verification import command

ROOT = Path(__file__).resolve().parents[1]
SUITE = "proposal_sources"
RANKED = "ranking model"
# The share of the neighbourhood in the first proposals, and later.
SHARES = {
    "evolution": (0.0, 0.0),
    "half": (0.5, 0.5),
    "neighbourhood": (1.0, 1.0),
    "neighbourhood, then half": (1.0, 0.5),
    "neighbourhood, then evolution": (1.0, 0.0),
    RANKED: (0.0, 0.0),
}
TRIALS, BATCH = (1, 4, 8, 16, 32), 4
LEAST_CONFIGS = 60


class Pool(Space):
    """A space of which only some points exist."""

    points: tuple[Config, ...]

    @classmethod
    def of(cls, space: Space, points: Sequence[Config]) -> Pool:
        pool = cls(space.family, space.knobs)
        object.__setattr__(pool, "points", tuple(points))
        return pool

    @property
    def size(self) -> int:
        return len(self.points)

    def at(self, index: int) -> Config:
        return self.points[index]


class PoolFamily(RecordedFamily):
    """The family's own estimate over the recorded points."""

    def __init__(self, recorded: RecordedSpace, family: Family) -> None:
        super().__init__(recorded)
        self.family = family

    def supports(self, gemm: Gemm, device: Device) -> str | None:
        return None

    def space(self, gemm: Gemm, device: Device) -> Space:
        return self.recorded.space if gemm == self.recorded.gemm else self.family.space(gemm, device)

    def predict_us(self, gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
        return self.family.predict_us(gemm, config, device, regime)


class RankedFamily(PoolFamily):
    """The same, with the recorded points in the order of a ranking model's expectations."""

    def __init__(self, pool: PoolFamily, expected_us: Mapping[Config, float]) -> None:
        super().__init__(pool.recorded, pool.family)
        self.order = sorted(expected_us, key=lambda config: expected_us[config])

    def default(self, gemm: Gemm, device: Device, regime: Regime) -> Config:
        return self.order[0]

    def shortlist(self, gemm: Gemm, device: Device, regime: Regime, count: int, **_: bool) -> list[Config]:
        return self.order[:count]


@dataclass(frozen=True)
class SearchedSpace:
    """A space to search, and what is known of other problems."""

    name: str
    space: RecordedSpace
    family: Family
    history: tuple[Candidate, ...] = ()
    ranking: RankingModel | None = None


def pools(path: Path, count: int) -> Iterator[SearchedSpace]:
    """Problems of many recorded configs, drawn by a seed; each without and with the records of other (n, k)."""
    device, family = read_devices(path)[0], family_named("wgmma")
    candidates = read_candidates(path)
    rows_of_all, problems = problem_rows(candidates, device), candidates_by_problem(candidates)
    large = [gemm for gemm, recorded in problems.items() if len(recorded) >= LEAST_CONFIGS]
    for gemm in random.Random(13).sample(large, count):
        recorded = pool_of(gemm, times_of(problems[gemm], family, device), family, device)
        others = [c for g, recorded_of in problems.items() if (g.n, g.k) != (gemm.n, gemm.k) for c in recorded_of]
        pool = PoolFamily(recorded, family)
        seen = [rows for rows in rows_of_all if (rows.gemm.n, rows.gemm.k) != (gemm.n, gemm.k)]
        ranking = RankingModel.of_json(train(seen, device, {}))
        yield SearchedSpace(f"{gemm} alone", recorded, pool, (), ranking)
        yield SearchedSpace(f"{gemm} with others", recorded, pool, tuple(others))


def candidates_by_problem(candidates: Iterable[Candidate]) -> dict[Gemm, list[Candidate]]:
    """The candidates of ``wgmma`` that were measured in the regime sustained."""
    problems: dict[Gemm, list[Candidate]] = {}
    for candidate in candidates:
        if (candidate.config.family, candidate.regime) == ("wgmma", "sustained"):
            problems.setdefault(candidate.gemm, []).append(candidate)
    return problems


def times_of(candidates: Sequence[Candidate], family: Family, device: Device) -> dict[Config, float]:
    """Comparable microseconds of the candidates of one problem whose configs today's space has."""
    space = family.space(candidates[0].gemm, device)
    times = comparable_times(candidates).items()
    return {config: us for config, us in times if us is not None and space.has(config)}


def pool_of(gemm: Gemm, times: Mapping[Config, float], family: Family, device: Device) -> RecordedSpace:
    """The recorded configs of a problem as a space; its default is the one of the least estimate."""
    predicted = {config: family.predict_us(gemm, config, device, "sustained") for config in times}
    default = min(predicted, key=lambda config: predicted[config])
    points = Pool.of(family.space(gemm, device), list(times))
    pool = RecordedSpace(gemm, device, "sustained", points, default)
    for config, us in times.items():
        pool.rows[pool.number(config)] = RecordedPoint(Status.MEASURED, us, predicted[config])
    return pool


def searched(case: SearchedSpace, source: str, seed: int) -> list[float]:
    """The best time over the optimum after each number of TRIALS."""
    gemm, device, regime = case.space.gemm, case.space.device, case.space.regime
    family, model = case.family, None
    if source == RANKED:
        assert case.ranking is not None
        family = ranked_by(case, case.ranking)
        model = RankedModel(gemm, device, regime, [family], case.ranking)
    search = Search(
        gemm,
        device,
        regime,
        [family],
        SearchOptions(
            near_shares=SHARES[source],
            cost_model=model or BoostedTrees(gemm, device, regime, [family], seed=seed),
        ),
        seed=seed,
        history=case.history,
    )
    best: list[float] = []
    while len(best) < TRIALS[-1]:
        batch = search.ask(BATCH)
        if not batch:
            break
        results = [case.space.candidate(proposal.config) for proposal in batch]
        search.tell(results)
        for result in results:
            us = result.search_us or math.inf
            best.append(min(us, best[-1] if best else math.inf))
    return [best[min(trials, len(best)) - 1] / case.space.optimum_us for trials in TRIALS]


def ranked_by(case: SearchedSpace, ranking: RankingModel) -> Family:
    pool, space = case.family, case.space.space
    assert isinstance(pool, PoolFamily)
    assert isinstance(space, Pool)
    gemm, device, regime = case.space.gemm, case.space.device, case.space.regime
    configs = ConfigColumns.of(space.points)
    inputs = features(gemm, configs, device, regime, pool.family)
    times = expected_us(gemm, configs, inputs, regime, ranking)
    expected = {configs.config(row): us for row, us in enumerate(times.tolist())}
    return RankedFamily(pool, expected)


def main() -> int:
    options = _options()
    # Pools are always enumerated and scored: their points are no neighbours of each other.
    search_module.ALL_SCORED = 10_000
    complete = RecordedSpace.load(ROOT / "tests" / "data" / "h200_simt.space.json.gz")
    cases = [SearchedSpace("simt, complete", complete, complete.family()), *pools(options.records, options.problems)]
    rows: list[dict[str, Any]] = []
    for case in cases:
        search_module.ALL_SCORED = 64 if case.name == "simt, complete" else 10_000
        for source in SHARES:
            if source == RANKED and case.ranking is None:
                continue
            over = [searched(case, source, seed) for seed in range(options.seeds)]
            rows.append({"space": case.name, "points": len(case.space.times), "source": source, "over_optimum": over})
            print(
                case.name,
                source,
                [round(statistics.median(values), 4) for values in zip(*over, strict=True)],
                flush=True,
            )
        # Nothing is timed here: the device is the recorded one, Python and TVM are those of this run.
        device = case.space.device.with_(environment=detect("cpu").environment)
        about = environment(device, ROOT, options.commit)
        document = {"suite": SUITE, "environment": about, "trials": list(TRIALS), "rows": rows}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = command.parser((__doc__ or "").splitlines()[0], "--commit", "--out")
    parser.add_argument("--records", type=Path, default=ROOT / "tuning_db/shipped/nvidia-h200.jsonl.gz")
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
