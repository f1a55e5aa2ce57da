"""The search judged on recorded spaces, whose optimum is known: it beats random sampling, and the model earns its
place.

``tests/data/*.space.json.gz`` are spaces that were measured point by point. The space of the toy family is simulated
(``toy_family.simulated_us``), and says so.
"""

from __future__ import annotations

import random
import statistics
from functools import cache
from pathlib import Path

import pytest

from benchmarks.recorded_space import RecordedPoint, RecordedSpace
from tests.helpers.toy_family import DEVICE, Toy, simulated_us
from tests.tuning.search.uniform_model import Uniform, first_generation
from tirgemm.config import Knob
from tirgemm.errors import InvalidRequest
from tirgemm.families.base import rejected
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import Status
from tirgemm.tuning.search.cost_model import CostModel
from tirgemm.tuning.search.search import Search, SearchOptions

FILES = sorted((Path(__file__).parents[2] / "data").glob("*.space.json.gz"))
SIMULATED = "simulated"
TRIALS = 40
BATCH = 8
SEEDS = range(5)


@pytest.fixture(autouse=True)
def one_generation() -> None:
    """As many as the product has."""


@cache
def recorded(name: str) -> RecordedSpace:
    return simulated_space(Gemm(1023, 1021, 1027)) if name == SIMULATED else RecordedSpace.load(FILES[0].parent / name)


def simulated_space(gemm: Gemm, knobs: tuple[Knob, ...] | None = None) -> RecordedSpace:
    toy = Toy(knobs=knobs)
    space = toy.space(gemm, DEVICE)
    actual = RecordedSpace(gemm, DEVICE, "sustained", space, toy.default(gemm, DEVICE, "sustained"))
    for number, config in enumerate(space):
        predicted = toy.predict_us(gemm, config, DEVICE, "sustained")
        pruned = rejected(toy, gemm, config, DEVICE) is not None
        us = None if pruned else simulated_us(gemm, config)
        actual.rows[number] = RecordedPoint(Status.PRUNED if pruned else Status.MEASURED, us, predicted)
    return actual


def best_found(space: RecordedSpace, seed: int, model: CostModel | None = None) -> float:
    """The fastest of TRIALS trials, over the optimum."""
    options = SearchOptions(cost_model=model)
    search = Search(space.gemm, space.device, space.regime, [space.family()], options, seed=seed)
    times: list[float] = []
    for _ in range(TRIALS // BATCH):
        results = [space.candidate(proposal.config) for proposal in search.ask(BATCH)]
        search.tell(results)
        times += [c.search_us for c in results if c.search_us is not None]
    return min(times) / space.optimum_us


def mean_found(space: RecordedSpace, model: type[Uniform] | None = None) -> float:
    """Over the seeds: a median of five ties where two searches end at one config."""
    return statistics.geometric_mean([best_found(space, seed, model() if model else None) for seed in SEEDS])


@pytest.mark.parametrize("name", [SIMULATED, *(path.name for path in FILES)])
def test_the_search_beats_random_sampling_at_equal_trials_and_the_cost_model_earns_its_place(name: str) -> None:
    space = recorded(name)
    searched = mean_found(space)
    times, optimum_us = space.times, space.optimum_us
    draws = [min(random.Random(i).sample(times, TRIALS)) / optimum_us for i in range(200)]
    assert searched < statistics.median(draws)
    assert searched < 1.15
    with first_generation():
        by_chance = mean_found(space, Uniform)
    assert searched < by_chance


def test_a_recorded_space_has_every_point_of_its_file() -> None:
    actual = recorded(FILES[0].name)
    assert len(actual.rows) == actual.space.size
    assert Status.PRUNED in {row.status for row in actual.rows.values()}
    assert all(actual.space.at(actual.number(config)) == config for config in actual.space)
    assert actual.candidate(actual.default).search_us == pytest.approx(1.118 * actual.optimum_us, rel=1e-3)


def test_a_point_that_was_not_recorded_is_never_proposed() -> None:
    space = simulated_space(
        Gemm(65, 127, 33), Toy().knobs[:3] + tuple(Knob(k.name, k.choices[:1]) for k in Toy().knobs[3:])
    )
    for number in [
        n for n, row in space.rows.items() if row.status is Status.MEASURED and space.space.at(n) != space.default
    ][1:]:
        del space.rows[number]
    search = Search(space.gemm, space.device, space.regime, [space.family()])
    assert len(search.ask(50)) == 2
    assert len(space.rows) < space.space.size


@pytest.mark.parametrize("data", [b"", b"not gzip", b"\x1f\x8b\x08\x00"])
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.space.json.gz"
    path.write_bytes(data)
    with pytest.raises(InvalidRequest, match=r"bad\.space\.json\.gz is not a recorded space"):
        RecordedSpace.load(path)
