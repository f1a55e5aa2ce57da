"""The ladder as data: a tree of one change at a time, what each rung loads, and how its loads fall on the banks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tirgemm.analysis.banks.wavefronts import analyze
from tirgemm.config import Config
from tirgemm.errors import InvalidRequest
from tirgemm.families import FAMILIES
from tirgemm.families.base import rejected
from tirgemm.families.simt import ladder
from tirgemm.families.simt.loads import loads_per_fma
from tirgemm.families.simt.space import ladder_space
from tirgemm.families.simt.tiling import ThreadTiling, tiling
from tirgemm.families.simt.wavefronts import fragment_wavefronts, lane_place
from tirgemm.gemm import Gemm
from tirgemm.hardware import ARCHITECTURES, named_device
from tirgemm.tuning.search.neighbourhood import Neighbourhood, group

_SIMT = FAMILIES["simt"]
_H200 = named_device("sm_90a")
_GEMM = Gemm.parse("16384x16384x16384:f32:nn:alpha:beta")


def cut(name: str, **changes: Any) -> ThreadTiling:
    return tiling(_GEMM, ladder.config(name, _GEMM, _H200).with_(**changes))


def test_the_ladder_is_a_tree_whose_parents_come_first() -> None:
    seen: set[str | None] = {None}
    for rung in ladder.RUNGS:
        assert rung.parent in seen
        assert rung.name not in seen
        assert rung.changed
        seen.add(rung.name)
    assert [rung.name for rung in ladder.RUNGS if rung.parent is None] == ["naive"]
    assert {rung.name for rung in ladder.RUNGS if rung.parent == "float4"} == {"pad_store", "zorder", "vthread"}
    assert [rung.name for rung in ladder.line("tile_2d")] == [
        "naive",
        "coalesced",
        "shared_block",
        "tile_1d",
        "tile_2d",
    ]
    with pytest.raises(InvalidRequest, match="rung 'wgmma' is unknown"):
        ladder.rung("wgmma")


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
@pytest.mark.parametrize("text", ["4096x4096x4096:f32:nn", "4096x4096x4096:f16:nn", "8192x8192x8192:f32:nt:alpha:beta"])
def test_every_rung_is_a_valid_config_that_differs_from_its_parent(arch: str, text: str) -> None:
    gemm, device = Gemm.parse(text), named_device(arch)
    for rung in ladder.RUNGS:
        config = ladder.config(rung.name, gemm, device)
        ladder_space(gemm).check(config)
        assert rejected(_SIMT, gemm, config, device) is None
        if rung.parent:
            assert ladder.changes(rung.name, gemm, device)


# What the articles change from one kernel to the next, and no more.
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("coalesced", {"lanes_n": (1, 32)}),
        ("shared_block", {"reads": ("global", "outer")}),
        ("register_cache", {"reads": ("outer", "scalars")}),
        ("float4", {"reads": ("scalars", "fragments"), "vector": (1, 4)}),
        ("vthread", {"piece": (8, 4)}),
        ("warp_tile", {"lanes_n": (16, 8)}),
        ("pad_store", {"pad": (0, 4)}),
        ("zorder", {"lanes_n": (16, 4), "lane_order": ("row", "z")}),
        ("double_buffer", {"pipeline": ("none", "double"), "barriers": (2, 1)}),
        ("grid_shape", {"raster": (1, 8)}),
        ("pad_zorder", {"pad": (0, 4), "lane_order": ("row", "z")}),
        # The default for the H200 is the best combination but for its pieces, as docs/ladder.md tells it.
        ("default", {"piece": (8, 4)}),
    ],
)
def test_a_rung_changes_one_thing(name: str, changed: dict[str, tuple[object, object]]) -> None:
    assert ladder.changes(name, _GEMM, _H200) == changed


def test_inner_product_is_tile_2d_in_the_other_loop_order() -> None:
    inner, outer = (ladder.config(name, _GEMM, _H200) for name in ("inner_product", "tile_2d"))
    assert inner.with_(reads="outer") == outer


def test_combined_is_what_a_search_on_an_h200_found_fastest() -> None:
    config = ladder.config("combined", Gemm.parse("4096x4096x4096:f32:nn"), _H200)
    assert str(config) == (
        "simt(block_m=128, block_n=128, block_k=16, thread_m=8, thread_n=16, lanes_n=8, piece=8, vector=4, pad=4, "
        "unroll=16, "
        "pipeline=double, raster=8, resident=2, reads=fragments, lane_order=z, grid=line, barriers=1)"
    )


def test_grid_shape_is_the_question_that_the_article_leaves_open() -> None:
    """16384 blocks of 128 x 128 outputs as 128 x 128 and as CUTLASS's 1024 x 16."""
    grids = [
        _SIMT.instantiate(_GEMM, ladder.config(name, _GEMM, _H200), _H200).launch.kernels[0].grid
        for name in ("double_buffer", "grid_shape")
    ]
    assert grids == [(128, 128, 1), (1024, 16, 1)]


# Global and shared elements for an FMA, as the articles count them: 2K a result, 8 + 1 for 8 FMAs, 8 + 8 for 64.
@pytest.mark.parametrize(
    ("name", "from_global", "from_shared"),
    [
        ("naive", 2, 0),
        ("coalesced", 2, 0),
        ("shared_block", 2 / 32, 2),
        ("inner_product", 2 / 128, 2),
        ("tile_1d", 2 / 64, 9 / 8),
        ("tile_2d", 2 / 128, 9 / 8),
        ("register_cache", 2 / 128, 16 / 64),
        ("float4", 2 / 128, 16 / 64),
    ],
)
def test_loads_per_fma_are_those_that_the_articles_count(name: str, from_global: float, from_shared: float) -> None:
    loads = loads_per_fma(cut(name))
    assert (loads.global_elements, loads.shared_elements) == (from_global, from_shared)


def test_float4_divides_the_load_instructions_by_four() -> None:
    before, after = (loads_per_fma(cut(name)) for name in ("register_cache", "float4"))
    assert after.shared_instructions == before.shared_instructions / 4
    assert after.global_instructions == before.global_instructions / 4


def test_wavefronts_are_those_that_the_article_measured() -> None:
    """402,657,486 wavefronts for 134,217,728 loads without Z order, 268,441,315 with it: 3 and 2 for a load."""
    assert fragment_wavefronts(cut("vthread")) / 4 == 3
    assert fragment_wavefronts(cut("zorder")) / 4 == 2


@pytest.mark.parametrize("order", ["row", "z"])
@pytest.mark.parametrize("lanes_n", [2, 4, 8, 16])
@pytest.mark.parametrize("piece", [2, 4, 8])
def test_wavefronts_agree_with_the_analysis_of_banks(order: str, lanes_n: int, piece: int) -> None:
    actual = cut("combined", lanes_n=lanes_n, lane_order=order, piece=piece)
    places = [lane_place(lane, lanes_n, order) for lane in range(32)]
    assert sorted(places) == [(m, n) for m in range(32 // lanes_n) for n in range(lanes_n)]
    width = 4 * min(piece, 4)
    expected = 0
    for axis, pieces in ((0, actual.pieces_m), (1, actual.pieces_n)):
        for at in range(0, 4 * piece, width):
            requests = [4 * piece * place[axis] + at for place in places]
            expected += pieces * analyze(requests, f"load.{8 * width}").total_wavefronts
    assert fragment_wavefronts(actual) == expected


def test_numbers_too_wide_for_a_problem_become_the_nearest_that_fit() -> None:
    odd = Gemm.parse("1023x1021x1027:f32:nn")
    device = _H200.with_(units=8)
    assert ladder.config("combined", odd, device)["vector"] == 1
    nine = Gemm.parse("1024x1152x512:f32:nn")  # 9 columns of blocks
    assert ladder.config("grid_shape", nine, device)["raster"] == 1
    turned = Gemm.parse("1024x1024x512:f32:tn")  # nothing is transposed, nothing is padded
    assert ladder.config("pad_store", turned, device)["pad"] == 0
    ranged = Gemm.parse("1..4096x4096x4096:f32:nn")  # a range's blocks are a plane
    assert ladder.config("combined", ranged, device)["grid"] == "plane"


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("64x64x64:f32:nn", "float4", "needs block_m=128"),
        ("8x8x8:f32:nn", "naive", "needs block_m=32"),
        ("256x256x64:f32:nn", "tile_2d", "fewer than half of 132 SMs"),
    ],
)
def test_a_problem_that_does_not_take_a_rung_is_told_why(text: str, name: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        ladder.config(name, Gemm.parse(text), _H200)


def test_the_last_rung_is_the_familys_default() -> None:
    config = ladder.config("default", _GEMM, _H200)
    assert config == _SIMT.default(_GEMM, _H200, "sustained")
    assert isinstance(config, Config)


def test_every_point_of_the_space_has_an_estimate_valid_or_not() -> None:
    """A search asks for it before it asks the rules."""
    rng = random.Random(0)
    for text in ("4096x4096x4096:f32:nn", "33x65x70:f16:tt:acc=f16", "1..100x40x40:bf16:nt"):
        gemm = Gemm.parse(text)
        space = ladder_space(gemm)
        for _ in range(400):
            config = space.at(rng.randrange(space.size))
            assert _SIMT.predict_us(gemm, config, _H200, "sustained") > 0


def test_the_neighbourhood_begins_with_other_ways_to_cut_the_work() -> None:
    gemm = Gemm.parse("4096x4096x4096:f32:nn")
    candidates = Neighbourhood(gemm, _SIMT, _H200, "sustained")
    first = candidates.next(10, {})
    assert len({group(config) for config in first}) == 10
    known = {config: candidates.estimate(config) * (1 + number / 100) for number, config in enumerate(first)}
    later = candidates.next(12, known)
    assert len(later) == 12
    assert not set(later) & set(first)
    for config in (*first, *later):
        assert rejected(_SIMT, gemm, config, _H200) is None
