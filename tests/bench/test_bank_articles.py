"""What the articles show of banks and counters comes out of the model: their tables, and which kernel each is of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.article_kernels import (
    ARTICLE_TABLES,
    SGEMM_KERNELS,
    SgemmCounts,
    bank_groups,
    fits,
    padding_layouts,
    padding_patterns,
    sgemm_counts,
    sgemm_loads,
    sgemm_stores,
    sgemm_tiles,
)
from benchmarks.bank_tables import TABLES
from tirgemm.analysis.banks.access_patterns import copy_store, ldmatrix
from tirgemm.analysis.banks.conflict_proof import prove, smallest_pad, solve
from tirgemm.layouts import Layout, TiledCopy

LAYOUTS, PATTERNS = padding_layouts(), padding_patterns()
LOADS = ["wmma load of 32 bits", "ldmatrix.x4"]
STORES = [name for name in PATTERNS if name.startswith("store")]

# The padding article's table, as printed: threads, total bank, inner bank.
PRINTED = [
    ("0~3", (0, 3), (0, 3)),
    ("4~7", (20, 23), (20, 23)),
    ("8~11", (40, 43), (8, 11)),
    ("12~15", (60, 63), (28, 31)),
    ("16~19", (80, 83), (16, 19)),
    ("20~23", (100, 103), (4, 7)),
    ("24~27", (120, 123), (24, 27)),
    ("28~31", (140, 143), (12, 15)),
]
KERNELS = {kernel.name: kernel for kernel in SGEMM_KERNELS}


def test_the_padding_article_s_table_by_thread_group() -> None:
    assert bank_groups(LAYOUTS["8 halves of padding"]) == PRINTED


@pytest.mark.parametrize(
    ("layout", "loads_free", "stores_free"),
    [("no padding", False, True), ("8 halves of padding", True, False), ("permuted", True, True)],
)
def test_no_padding_conflicts_for_loads_padding_for_stores_and_permuted_for_neither(
    layout: str, loads_free: bool, stores_free: bool
) -> None:
    assert len(STORES) == 3
    for name in LOADS:
        assert prove(LAYOUTS[layout], PATTERNS[name]).conflict_free is loads_free, name
    for name in STORES:
        assert prove(LAYOUTS[layout], PATTERNS[name]).conflict_free is stores_free, name


def test_without_padding_half_of_the_banks_are_used_by_a_load() -> None:
    (phase,) = prove(LAYOUTS["no padding"], PATTERNS["wmma load of 32 bits"]).report.phases(0)
    used = [bank for bank, words in enumerate(phase.words) if words]
    assert used == [0, 1, 2, 3, 16, 17, 18, 19]
    assert phase.wavefronts == 4


def test_no_pad_serves_both_at_rows_of_half_a_line_and_8_halves_do_at_whole_lines() -> None:
    assert smallest_pad(LAYOUTS["no padding"], [PATTERNS[name] for name in LOADS]) == LAYOUTS["8 halves of padding"]
    solution = solve(LAYOUTS["no padding"], list(PATTERNS.values()))
    assert solution.padded is None
    assert solution.permuted == LAYOUTS["permuted"]
    whole = Layout.plain(32, 256, 2)
    both = [ldmatrix(32, 256, transposed=True), copy_store(TiledCopy.row_major(256, 256, 8), 32, 256, "store.128", 8)]
    assert solve(whole, both).padded == Layout.padded(32, 256, 2, 8)


def test_each_of_the_sgemm_article_s_tables_is_of_one_kernel() -> None:
    actual = [
        [kernel.name for kernel in SGEMM_KERNELS if fits(sgemm_counts(kernel), table)] for table in ARTICLE_TABLES
    ]
    assert actual == [["two groups of 4"], ["z-order, BM + 4"]]


def test_four_two_way_stores_of_a_warp_and_step_are_the_first_table_s_conflicts() -> None:
    steps, warps, blocks = 4096 // 8, 8, 32 * 32
    assert 4 * steps * warps * blocks == ARTICLE_TABLES[0].store_conflicts
    for name in ("float4", "two groups of 4", "z-order"):
        assert sgemm_counts(KERNELS[name]).store_conflicts == 16_777_216
        assert sgemm_counts(KERNELS[f"{name}, BM + 4"]).store_conflicts == 0


def test_the_printed_kernel_conflicts_in_its_reads_of_b_alone() -> None:
    kernel = KERNELS["float4"]
    a, b = (prove(tile, pattern) for tile, pattern in zip(sgemm_tiles(kernel), sgemm_loads(kernel), strict=True))
    assert a.conflict_free
    assert not b.conflict_free
    assert b.report.total_wavefronts == 2 * b.report.fewest.sum()


def test_the_four_floats_that_the_article_pads_are_the_fewest() -> None:
    layout, _ = sgemm_tiles(KERNELS["z-order"])
    reads, _ = sgemm_loads(KERNELS["z-order"])
    stores, _ = sgemm_stores()
    solution = solve(layout, [reads, stores])
    assert solution.padded == Layout.padded(8, 128, 4, 4)
    assert solution.permuted is not None
    assert solution.permuted.nbytes == layout.nbytes


def test_threads_of_z_order_are_paired_as_the_article_draws_them() -> None:
    reads_a, reads_b = sgemm_loads(KERNELS["z-order"])
    layout = Layout.plain(8, 128, 4)
    for pattern, distance in ((reads_a, 1), (reads_b, 2)):
        for columns in pattern.columns:
            assert all(columns[lane] == columns[lane ^ distance] for lane in range(32))
        assert set(prove(layout, pattern).report.wavefronts.tolist()) == {2}
    by_bank = [lane for lane, column in enumerate(reads_b.columns[0]) if column % 32 == 0]
    assert by_bank == [0, 2, 4, 6, 16, 18, 20, 22]


def test_a_table_of_another_kernel_does_not_fit() -> None:
    counts = sgemm_counts(KERNELS["two groups of 4"])
    assert fits(counts, ARTICLE_TABLES[0])
    for name in SgemmCounts.__slots__:
        other = replace(ARTICLE_TABLES[0], **{name: getattr(ARTICLE_TABLES[0], name) * 1001 // 1000 + 1})
        assert not fits(counts, other), name


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_equal_rows(name: str) -> None:
    lines = TABLES[name]().splitlines()
    assert len(lines) >= 4 or name == "collisions"
    if lines[0].startswith("|"):
        assert len({line.count(" | ") for line in lines}) == 1
