"""Trees evaluated without XGBoost, what a ranking model covers, and what it makes of the defaults."""

from __future__ import annotations

import gzip
import json
import math
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.ranking import H200, PROBLEMS, as_estimated, slow_pingpong, trained_on
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families import family_named
from tirgemm.families.base import rejected
from tirgemm.families.choice import opening, ranked_defaults
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.ranking_model import (
    FARTHEST,
    RankingModel,
    kinds_of,
    matrix,
    ranking_model,
    user_file,
)
from tirgemm.families.common.tree_ensemble import TreeEnsemble
from tirgemm.families.features import features
from tirgemm.families.wgmma import Wgmma
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.ranking_training import write

FAMILY = Wgmma()
GEMM = Gemm.parse("768x1536x2048:f16:nt")


@pytest.fixture
def own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's model of made-up times in which schedule=pingpong takes a quarter longer than estimated."""
    monkeypatch.setenv("TIRGEMM_DATA", str(tmp_path))
    path = user_file(H200.key)
    write(trained_on(slow_pingpong), path)
    return path


def by_few(trees: TreeEnsemble, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The predictions of rows that are asked for a few at a time, as those of single configs are."""
    return np.concatenate([trees.predict(rows[first : first + 7]) for first in range(0, len(rows), 7)])


def test_trees_give_what_xgboost_gives_of_present_and_missing_features() -> None:
    import xgboost

    draw = np.random.default_rng(5)
    rows = draw.normal(size=(500, 6)).astype(np.float32)
    rows[draw.random(rows.shape) < 0.2] = np.nan
    target = np.where(np.isnan(rows[:, 0]), 2.0, rows[:, 0] * np.nan_to_num(rows[:, 3])) + np.nan_to_num(rows[:, 5])
    names = [f"f{number}" for number in range(6)]
    data = xgboost.DMatrix(rows, label=target, feature_names=names)
    booster = xgboost.train({"max_depth": 5, "nthread": 1, "base_score": 0.0}, data, 30)
    trees = TreeEnsemble.of_xgboost(bytes(booster.save_raw("json")).decode())
    used = [names.index(name) for name in trees.features]
    np.testing.assert_allclose(trees.predict(rows[:, used]), booster.predict(data), atol=1e-5)
    assert (by_few(trees, rows[:, used]) == trees.predict(rows[:, used])).all()
    # What equals a threshold is not less than it, and nought is nought whatever its sign.
    grown = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    thresholds = np.array([bound for tree in grown for bound in tree["split_conditions"]], np.float32)
    for values in (thresholds, np.nextafter(thresholds, -np.inf), np.array([0.0, -0.0], np.float32)):
        exact = draw.choice(values, (300, 6))
        expected = booster.predict(xgboost.DMatrix(exact, feature_names=names))
        np.testing.assert_allclose(trees.predict(exact[:, used]), expected, atol=1e-5)
        assert (by_few(trees, exact[:, used]) == trees.predict(exact[:, used])).all()
    assert trees.predict(exact[:0, used]).shape == (0,)


@pytest.mark.parametrize("depth", [1, 8, 9, 12])
def test_trees_of_any_depth_beside_a_single_leaf(depth: int) -> None:
    import xgboost

    draw = np.random.default_rng(depth)
    rows = draw.normal(size=(3000, 3)).astype(np.float32)
    data = xgboost.DMatrix(rows, label=draw.normal(size=3000), feature_names=["a", "b", "c"])
    grow = {"max_depth": depth, "nthread": 1, "base_score": 0.0, "eta": 0.5, "min_child_weight": 0}
    booster = xgboost.train(grow, data, 3)
    # No split gains so much: the fourth tree is a leaf.
    booster = xgboost.train(grow | {"gamma": 1e9}, data, 1, xgb_model=booster)
    text = bytes(booster.save_raw("json")).decode()
    grown = json.loads(text)["learner"]["gradient_booster"]["model"]["trees"]
    assert [len(tree["left_children"]) for tree in grown][-1] == 1
    trees = TreeEnsemble.of_xgboost(text)
    assert len(trees.levels) == depth
    used = [["a", "b", "c"].index(name) for name in trees.features]
    np.testing.assert_allclose(trees.predict(rows[:, used]), booster.predict(data), atol=1e-5)
    assert (by_few(trees, rows[:, used]) == trees.predict(rows[:, used])).all()


@pytest.mark.parametrize("text", ["{}", "[]", '{"learner": {"objective": {"name": "rank:ndcg"}}}'])
def test_what_is_no_regression_of_xgboost_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"XGBoost|regression"):
        TreeEnsemble.of_xgboost(text)


def test_a_matrix_has_features_numbers_indicators_and_missing_values() -> None:
    default = FAMILY.default(GEMM, H200, "sustained")
    configs = ConfigColumns.of([default, default.with_(schedule="pingpong", stages=3)])
    names = ["flops", "wgmma.stages", "wgmma.schedule=pingpong", "family=wgmma", "family=mma", "mma.stages"]
    actual = matrix(names, features(GEMM, configs, H200, "sustained", FAMILY), configs)
    assert actual[1].tolist()[:5] == [GEMM.flops, 3.0, 1.0, 1.0, 0.0]
    assert math.isnan(actual[1][5])


@pytest.mark.parametrize(
    ("text", "swap", "piece", "copies"),
    [
        # k of 91 elements in rows: both operands by elements, as one of them is.
        ("4405x288x91:bf16:nt", 0, 2, 64 * (64 + 32) / 128),
        # Rows of 2 x 1922 bytes: pieces of 4.
        ("298x4852x1922:bf16:nt", 0, 4, 64 * (64 + 32) / 2 / 128),
        # B's rows of 4852 elements by pieces of 8 bytes, A by TMA; B is along the tile's rows, or its columns.
        ("298x4852x1920:bf16:nn", 1, 8, 64 * 64 / 4 / 128),
        ("298x4852x1920:bf16:nn", 0, 8, 64 * 32 / 4 / 128),
        # All by TMA.
        ("304x4864x1920:bf16:nt", 0, 16, 0),
    ],
)
def test_features_say_how_many_copies_a_thread_makes_in_a_step(text: str, swap: int, piece: int, copies: float) -> None:
    gemm = Gemm.parse(text)
    config = FAMILY.default(gemm, H200, "sustained")
    knobs = dict(config.knobs) | {"tile_m": 64, "tile_n": 32, "tile_k": 64, "swap": swap, "load": "copy"}
    got = features(gemm, ConfigColumns.of([Config("wgmma", tuple(knobs.items()))]), H200, "sustained", FAMILY)
    assert float(np.squeeze(got["piece_bytes"])) == piece
    assert float(np.squeeze(got["copies_per_step"])) == copies
    assert float(np.squeeze(got["repacked_share"])) == 0


def test_features_say_what_a_kernel_before_writes_and_how_many_threads_warps_are() -> None:
    gemm = Gemm.parse("256x512x91:f16:nt")
    mma = family_named("mma")
    for load, share in (("copy", 0.0), ("repack", 2 * (256 + 512) * 91 / gemm.nbytes)):
        knobs = dict(mma.default(gemm, H200, "sustained").knobs) | {"warps_m": 2, "warps_n": 4, "load": load}
        got = features(gemm, ConfigColumns.of([Config("mma", tuple(knobs.items()))]), H200, "sustained", mma)
        assert float(np.squeeze(got["repacked_share"])) == pytest.approx(share)
        assert float(np.squeeze(got["threads"])) == 256
        assert float(np.squeeze(got["piece_bytes"])) == (16 if load == "repack" else 2)


@pytest.mark.parametrize(
    ("text", "regime", "covered"),
    [
        ("768x1536x2048:f16:nt", "sustained", True),
        ("768x1536x2048:f16:nt", "isolated", False),
        ("768x1536x2048:bf16:nt", "sustained", False),
        ("768x1536x2048:f16:nn", "sustained", False),
        ("768x1536x2048:f16:nt:bias", "sustained", True),
        ("1..768x1536x2048:f16:nt", "sustained", True),
        ("768x1536x2048:f16:nt:beta", "sustained", False),
        ("768x1536x2048:f16:nt:batch=8", "sustained", False),
        ("768x1536x2047:f16:nt", "sustained", False),
        (f"768x1536x{4096 * FARTHEST}:f16:nt", "sustained", True),
        (f"768x1536x{4096 * FARTHEST + 8}:f16:nt", "sustained", False),
    ],
)
def test_a_model_covers_the_kinds_of_problems_that_it_was_trained_on_and_sizes_near_theirs(
    text: str, regime: Regime, covered: bool
) -> None:
    model = RankingModel.of_json(trained_on(as_estimated))
    assert max(gemm.k for gemm in PROBLEMS) == 4096
    assert model.covers("wgmma", Gemm.parse(text), regime) is covered
    assert not model.covers("mma", Gemm.parse(text), regime)


@pytest.mark.usefixtures("own_model")
def test_the_default_is_the_models_where_it_covers_the_problem_and_the_estimates_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = Gemm.parse("8192x8192x8192:f16:nn")
    with_model = [FAMILY.default(gemm, H200, "sustained") for gemm in (GEMM, *PROBLEMS)]
    default_far = FAMILY.default(far, H200, "sustained")
    assert all(config["schedule"] == "cooperative" for config in with_model)
    monkeypatch.setattr("tirgemm.families.wgmma.heuristic.ranking_model", lambda _: None)
    without = [FAMILY.default(gemm, H200, "sustained") for gemm in (GEMM, *PROBLEMS)]
    assert any(config["schedule"] == "pingpong" for config in without)
    assert FAMILY.default(far, H200, "sustained") == default_far


@pytest.mark.usefixtures("own_model")
def test_a_shortlist_begins_with_the_default_and_has_no_cut_twice() -> None:
    for gemm in (GEMM, PROBLEMS[0]):
        actual = FAMILY.shortlist(gemm, H200, "sustained", 8)
        assert actual[0] == FAMILY.default(gemm, H200, "sustained")
        cuts = {tuple(pair for pair in config.knobs if pair[0] not in ("order", "group")) for config in actual}
        assert len(cuts) == len(actual) == 8


@pytest.mark.usefixtures("own_model")
def test_equal_times_are_ranked_by_the_tables_order_whatever_their_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logarithms differ in their last bits from one machine's vector instructions to another's."""
    actual = [FAMILY.shortlist(gemm, H200, "sustained", 4) for gemm in PROBLEMS]
    exact = np.log
    monkeypatch.setattr(np, "log", lambda values: np.nextafter(exact(values), np.inf))
    assert [FAMILY.shortlist(gemm, H200, "sustained", 4) for gemm in PROBLEMS] == actual


def test_a_users_model_is_read_again_when_it_changes_and_named_when_it_is_none(own_model: Path) -> None:
    first = ranking_model(H200)
    assert first is not None
    assert ranking_model(H200) is first
    write(trained_on(as_estimated), own_model)
    assert ranking_model(H200) is not first
    for damaged in (b"no gzip", gzip.compress(json.dumps({"format": "another"}).encode())):
        own_model.write_bytes(damaged)
        with pytest.raises(InvalidRequest, match=own_model.name):
            ranking_model(H200)
    own_model.unlink()
    assert kinds_of(GEMM) == kinds_of(PROBLEMS[0])


def test_families_are_compared_by_a_model_that_knows_them_all_and_else_by_their_estimates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = [FAMILY, family_named("mma")]
    estimated = ranked_defaults(both, GEMM, H200, "sustained")
    assert [family.name for family, _ in estimated] == ["wgmma", "mma"]
    document = trained_on(as_estimated)
    domain = document["domain"] | {"mma sustained": document["domain"]["wgmma sustained"]}
    model = RankingModel.of_json(document | {"domain": domain})
    monkeypatch.setattr("tirgemm.families.choice.ranking_model", lambda _: model)
    monkeypatch.setattr(RankingModel, "log_gain", lambda _, __, configs: np.array([9.0 * (configs.family == "mma")]))
    assert [family.name for family, _ in ranked_defaults(both, GEMM, H200, "sustained")] == ["mma", "wgmma"]
    assert ranked_defaults(both, GEMM.with_(dtype="bf16"), H200, "sustained")[0][0].name == "wgmma"


def test_what_a_problem_begins_with_is_worked_out_once_for_all_devices_of_a_class(own_model: Path) -> None:
    worked: list[Gemm] = []

    class Heard(Wgmma):
        def default(self, gemm: Gemm, device: Device, regime: Regime) -> Config:
            worked.append(gemm)
            return super().default(gemm, device, regime)

    heard, devices = [Heard()], [H200.with_(uuid=f"GPU-{index}", index=index) for index in range(4)]
    first = [opening(heard, GEMM, device, "sustained", 8) for device in devices]
    assert [ranked_defaults(heard, GEMM, device, "sustained")[0][1] for device in devices] == [first[0][0]] * 4
    assert first == [opening([FAMILY], GEMM, H200, "sustained", 8)] * 4
    assert worked == [GEMM]
    first[0].clear()
    assert opening(heard, GEMM, H200, "sustained", 8) == first[1], "each caller has a list of its own"
    write(trained_on(as_estimated), own_model)
    ranked_defaults(heard, GEMM, H200, "sustained")
    assert worked == [GEMM, GEMM], "another model may say otherwise"


def test_every_shortlisted_config_of_a_covered_problem_is_in_the_space_and_passes_every_rule() -> None:
    """Of the model that ships: also where few tiles leave the raster no choice."""
    draw, model, seen = random.Random(3), ranking_model(H200), 0
    assert model is not None
    sizes = (1, 16, 33, 64, 130, 255, 512, 1000, 4097)
    for number in range(60):
        deep = draw.choice((17, 24, 64, 72, 128)) if number % 3 == 0 else 8 * draw.randrange(100, 2000)
        gemm = Gemm.parse(f"{draw.choice(sizes)}x{8 * draw.randrange(4, 1500)}x{deep}:f16:nt")
        seen += model.covers("wgmma", gemm, "sustained")
        space = FAMILY.space(gemm, H200)
        for config in FAMILY.shortlist(gemm, H200, "sustained", 16):
            space.check(config)
            assert rejected(FAMILY, gemm, config, H200) is None, f"{gemm}: {config}"
    assert seen > 10
