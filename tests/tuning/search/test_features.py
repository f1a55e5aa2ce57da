"""Features of a candidate for the cost model."""

from __future__ import annotations

import math

import pytest

from tests.helpers.toy_family import DEVICE, Toy
from tirgemm.config import Config, Value
from tirgemm.families import family_named
from tirgemm.gemm import Gemm, Range
from tirgemm.tuning.search.features import features

GEMM = Gemm(1023, 1021, 1027, batch=3)
TOY = Toy()
CONFIG = TOY.default(GEMM, DEVICE, "sustained").with_(block_m=128, block_n=64, block_k=16, thread_m=8, stages=3)


def test_a_tile_that_does_not_divide_the_problem_shows_as_waste() -> None:
    columns = features(GEMM, CONFIG, DEVICE, "sustained")
    assert columns["fill_m"] == pytest.approx(1023 / 1024)
    assert columns["fill_n"] == pytest.approx(1021 / 1024)
    assert columns["fill_k"] == pytest.approx(1027 / 1040)


def test_the_last_wave_counts_blocks_of_the_whole_batch() -> None:
    columns = features(GEMM, CONFIG, DEVICE, "sustained")
    waves = 8 * 16 * 3 / 132
    assert columns["log_waves"] == pytest.approx(math.log2(waves))
    assert columns["wave_fill"] == pytest.approx(waves / 3)


def test_threads_and_shared_memory_follow_from_the_tiles() -> None:
    columns = features(GEMM, CONFIG, DEVICE, "sustained")
    assert columns["threads"] == 128 * 64 / (8 * 4)
    assert 2 ** columns["log_staged_bytes"] == pytest.approx((128 + 64) * 16 * 2 * 3)
    assert columns["blocks_by_threads"] == 2048 / 256


def test_knobs_enter_as_numbers_and_words_as_indicators() -> None:
    columns = features(GEMM, CONFIG, DEVICE, "sustained")
    assert (columns["toy.stages"], columns["toy.unroll"], columns["toy.layout=plain"]) == (3.0, 0.0, 1.0)
    assert "toy.layout=padded" not in columns


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (GEMM.with_(dtype="bf16"), "bf16"),
        (GEMM.with_(layout="tt"), "trans_a"),
        (GEMM.with_(layout="nn"), "trans_b"),
        (GEMM.with_(m=Range(1, 1023)), "ranged"),
        (GEMM.with_(beta=True), "reads_c"),
        (GEMM.with_(bias=True), "epilogue"),
        (GEMM.with_(align=2), "log_align"),
        (GEMM.with_(k=1032), "k_mod_8"),
        (GEMM.with_(deterministic=True), "deterministic"),
    ],
)
def test_problems_that_differ_in_one_field_differ_to_the_model(other: Gemm, name: str) -> None:
    assert features(GEMM, CONFIG, DEVICE, "sustained")[name] != features(other, CONFIG, DEVICE, "sustained")[name]


def test_regimes_differ_to_the_model() -> None:
    assert features(GEMM, CONFIG, DEVICE, "sustained")["isolated"] == 0.0
    assert features(GEMM, CONFIG, DEVICE, "isolated")["isolated"] == 1.0


def test_the_familys_estimate_is_a_feature() -> None:
    columns = features(GEMM, CONFIG, DEVICE, "sustained", TOY)
    assert math.exp(columns["log_predicted_us"]) == pytest.approx(TOY.predict_us(GEMM, CONFIG, DEVICE, "sustained"))


def test_knobs_with_names_of_their_own_need_no_tile() -> None:
    columns = features(GEMM, Config("odd", (("flavour", "plain"), ("depth", 0))), DEVICE, "sustained")
    assert columns["odd.depth"] == 0.0
    assert "fill_m" not in columns
    assert "threads" not in columns


def test_a_block_of_zero_is_the_whole_extent() -> None:
    blocks: dict[str, Value] = {"tile_m": 14, "vectors": 2, "lanes": 16, "block_m": 64, "block_n": 0, "block_k": 0}
    rest: dict[str, Value] = {"pack_a": True, "pack_b": True, "unroll": 4, "order": "rows", "threads": 0}
    config = Config("x86", tuple((blocks | rest).items()))
    columns = features(GEMM, config, DEVICE, "sustained", family_named("x86"))
    assert (columns["fill_n"], columns["fill_k"]) == (1.0, 1.0)
    assert 2 ** columns["log_blocks"] == pytest.approx(16 * 3)
    assert columns["accumulators"] == 14 * 32
    assert columns["micro_fill_n"] == pytest.approx(1021 / 1024)


def test_every_feature_of_the_smallest_problem_is_finite() -> None:
    for config in (TOY.space(GEMM, DEVICE).at(number) for number in range(0, 40_000, 997)):
        assert all(map(math.isfinite, features(Gemm(1, 1, 1), config, DEVICE, "isolated", TOY).values()))
