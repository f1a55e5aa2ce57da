"""Configs that the wgmma family rejects and why, its choice without tuning, and the launches that it describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.helpers.wgmma_paths import plan_of
from tirgemm.config import Value
from tirgemm.errors import InvalidConfig
from tirgemm.expr import Expr, M, ceildiv, evaluate
from tirgemm.families import family_named
from tirgemm.families.base import rejected
from tirgemm.families.wgmma import Wgmma, heuristic
from tirgemm.families.wgmma.planning.maps import edge_map, load_map, store_map
from tirgemm.families.wgmma.planning.plan import Plan, plan
from tirgemm.gemm import Gemm, Operand
from tirgemm.hardware import named_device

FAMILY = Wgmma()
H200 = named_device("sm_90a")


def cut(text: str, **changes: Value) -> Plan:
    return plan_of(text, changes)


@pytest.mark.parametrize(
    ("text", "changes", "rule", "words"),
    [
        ("4096x4096x4096:f16:nt", {}, None, ""),
        ("4096x4096x4096:f16:nt", {"tile_n": 256, "stages": 5}, "shared", "278608 bytes"),
        (
            "4096x4096x4096:f16:nt",
            {"tile_m": 256, "tile_n": 224, "stages": 2},
            "accumulators",
            "224 registers of accumulators",
        ),
        ("4096x4096x4096:f16:nt", {"tile_m": 192, "tile_n": 224, "stages": 2}, "accumulators", "138 registers"),
        ("4096x4096x4096:f16:nt:act=gelu", {"tile_m": 256, "tile_n": 192, "stages": 3}, "accumulators", "192"),
        (
            "1..64x2052x4096:f16:nt:bias",
            {"tile_n": 56, "resident": 2, "swap": 1, "split": 4, "epilogue": "direct"},
            "accumulators",
            "room for 8",
        ),
        ("1024x576x7168:f16:nt", {"tile_n": 208, "swap": 1, "split": 4}, "accumulators", "room for 100"),
        ("4096x4096x4096:f16:nt", {"cluster_m": 2, "cluster_n": 2}, "cluster", "4 blocks that share tiles"),
        ("4096x4096x1032:f16:nt", {"cluster_m": 2, "cluster_n": 4}, None, ""),
        ("4096x4096x1040:f16:nt", {"cluster_m": 4}, None, ""),
        ("4096x4096x1088:f16:nt", {"cluster_m": 2, "cluster_n": 2}, "cluster", "the limit is 2 where rows are aligned"),
        (
            "4096x4096x1032:f16:nt",
            {"cluster_m": 4, "cluster_n": 4},
            "cluster",
            "16 blocks that share tiles; the limit is 8",
        ),
        ("100x4096x4096:f16:nt", {"cluster_m": 2, "group": 1}, "cluster", "one tile of 128"),
        ("1024x1024x4096:f16:nt", {"schedule": "pingpong"}, "schedule", "one tile"),
        ("1..1024x1024x4096:f16:nt", {"schedule": "pingpong"}, "schedule", "one tile"),
        ("50x4096x4096:f16:nt", {"group": 1}, "tile", "64 is enough"),
        ("4096x104x4096:f16:nt", {"tile_n": 160}, "tile", "104 is enough"),
        ("4096x4096x4096:f16:nt", {"split": 2, "epilogue": "direct"}, "split", "without split"),
        ("512x512x512:f16:nt", {"split": 4, "epilogue": "direct", "group": 4, "stages": 2}, "split", "2 of 8"),
        (
            "128x576x2560:f16:nt",
            {"split": 8, "reduction": "kernel", "epilogue": "direct", "group": 1, "tile_m": 64},
            None,
            "",
        ),
        ("128x576x1216:f16:nt", {"split": 4, "reduction": "kernel", "group": 1}, "epilogue", "fp32"),
        ("128x4100x4096:f16:nt", {"group": 1}, "epilogue", "16 bytes apart"),
        ("128x4096x4096:f16:nt:out=f32", {"group": 1, "epilogue": "staged"}, "epilogue", "f32"),
        ("4096x4096x4096:f16:nt:out=f32", {}, None, ""),
        ("4096x4096x4096:f16:nt:out=f32", {"swap": 1}, None, ""),
        ("4096x4100x4096:f16:nt:out=f32:beta:bias", {"tile_n": 136}, None, ""),
        ("4096x4096x4096:f16:nt:out=f32", {"epilogue": "staged"}, "epilogue", "f32 leaves by tma or direct"),
        ("4096x4098x4096:f16:nt:out=f32", {"epilogue": "staged"}, "epilogue", "f32 leaves by direct"),
        ("4096x4098x4096:f16:nt:out=f32", {}, "epilogue", "16 bytes apart and aligned; direct does not"),
        ("4096x4096x4096:f16:nt:out=f32:ldd=4098", {}, "epilogue", "16 bytes apart and aligned; direct does not"),
        ("4096x4096x4096:f16:nt:out=f32:align=8", {"load": "repack"}, "epilogue", "16 bytes apart and aligned"),
        ("4096x4096x4096:f16:nt:out=f32", {"tile_n": 256, "stages": 5}, "shared", "278608 bytes"),
        ("4096x4096x64:f16:nt", {"stages": 8, "tile_n": 64}, None, ""),
        ("128x4096x128:f16:nt", {"stages": 4, "group": 1}, "stages", "2 steps"),
        ("300x4096x4096:f16:nt", {"group": 16}, "raster", "3 tiles"),
        ("300x304x4096:f16:nt", {"group": 4}, "waves", "fewer than half"),
        ("16x4096x4096:f16:nt", {"swap": 1, "tile_n": 16, "split": 4, "group": 1}, None, ""),
        (
            "16x4096x4096:f16:nt",
            {"swap": 1, "tile_n": 16, "split": 4, "group": 1, "reduction": "kernel"},
            "epilogue",
            "fp32",
        ),
        ("16x4096x4096:f16:nt", {"swap": 1, "tile_n": 32, "group": 1}, "tile", "16 is enough"),
        ("16x4096x4096:f16:tn", {"swap": 1, "tile_n": 24, "group": 1}, "tile", "16"),
        ("117x4672x4096:f16:nt", {"swap": 1, "tile_m": 64, "tile_n": 128, "group": 1}, None, ""),
        ("4x8704x4096:f16:tn", {"swap": 1, "tile_m": 64, "tile_n": 16, "group": 1}, None, ""),
        ("24x8712x4096:f16:tn", {"swap": 1, "tile_n": 24, "group": 1}, None, ""),
        ("128x4096x4096:f16:nt", {"reduction": "kernel", "group": 1}, "split", "no parts"),
        ("128x576x8192:f16:nt", {"split": 16, "tile_n": 192, "group": 1}, "split", "8 blocks of a cluster"),
        ("128x4096x4096:f16:nt", {"split": 2, "tile_n": 256, "stages": 2, "group": 1}, "split", "131072 bytes"),
        ("1024x576x7168:f16:nt", {"split": 4, "reduction": "block"}, "split", "only invariant rows need them"),
        ("4096x576x7168:f16:nt:invariant", {"split": 4, "reduction": "block"}, None, ""),
        ("4096x576x7168:f16:nt:invariant", {"split": 4, "reduction": "block", "cluster_n": 2}, None, ""),
        (
            "9000x576x7168:f16:nt:invariant",
            {"tile_m": 64, "split": 4, "reduction": "block", "schedule": "pingpong"},
            None,
            "",
        ),
        (
            "9000x576x7168:f16:nt:invariant",
            {"split": 4, "reduction": "block", "schedule": "pingpong"},
            "accumulators",
            "128 registers of accumulators",
        ),
        (
            "4096x576x7168:f16:nt:invariant",
            {"tile_n": 208, "split": 4, "reduction": "block", "stages": 3},
            "accumulators",
            "leave room for 88",
        ),
        (
            "9000x576x7168:f16:nt:invariant",
            {"tile_n": 72, "split": 4, "reduction": "block", "resident": 2, "stages": 2},
            "accumulators",
            "leave room for",
        ),
    ],
)
def test_rules_reject_what_cannot_work_or_win(
    text: str, changes: dict[str, Value], rule: str | None, words: str
) -> None:
    refusal = rejected(FAMILY, Gemm.parse(text), cut(text, **changes).config, H200)
    assert (refusal[0] if refusal else None) == rule, refusal
    assert words in (refusal[1] if refusal else "")


@pytest.mark.parametrize(("knob", "word"), [("schedule", "stream"), ("reduction", "memory"), ("order", "hilbert")])
def test_a_word_that_only_old_records_have_is_refused_with_the_choices_that_there_are(knob: str, word: str) -> None:
    gemm = Gemm.parse("4096x4096x4096:f16:nt")
    old = FAMILY.default(gemm, H200, "sustained").with_(**{knob: word})
    said = rejected(FAMILY, gemm, old, H200)
    assert said is not None
    assert said[0] == "words"
    assert f"{knob}={word} is none of its choices" in said[1]
    with pytest.raises(InvalidConfig, match=f"{knob}={word}"):
        plan(gemm, old, H200.units)
    with pytest.raises(InvalidConfig, match=word):
        FAMILY.instantiate(gemm, old, H200)


def test_a_plan_and_its_config_name_each_other() -> None:
    gemm = Gemm.parse("4096x4096x4096:f16:nt")
    config = FAMILY.default(gemm, H200, "sustained")
    assert plan(gemm, config, H200.units).config == config


def test_large_problems_take_large_tiles_and_pingpong_where_power_is_short() -> None:
    gemm = Gemm.parse("8192x8192x8192:f16:nt")
    sustained, isolated = (FAMILY.default(gemm, H200, regime) for regime in ("sustained", "isolated"))
    assert sustained["schedule"] == "pingpong"
    tiles = [(config["tile_m"], config["tile_n"], config["split"]) for config in (sustained, isolated)]
    assert tiles == [(128, 168, 1), (128, 192, 1)]


@pytest.mark.parametrize("text", ["16x576x7168:f16:nt", "128x576x7168:f16:nt", "64x512x32768:bf16:nn"])
def test_few_tiles_are_split_along_k(text: str) -> None:
    gemm = Gemm.parse(text)
    config = FAMILY.default(gemm, H200, "sustained")
    assert config["split"] > 1
    assert evaluate(plan(gemm, config, H200.units).grid.blocks, gemm.m_max) > H200.units // 3


def test_the_grid_is_as_small_as_gives_the_same_waves_at_every_m() -> None:
    ranged = cut("1..8192x4096x4096:f16:nt", cluster_m=2)
    for m in (1, 127, 128, 129, 1000, 4096, 8191):
        fixed = cut(f"{m}x4096x4096:f16:nt", cluster_m=2)
        assert evaluate(ranged.grid.blocks, m) == fixed.grid.blocks
        assert isinstance(fixed.grid.blocks, int)
        assert isinstance(fixed.grid.work, int)
        assert fixed.grid.blocks <= H200.units
        assert (
            -(-fixed.grid.work // (fixed.grid.blocks // 2))
            == fixed.grid.waves
            == -(-fixed.grid.work // (H200.units // 2))
        )
    assert cut("4096x4096x4096:f16:nt", cluster_m=2).grid.blocks == 128
    # Of clusters of four 30 run at once, of eight 15: 66 and 32 of them take a wave more than by 33 and 16 at once.
    tiles: dict[str, Value] = {"tile_m": 128, "tile_n": 192}
    assert cut("3072x2112x5000:f16:nt", **tiles, cluster_m=4).grid.blocks == 4 * 22
    assert cut("4096x1536x5000:f16:nt", **tiles, cluster_m=4, cluster_n=2).grid.blocks == 8 * 11


def test_larger_clusters_are_offered_where_rows_are_not_aligned_to_lines() -> None:
    def offered(text: str) -> set[tuple[Value, ...]]:
        knobs = FAMILY.space(Gemm.parse(text), H200).knobs
        return {knob.choices for knob in knobs if knob.name in ("cluster_m", "cluster_n")}

    assert offered("1024x1024x1024:f16:nt") == offered("1001x1024x1001:f16:nt") == {(1, 2)}
    assert offered("1024x1024x1032:f16:nt") == offered("1024x1040x1024:f16:nn") == {(1, 2, 4)}
    assert {
        FAMILY.default(Gemm.parse("1000x1000x1000:f16:nt"), H200, "sustained")[name]
        for name in ("cluster_m", "cluster_n")
    } & {4}


def test_blocks_share_a_tile_in_equal_parts() -> None:
    with pytest.raises(InvalidConfig, match="3 blocks cannot share 128 rows of a tile in equal parts"):
        assert cut("4096x4096x1032:f16:nt", cluster_m=3, tile_n=128).right


def test_tensor_maps_say_how_each_layout_lies() -> None:
    a = load_map(cut("1000x520x264:f16:nt:batch=3:lda=272:stride_a=300000"), "a")
    assert (a.dims, a.strides, a.box, a.swizzle) == ((264, 1000, 3), (544, 600000), (64, 128, 1), 3)
    b = load_map(cut("1000x520x264:f16:nt", cluster_m=2), "b")
    assert (b.dims, b.strides, b.box) == ((264, 520), (528,), (64, 64))
    turned = load_map(cut("1000x520x264:bf16:tn", tile_n=96, tile_k=128), "b")
    assert (turned.dtype, turned.dims, turned.strides, turned.box, turned.swizzle) == (
        "bf16",
        (520, 264),
        (1040,),
        (32, 128),
        2,
    )
    few = load_map(cut("1..9x520x264:f16:nt", tile_m=64), "a")
    assert (few.dims, few.box) == ((264, M), (64, 16))
    d = store_map(cut("1000x520x264:f16:nt", tile_n=96))
    assert (d.dims, d.box, d.swizzle) == ((520, 1000), (64, 64), 3)
    swapped = cut("100x520x264:f16:nt", swap=1, tile_n=104)
    assert (load_map(swapped, "a").box, load_map(swapped, "b").box) == ((64, 100), (64, 128))
    assert store_map(swapped).box == (64, 64)
    wide = store_map(cut("1000x520x264:f16:nt:out=f32:ldd=528", tile_n=96))
    assert (wide.dtype, wide.dims, wide.strides, wide.box, wide.swizzle) == ("f32", (520, 1000), (2112,), (32, 64), 3)
    narrow = store_map(cut("1000x520x264:f16:nt:out=f32:batch=2", tile_n=24))
    assert (narrow.dims, narrow.box, narrow.swizzle) == ((520, 1000, 2), (16, 64, 1), 2)
    transposed = cut("1..100x520x264:f16:nt:out=f32", swap=1, tile_n=24)
    half = store_map(transposed)
    assert (half.box, half.swizzle, transposed.staging.boxes) == ((32, 16), 3, 2)


def test_of_a_tile_that_reaches_beyond_its_matrix_only_rows_inside_are_loaded() -> None:
    edge = cut("1000x520x264:f16:nt", tile_m=128, tile_n=96)
    assert (edge.loads.outputs_loaded("a"), edge.loads.outputs_loaded("b")) == (None, None)
    a, b = (edge_map(edge, operand) for operand in ("a", "b"))
    assert a is not None
    assert b is not None
    assert (a.box, b.box) == ((64, 1000 % 128), (64, 520 % 96))
    assert (load_map(edge, "a").box, load_map(edge, "b").box) == ((64, 128), (64, 96))
    whole = cut("1024x520x264:f16:nt", tile_n=40)
    assert (whole.loads.outputs_loaded("a"), whole.loads.outputs_loaded("b")) == (128, 40)
    assert (edge_map(whole, "a"), edge_map(whole, "b")) == (None, None)
    only = cut("100x520x264:f16:nt", swap=1, tile_n=104)
    assert (only.loads.outputs_loaded("a"), load_map(only, "a").box, edge_map(only, "a")) == (100, (64, 100), None)


def test_blocks_that_share_a_tile_load_what_is_inside_of_their_parts() -> None:
    shared = cut("1000x520x264:f16:nt", cluster_m=2, tile_n=64)
    edge = edge_map(shared, "b")
    assert edge is not None
    # Of the last eight rows the first block loads all: a part is 32.
    assert (edge.box, shared.loads.rows_loaded("b")) == ((64, 8), 32)
    whole_parts = cut("1000x544x264:f16:nt", cluster_m=2, tile_n=64)
    assert (whole_parts.loads.outputs_loaded("b"), edge_map(whole_parts, "b")) == (None, None)
    beside = cut("640x512x264:f16:nt", cluster_m=2, tile_n=64)
    assert (beside.loads.outputs_loaded("a"), edge_map(beside, "a")) == (None, None), (
        "every other tile of the last cluster"
    )


def test_all_is_loaded_where_tiles_of_both_operands_are_shared() -> None:
    both = cut("1000x520x264:f16:nt", cluster_m=2, cluster_n=2, tile_n=64)
    assert [both.loads.outputs_loaded(operand) for operand in ("a", "b")] == [128, 64]
    assert [edge_map(both, operand) for operand in ("a", "b")] == [None, None]


def test_of_columns_that_are_contiguous_in_memory_whole_slabs_are_loaded() -> None:
    across = cut("1000x520x264:f16:nn", tile_n=192)
    assert (across.loads.outputs_loaded("b"), edge_map(across, "b")) == (None, None)
    sizes = [across.loads.tma_bytes("b", inside, ceildiv) for inside in (192, 136, 128, 64, 1, 0)]
    assert [size // (64 * 64 * 2) for size in sizes] == [3, 3, 2, 1, 1, 0]


@pytest.mark.parametrize(("layout", "tile_n", "peers"), [("nt", 72, 1), ("nt", 96, 4), ("nn", 104, 2), ("nn", 136, 1)])
def test_a_stage_awaits_what_all_that_share_its_tile_load(layout: str, tile_n: int, peers: int) -> None:
    loads = cut(f"1000x520x264:f16:{layout}", tile_n=tile_n, cluster_m=peers).loads
    tile, ragged, row = loads.right, loads.edge_rows("b"), loads.right.width * 2
    assert (ragged != 0) is tile.k_major
    for inside in {*range(0, tile_n, 8), tile_n, 520 % tile_n} if layout == "nn" else {0, tile_n, 520 % tile_n}:
        boxes: int | Expr = 0
        for rank, slab in np.ndindex(peers, tile.slabs):
            mine = inside - rank * tile.rows_loaded
            if not tile.k_major:
                boxes += tile.rows_loaded * row * (slab * tile.width < inside)
            elif mine > 0:
                boxes += row * (tile.rows_loaded if mine >= tile.rows_loaded else ragged)
        assert loads.tma_bytes("b", inside, ceildiv) == boxes


def test_a_range_loads_no_rows_beyond_m() -> None:
    few = cut("1..64x520x264:f16:nt", tile_n=64, tile_k=64, swap=1)
    assert few.loads.outputs_loaded("a") is None
    edge = edge_map(few, "a")
    assert edge is not None
    assert [edge.box_at(m) for m in (1, 8, 9, 33, 63)] == [(64, m) for m in (1, 8, 9, 33, 63)]
    assert edge.box_at(64) == (64, 1), "not used; a box has a row at least"
    assert few.loads.rows_loaded("b") == 128
    for text, changes in (
        ("57..64x520x264:f16:nt", {"tile_n": 64, "swap": 1}),
        ("1..64x520x264:f16:tn", {"tile_n": 64, "swap": 1}),
        ("1..300x520x264:f16:nt", {"tile_n": 64, "swap": 1, "cluster_m": 2}),
    ):
        whole = cut(text, **changes)
        assert whole.loads.rows_loaded("a") == whole.right.rows_loaded
        extents: dict[Operand, int] = {"a": whole.right.extent, "b": whole.left.extent}
        inside = sum(whole.loads.tma_bytes(operand, extent, ceildiv) for operand, extent in extents.items())
        assert inside == whole.memory.stage_bytes


def test_rows_of_a_that_are_not_loaded_are_inside_shared_memory() -> None:
    few = cut("1x16x64:f16:nt", tile_m=64, tile_n=16, stages=2, epilogue="direct")
    read = 2 * few.left.nbytes - few.left.nbytes + 64 * 128
    assert few.left.extent == 8
    assert read <= few.memory.nbytes


def test_workspace_holds_every_part_of_every_matrix() -> None:
    gemm = Gemm.parse("1..100x577x7168:f16:nt:batch=3")
    config = cut(str(gemm), tile_m=64, tile_n=192, split=4, reduction="kernel", epilogue="direct", group=1).config
    launch = FAMILY.instantiate(gemm, config, H200).launch
    assert launch.workspace_bytes(50) == 4 * (4 * 3) * 50 * 580
    assert [evaluate(kernel.grid[0], 50) for kernel in launch.kernels] == [48, -(-3 * 50 * 290 // 256)]


@pytest.mark.parametrize("text", ["1024x1024x1024:f16:nt", "4096x4096x4096:f16:nt", "8192x8192x8192:bf16:nt"])
def test_the_default_does_not_depend_on_the_order_in_which_numpy_partitions(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimates of a square problem are equal with operands swapped and not: the simpler config is the default."""
    gemm = Gemm.parse(text)
    default = FAMILY.default(gemm, H200, "sustained")
    assert default["swap"] == 0
    partition, asked = np.partition, list[int]()

    def reversed_partition(times: Any, count: int) -> Any:
        asked.append(count)
        order = partition(times, count)
        return np.concatenate([order[:count][::-1], order[count : count + 1], order[count + 1 :][::-1]])

    monkeypatch.setattr(np, "partition", reversed_partition)
    heuristic._estimated.cache_clear()
    first, *_ = FAMILY.shortlist(gemm, H200, "sustained", 2)
    assert first == default
    assert asked, "it is another list than the default's"


@pytest.mark.parametrize(
    ("changes", "asked", "words"),
    [
        ({"tile_m": 96}, lambda planned: planned.warpgroups, "tile_m=96 is none of 64, 128, 192, 256"),
        ({"cluster_m": 0}, lambda planned: planned.cluster, "cluster_m=0 is less than 1"),
        ({"split": 0}, lambda planned: planned.grid, "split=0 is less than 1"),
        ({"stages": 0}, lambda planned: planned.memory, "stages=0 is less than 1"),
        ({"tile_k": 0}, lambda planned: planned.grid, "tile_k=0 is less than 1"),
    ],
)
def test_values_of_a_plan_refuse_numbers_that_no_kernel_has(
    changes: dict[str, Value], asked: Callable[[Plan], object], words: str
) -> None:
    planned = cut("4096x4096x4096:f16:nt", **changes)
    with pytest.raises(InvalidConfig, match=words):
        asked(planned)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("2147483647x3x8:f16:nt", "2147483647 is above 2147482624"),
        ("1x2147483647x1:bf16:nn:align=2", "2147483647 is above 2147482624"),
        ("1x1x2147483647:f16:nt", "2147483647 is above 2147482624"),
        ("1x1x8:f16:nt:batch=2147483647", "tiles are counted in 32 bits: 2147483647 of 256x256"),
        ("2147482624x3x8:f16:nt", ""),
    ],
)
def test_sizes_whose_tiles_do_not_fit_32_bits_are_refused(text: str, refused: str) -> None:
    gemm = Gemm.parse(text)
    reason = FAMILY.supports(gemm, H200)
    assert (refused in (reason or "")) if refused else reason is None
    if reason is None:
        assert FAMILY.default(gemm, H200, "sustained")
    assert any(family_named(name).supports(gemm, H200) is None for name in ("mma", "wmma", "simt"))
