"""Replay of searches on recorded configs: how many trials a stopping rule spends, and what it loses by ending there.

    python benchmarks/effort_replay.py --out benchmarks/results/nvidia-h200/effort_replay.json

Problems of ``wgmma`` whose recorded configs (``tuning_db/shipped``) are the space, searched to its end without a
device. The ranking model that proposes is trained without the problems of a fifth of the (n, k), in turn. A row says
for one problem, after the first 16 and each batch of 8 behind them, what the best is over the fastest recorded, what
the model and what the batches so far let expect of the next (``tirgemm/tuning/search/expected_gain.py``), and where
each rule ends: ``first`` after the first 16; at half a percent by what the ``model`` says, by the ``history``, by the
larger of the two as ``standard`` does; and by that at the bound of ``exhaustive``.
In these spaces evolution cannot mutate: the model takes the configs in its order.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.proposal_sources import PoolFamily, SearchedSpace, candidates_by_problem, pool_of, ranked_by, times_of
from tirgemm.bench.results import dump, environment
from tirgemm.detect import device as detect
from tirgemm.families import family_named
from tirgemm.families.common.ranking_model import RankingModel
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.ranking_training import problem_rows, train
from tirgemm.tuning.search import search as search_module
from tirgemm.tuning.search.expected_gain import decayed_gain, gains, improvement, spread
from tirgemm.tuning.search.ranked_model import RankedModel
from tirgemm.tuning.search.search import Search, SearchOptions
from tirgemm.tuning.search_loop import BATCH
from tirgemm.tuning_db.transfer import read_candidates, read_devices
from verification import command

ROOT = Path(__file__).resolve().parents[1]
SUITE = "effort_replay"
LEAST_CONFIGS, FOLDS = 40, 5
RULES = ("first", "model", "history", "standard", "exhaustive")


def spaces(path: Path) -> Iterator[SearchedSpace]:
    """Every problem of many recorded configs, with a model that has seen none of its (n, k)."""
    device, family = read_devices(path)[0], family_named("wgmma")
    candidates = read_candidates(path)
    rows_of_all, problems = problem_rows(candidates, device), candidates_by_problem(candidates)
    groups = sorted({(gemm.n, gemm.k) for gemm in problems})
    random.Random(7).shuffle(groups)
    for fold in range(FOLDS):
        held = set(groups[fold::FOLDS])
        seen = [rows for rows in rows_of_all if (rows.gemm.n, rows.gemm.k) not in held]
        ranking = RankingModel.of_json(train(seen, device, {}))
        for gemm, recorded in problems.items():
            times = times_of(recorded, family, device)
            if (gemm.n, gemm.k) not in held or len(times) < LEAST_CONFIGS:
                continue
            pool = pool_of(gemm, times, family, device)
            yield SearchedSpace(str(gemm), pool, PoolFamily(pool, family), (), ranking)


def replayed(case: SearchedSpace) -> dict[str, Any]:
    """The search to the end of its space, and where each rule ends it."""
    assert case.ranking is not None
    gemm, device, regime = case.space.gemm, case.space.device, case.space.regime
    family = ranked_by(case, case.ranking)
    model = RankedModel(gemm, device, regime, [family], case.ranking)
    first = Effort.STANDARD.first
    options = SearchOptions(first=first, near_shares=(0.0, 0.0), cost_model=model)
    search = Search(gemm, device, regime, [family], options)
    times: list[float] = []
    batches: list[dict[str, Any]] = []
    proposals = search.ask(first)
    while proposals:
        results = [case.space.candidate(proposal.config) for proposal in proposals]
        search.tell(results)
        times += [result.search_us for result in results if result.search_us is not None]
        proposals = search.ask(BATCH)
        speeds = model.expected([proposal.config for proposal in proposals])
        batches.append(
            {
                "tried": len(times),
                "over_optimum": round(min(times) / case.space.optimum_us, 5),
                "model": round(math.expm1(improvement(speeds, spread(model.errors()))), 6),
                "history": round(math.expm1(decayed_gain(gains(times))), 6),
            }
        )
    return {"gemm": str(gemm), "points": len(case.space.times), "batches": batches} | {
        rule: ended(batches, rule) for rule in RULES
    }


def ended(batches: list[dict[str, Any]], rule: str) -> dict[str, Any]:
    """The trials that a rule spends and what the best is then over the optimum."""
    for batch in batches:
        expected = {
            "first": 0.0,
            "model": batch["model"],
            "history": batch["history"],
        }.get(rule, max(batch["model"], batch["history"]))
        if expected < (Effort.EXHAUSTIVE if rule == "exhaustive" else Effort.STANDARD).least_gain:
            break
    return {"trials": batch["tried"], "over_optimum": batch["over_optimum"]}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By rule: trials on average and at most, and what is lost, on (geometric) average and at most."""
    made: dict[str, Any] = {}
    for rule in RULES:
        trials = [row[rule]["trials"] for row in rows]
        over = [row[rule]["over_optimum"] for row in rows]
        made[rule] = {
            "trials": round(statistics.mean(trials), 1),
            "most_trials": max(trials),
            "over_optimum": round(statistics.geometric_mean(over), 5),
            "worst_over_optimum": max(over),
            "count": len(rows),
        }
    return made


def main() -> int:
    parser = command.parser((__doc__ or "").splitlines()[0], "--commit", "--out")
    parser.add_argument("--records", type=Path, default=ROOT / "tuning_db/shipped/nvidia-h200.jsonl.gz")
    parser.add_argument("--problems", type=int, default=60)
    options = parser.parse_args()
    # Pools are always enumerated and scored: their points are no neighbours of each other.
    search_module.ALL_SCORED = 10_000
    cases = list(spaces(options.records))
    chosen = random.Random(13).sample(cases, min(options.problems, len(cases)))
    about = environment(chosen[0].space.device.with_(environment=detect("cpu").environment), ROOT, options.commit)
    rows = [replayed(case) | {"commit": about["commit"]} for case in chosen]
    head = {"suite": SUITE, "environment": about, "least_gain": Effort.STANDARD.least_gain, "summary": summary(rows)}
    options.out.write_text(dump(head | {"rows": rows}))
    print(json.dumps(head["summary"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
