"""The cost model: what it learns, from what, and that order does not matter."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.toy_family import DEVICE, Toy, measured, simulated_us, valid_configs
from tirgemm.config import Config
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning.search.cost_model import FAILED, MIN_ROWS, BoostedTrees

GEMM = Gemm(1023, 1021, 1027)
TOY = Toy()


def model(seed: int = 0) -> BoostedTrees:
    return BoostedTrees(GEMM, DEVICE, "sustained", [TOY], seed=seed)


def sample(count: int, seed: int) -> list[Config]:
    return random.Random(seed).sample(valid_configs(TOY, GEMM), count)


def failed(config: Config, status: Status) -> Candidate:
    return Candidate(GEMM, DEVICE.key, "sustained", config, status)


def rank_correlation(actual: BoostedTrees, configs: list[Config]) -> float:
    """Spearman's, between the scores and the simulated speeds."""
    speeds = [-simulated_us(GEMM, c) for c in configs]
    one, other = (np.argsort(np.argsort(x)) for x in (actual.scores(configs), speeds))
    return float(np.corrcoef(one, other)[0, 1])


def test_it_ranks_unseen_configs_better_than_the_familys_estimate() -> None:
    trained = model()
    trained.learn(measured(GEMM, config) for config in sample(96, seed=1))
    unseen = sample(400, seed=2)
    assert trained.trained
    assert rank_correlation(trained, unseen) > max(0.85, rank_correlation(model(), unseen) + 0.1)


def test_records_of_other_shapes_warm_it() -> None:
    warmed = model()
    shapes = (Gemm(777, 1500, 2048), Gemm(2100, 515, 999), Gemm(64, 4096, 4100))
    warmed.learn(measured(gemm, config) for i, gemm in enumerate(shapes) for config in sample(96, seed=10 + i))
    unseen = sample(400, seed=2)
    assert warmed.trained
    assert rank_correlation(warmed, unseen) > max(0.8, rank_correlation(model(), unseen) + 0.1)


def test_records_of_the_other_regime_warm_it_without_standing_for_this_one() -> None:
    """Twice as slow in the other regime, all of them: the ranking carries over and the level does not."""
    warmed, own = model(), [measured(GEMM, config) for config in sample(20, seed=1)]
    isolated = [
        measured(GEMM, config, 2 * simulated_us(GEMM, config)).with_(regime="isolated") for config in sample(96, seed=3)
    ]
    warmed.learn(own + isolated)
    alone = model()
    alone.learn(own)
    unseen = sample(400, seed=2)
    assert rank_correlation(warmed, unseen) > rank_correlation(alone, unseen)
    assert np.abs(warmed.scores(unseen).mean() - alone.scores(unseen).mean()) < 0.4


def test_before_it_has_rows_enough_the_familys_estimate_ranks() -> None:
    trained = model()
    trained.learn(measured(GEMM, config) for config in sample(MIN_ROWS - 1, seed=1))
    configs = sample(50, seed=2)
    estimates = [TOY.predict_us(GEMM, config, DEVICE, "sustained") for config in configs]
    assert not trained.trained
    assert list(np.argsort(-trained.scores(configs), kind="stable")) == list(np.argsort(estimates, kind="stable"))


def test_it_is_trained_alike_in_whatever_order_the_results_came() -> None:
    records = [measured(GEMM, config) for config in sample(40, seed=3)]
    one, other = model(), model()
    one.learn(records)
    for record in reversed(records):
        other.learn([record])
    configs = sample(100, seed=4)
    assert np.array_equal(one.scores(configs), other.scores(configs))


@pytest.mark.parametrize("status", [Status.WRONG, Status.BUILD_FAILED, Status.CRASHED, Status.TIMED_OUT])
def test_what_failed_is_taught_as_slow(status: Status) -> None:
    """Every config with four stages fails: the others must come out on top."""
    trained = model()
    trained.learn(
        failed(config, status) if config["stages"] == 4 else measured(GEMM, config) for config in sample(120, seed=5)
    )
    unseen = sample(300, seed=6)
    scores = trained.scores(unseen)
    four = np.array([config["stages"] == 4 for config in unseen])
    assert scores[four].mean() < scores[~four].mean() - 0.5
    assert scores.min() > FAILED - 1.0


def test_candidates_that_say_nothing_about_this_space_are_left_out() -> None:
    trained = model()
    for record in (measured(GEMM, config) for config in sample(40, seed=7)):
        strange = Config("toy", (*record.config.knobs[:-1], ("unroll", 7)))
        trained.learn(
            [
                record.with_(device_key="cuda:sm_80:other:108"),
                record.with_(config=strange),
                record.with_(config=Config("gone", record.config.knobs)),
                record.with_(status=Status.PRUNED),
                record.with_(sample_sets=tuple(replace(samples, reason="report") for samples in record.sample_sets)),
                record.with_(gemm=GEMM.with_(dtype="f16", acc="f16")),
            ]
        )
    assert not trained.trained


def test_a_measurement_again_replaces_the_earlier() -> None:
    actual, expected = model(), model()
    records = [measured(GEMM, config) for config in sample(30, seed=8)]
    actual.learn(record.with_(status=Status.WRONG, sample_sets=()) for record in records)
    actual.learn(records)
    expected.learn(records)
    configs = sample(50, seed=9)
    assert np.array_equal(actual.scores(configs), expected.scores(configs))


@pytest.mark.parametrize("learnt", [0, 96])
def test_no_configs_have_no_scores(learnt: int) -> None:
    actual = model()
    actual.learn(measured(GEMM, config) for config in sample(learnt, seed=1))
    assert actual.trained == bool(learnt)
    assert len(actual.scores([])) == 0
    assert not learnt or len(actual.expected([])) == 0
