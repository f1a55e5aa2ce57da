"""What the analytic estimate of ``wgmma`` counts of narrow rows, chunks and misaligned outputs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.helpers.wgmma_paths import plan_of
from tirgemm import Gemm
from tirgemm.config import Value
from tirgemm.families.base import rejected
from tirgemm.families.wgmma import Wgmma, estimate
from tirgemm.families.wgmma.estimate import CONSTANTS, Cuts
from tirgemm.families.wgmma.planning.plan import plan
from tirgemm.families.wgmma.planning.staging import Staging, chunk_columns
from tirgemm.families.wgmma.planning.tile import Tile
from tirgemm.families.wgmma.space import TILES_N
from tirgemm.hardware import named_device

H200 = named_device("sm_90a")
FAMILY = Wgmma()


def cuts(*, swap: int = 0, copied: bool = False, cluster_m: int = 1, split: int = 1) -> Cuts:
    """One for each of ``TILES_N``, 128 rows high, 64 of k a step."""
    tiles = np.array(TILES_N)
    return Cuts(128, tiles, 64, 4, False, 1, cluster_m, 1, swap, split, False, True, copied)


@pytest.mark.parametrize(("layout", "swap", "peers"), list(product(("nt", "nn", "tn", "tt"), (0, 1), (1, 2))))
def test_rows_narrower_than_128_bytes_are_counted_as_tiles_are_laid_out(layout: str, swap: int, peers: int) -> None:
    gemm = Gemm(4096, 4096, 4096, layout=layout)
    k_major = not gemm.trans_a if swap else gemm.trans_b
    rows = estimate._narrow_rows(cuts(swap=swap, cluster_m=peers), gemm)
    for tile_n, counted in zip(TILES_N, np.broadcast_to(rows, len(TILES_N)).tolist(), strict=True):
        tile = Tile(k_major, tile_n, 64, peers=1)
        assert counted == (tile.slabs * tile.rows / peers if tile.width < 64 else 0)


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_all_columns_of_a_slab_are_loaded(layout: str) -> None:
    gemm = Gemm(4096, 4096, 4096, layout=layout)
    counted = estimate.loaded_columns(np.array(TILES_N), 0, gemm)
    for tile_n, columns in zip(TILES_N, counted.tolist(), strict=True):
        assert columns * 64 == Tile(gemm.trans_b, tile_n, 64, peers=1).elements


@pytest.mark.parametrize(("layout", "swap", "across"), [("nn", 0, True), ("nt", 0, False), ("tt", 1, True)])
def test_tiles_that_begin_between_lines_load_rows_that_do(layout: str, swap: int, across: bool) -> None:
    """Of B's rows of n, or A's of m, a tile 184 wide begins at 16 bytes of a sector of 32, one of 96 between."""
    aligned = Gemm(4096, 4096, 4096, layout=layout)
    expected = {8: 16, 16: 32, 32: 64, 64: 128, 80: 32, 96: 64, 104: 16, 184: 16, 192: 128, 200: 16, 256: 128}
    left, right = estimate._alignments(cuts(swap=swap), aligned)
    of_tile = dict(zip(TILES_N, np.broadcast_to(right, len(TILES_N)).tolist(), strict=True))
    assert {width: of_tile[width] for width in expected} == (expected if across else dict.fromkeys(expected, 128))
    assert np.all(left == 128)
    one = aligned.with_(m=64) if swap else aligned.with_(n=64)
    _, right = estimate._alignments(cuts(swap=swap), one)
    assert np.broadcast_to(right, len(TILES_N))[TILES_N.index(96)] == 128, "the only tile begins with the row"


def test_rows_outside_a_problem_are_not_counted_among_narrow_ones() -> None:
    """Of 40 columns of B a tile of 96 loads two slabs of 32, of 4096 all three."""
    tile = TILES_N.index(96)
    counted = [
        np.broadcast_to(estimate._narrow_rows(cuts(), Gemm(64, n, 512, layout="nn")), len(TILES_N))[tile]
        for n in (40, 4096)
    ]
    assert counted == [2 * 64, 3 * 64]


def test_what_threads_copy_has_no_rows_of_tma() -> None:
    odd = Gemm.parse("1021x1021x1021:f16:nn")
    assert not np.any(estimate._narrow_rows(cuts(copied=True), odd))
    assert np.any(estimate._narrow_rows(cuts(), odd)), "a copy to aligned rows is loaded by TMA"
    assert np.all(np.asarray(estimate._alignments(cuts(copied=True), odd)[1]) == 128)
    assert np.min(estimate._alignments(cuts(), odd)[1]) == 16
    only_a = Gemm.parse("1024x1024x1021:f16:nn")
    assert np.any(estimate._narrow_rows(cuts(copied=True), only_a)), "B is loaded by TMA"


def test_a_tile_is_staged_in_the_widest_chunks_that_it_has_or_that_divide_it() -> None:
    tiles = np.array([8, 16, 24, 40, 48, 56, 64, 72, 96, 136, 256])
    assert chunk_columns(tiles, False).tolist() == [8, 16, 16, 32, 32, 32, 64, 64, 64, 64, 64]
    assert chunk_columns(tiles, True).tolist() == [8, 16, 8, 8, 16, 8, 64, 8, 32, 8, 64]


def test_chunks_of_outputs_of_four_bytes_have_half_the_columns() -> None:
    tiles = np.array([8, 16, 24, 40, 48, 56, 64, 72, 96, 136, 256])
    assert chunk_columns(tiles, False, 4).tolist() == [8, 16, 16, 32, 32, 32, 32, 32, 32, 32, 32]
    assert chunk_columns(tiles, True, 4).tolist() == [8, 16, 8, 8, 16, 8, 32, 8, 32, 8, 32]


@pytest.mark.parametrize("knobs", [{"tile_m": 256, "tile_n": 152}, {"tile_n": 136, "schedule": "pingpong"}])
def test_as_many_stages_fit_beside_outputs_of_four_bytes(knobs: dict[str, Value]) -> None:
    for stages in (3, 4, 6):
        of_two, of_four = (
            plan_of(f"5000x5000x5000:f16:nt{out}", {**knobs, "stages": stages}) for out in ("", ":out=f32")
        )
        assert of_four.memory.nbytes == of_two.memory.nbytes
        assert of_four.staging.chunk == of_two.staging.chunk // 2


@pytest.mark.parametrize(
    ("knobs", "columns"),
    [
        ({"tile_m": 256, "tile_n": 128, "stages": 4}, 64),
        ({"tile_m": 256, "tile_n": 152, "stages": 3}, 64),
        ({"tile_m": 256, "tile_n": 152, "stages": 4}, 32),
        ({"tile_m": 256, "tile_n": 160, "stages": 4}, 32),
        ({"tile_m": 128, "tile_n": 136, "stages": 6, "schedule": "pingpong"}, 32),
    ],
)
def test_chunks_of_d_are_narrower_where_stages_leave_no_room(knobs: dict[str, Value], columns: int) -> None:
    cut = plan_of("5000x5000x5000:f16:nt", knobs)
    assert cut.staging.chunk == columns
    assert rejected(FAMILY, cut.gemm, cut.config, H200) is None


@pytest.mark.parametrize("tile_n", [168, 192])
def test_no_chunk_of_fewer_than_32_columns_makes_room(tile_n: int) -> None:
    cut = plan_of("5000x5000x5000:f16:nt", {"tile_m": 256, "tile_n": tile_n, "stages": 4})
    assert "bytes of shared memory" in str(rejected(FAMILY, cut.gemm, cut.config, H200))


@pytest.mark.parametrize(("k", "stages"), [(448, 5), (512, 6)])
def test_low_tiles_in_pingpong_have_one_more_stage_from_eight_steps_on(k: int, stages: int) -> None:
    listed = FAMILY.shortlist(Gemm(8192, 10240, k, layout="nt"), H200, "sustained", 64, trained=False)
    pingpong = [c for c in listed if c["schedule"] == "pingpong"]
    assert {c["stages"] for c in pingpong if (c["tile_m"], c["tile_n"]) == (64, 200)} == {stages}
    assert {c["stages"] for c in pingpong if (c["tile_m"], c["tile_n"]) == (128, 136)} == {5}


@pytest.mark.parametrize(
    ("text", "dropped"),
    [
        ("7168x9216x64:f16:nt", True),
        ("7168x9216x256:f16:nt", True),
        ("7168x9216x264:f16:nt", False),
        ("4096x4096x64:f16:nt", False),
        ("1..7168x9216x64:f16:nt", False),
        ("2048x2048x64:f16:nt:batch=16", True),
    ],
)
def test_l2_drops_d_first_where_it_is_larger_than_l2_and_k_is_short(text: str, dropped: bool) -> None:
    assert plan_of(text, {}).drops_d is dropped


@pytest.mark.parametrize(
    ("layout", "swap", "rows", "columns"),
    [("nt", 0, 24, 40), ("nt", 1, 40, 24), ("nn", 0, 24, 64), ("nn", 1, 64, 24), ("tt", 0, 64, 40), ("tt", 1, 40, 32)],
)
def test_of_few_outputs_no_more_is_loaded_than_there_is(layout: str, swap: int, rows: int, columns: int) -> None:
    gemm = Gemm(20, 40, 4096, layout=layout)
    assert estimate.loaded_rows(128, swap, gemm) == rows
    assert estimate.loaded_columns(128 if columns != 32 else 24, swap, gemm) == columns


@pytest.mark.parametrize(("swap", "beta"), list(product((0, 1), (False, True))))
def test_stores_of_four_bytes_take_the_chunks_that_tiles_are_staged_in(swap: int, beta: bool) -> None:
    c, gemm = CONSTANTS["sustained"], Gemm(4096, 4096, 64, out="f32", beta=beta)
    clocks = estimate._store_clocks(cuts(swap=swap), gemm, c)
    for tile_n, counted in zip(TILES_N, clocks.tolist(), strict=True):
        staging = Staging(tile_n, 1, bool(swap), used=True, reads_c=beta, vector=4, room=2**16, size=4)
        of_chunk = c.store_chunk_clocks + 64 * 4 * staging.chunk / c.store_chunk_bytes_per_clock
        assert counted == pytest.approx(2 * len(staging.chunks) * of_chunk)
    assert not np.any(estimate._store_clocks(replace(cuts(swap=swap), chunked=False), gemm, c))
    assert not np.any(estimate._store_clocks(cuts(swap=swap), replace(gemm, n=4098), c))


def test_outputs_of_four_bytes_leave_by_tma_by_default_and_from_the_registers_where_they_are_turned() -> None:
    gemm = Gemm.parse("4096x4096x4096:f16:nt:out=f32")
    (choices,) = (knob.choices for knob in FAMILY.space(gemm, H200).knobs if knob.name == "epilogue")
    assert choices == ("tma", "direct")
    for regime in ("sustained", "isolated"):
        few_rows = gemm.with_(m=16)
        defaults = [config for g in (gemm, few_rows) for config in FAMILY.shortlist(g, H200, regime, 64)]
        whole = [config for config in defaults if config["split"] == 1]
        assert {(config["swap"], config["epilogue"]) for config in whole} == {(0, "tma"), (1, "direct")}
    unaligned = Gemm.parse("4096x4098x4096:f16:nt:out=f32")
    assert {config["epilogue"] for config in FAMILY.shortlist(unaligned, H200, "sustained", 64)} == {"direct"}


@pytest.mark.parametrize(("swap", "beta"), list(product((0, 1), (False, True))))
def test_stores_take_the_chunks_that_tiles_are_staged_in(swap: int, beta: bool) -> None:
    c = CONSTANTS["sustained"]
    clocks = estimate._store_clocks(cuts(swap=swap), Gemm(4096, 4096, 64, beta=beta), c)
    for tile_n, counted in zip(TILES_N, clocks.tolist(), strict=True):
        staging = Staging(tile_n, 1, bool(swap), used=True, reads_c=beta, vector=8, room=2**16)
        of_chunk = c.store_chunk_clocks + 64 * 2 * staging.chunk / c.store_chunk_bytes_per_clock
        factor = c.half_sector_store_factor if 2 * staging.shape[1] == 16 else 1.0
        assert counted == pytest.approx(2 * len(staging.chunks) * of_chunk * factor)
    assert not np.any(estimate._store_clocks(cuts(split=2), Gemm(4096, 4096, 64), c))
    assert not np.any(estimate._store_clocks(cuts(), Gemm(4096, 4095, 64), c))


@pytest.mark.parametrize("text", ["3000x3001x128:f16:nt", "8893x8819x106:f16:nt", "4096x4095x64:bf16:nn"])
def test_misaligned_outputs_leave_in_wide_tiles(text: str) -> None:
    """All that stores are bound by ties otherwise, and the smallest tile would be the first."""
    first, *_ = Wgmma().shortlist(Gemm.parse(text), H200, "sustained", 1, trained=False)
    assert first["tile_n"] >= 128
    assert not first["swap"]


def test_copies_of_pieces_leave_an_sm_60_kib_of_l1() -> None:
    """Beside more than 196 KiB of shared memory there are 28."""
    for text in ("34x4096x1024:f16:tn", "274x4096x1024:bf16:tt", "300x2050x8190:f16:nt"):
        gemm = Gemm.parse(text)
        listed = [c for c in FAMILY.shortlist(gemm, H200, "sustained", 64) if c["load"] == "copy"]
        assert listed, text
        for config in listed:
            cut = plan(gemm, config, H200.units)
            assert cut.resident * (cut.memory.nbytes + 1024) <= 196 * 1024, config
    whole = Gemm.parse("274x4096x1024:bf16:nt")
    assert max(plan(whole, c, H200.units).memory.nbytes for c in FAMILY.shortlist(whole, H200, "sustained", 64)) > 2e5
