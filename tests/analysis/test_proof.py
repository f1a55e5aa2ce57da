"""Proofs of layouts: against a slow model; collisions are real; the pads and swizzles found are the smallest and do
serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.article_kernels import mma_fragments, row_major_lanes, row_reads, thread_tile, z_order_lanes
from tirgemm.analysis.banks.access_patterns import Pattern, copy_store, ldmatrix
from tirgemm.analysis.banks.conflict_proof import (
    find_swizzle,
    is_conflict_free,
    misalignment,
    prove,
    smallest_pad,
    solve,
)
from tirgemm.analysis.banks.shared_access import SharedAccess
from tirgemm.errors import InvalidRequest
from tirgemm.layouts import Layout, Swizzle, TiledCopy

LANES = np.arange(32)


def free_by_hand(layout: Layout, pattern: Pattern) -> bool:
    """Whether no two lanes that are served together want different words of a bank, pair by pair (no pairing of
    loads)."""
    together = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[pattern.access.width]
    length = pattern.access.width // layout.element_bytes
    for request in range(pattern.requests):
        words: list[set[int]] = []
        for lane in range(pattern.access.lanes):
            row, column = int(pattern.rows[request, lane]), int(pattern.columns[request, lane])
            offsets = [layout.offset(row, column + place) * layout.element_bytes for place in range(length)]
            words.append({offset // 4 for offset in offsets})
        for first in range(0, pattern.access.lanes, together):
            for one in range(first, min(first + together, len(words))):
                for other in range(first, one):
                    if any(a % 32 == b % 32 and a != b for a in words[one] for b in words[other]):
                        return False
    return True


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layout, list[Pattern]]:
    """A tile of fp16 with odd pads, or permuted, and patterns that it can serve; loads of ldmatrix, stores of a
    copy."""
    rows, columns = draw(st.sampled_from(((32, 16), (32, 32), (16, 64), (64, 32), (16, 128))))
    layout = Layout.padded(rows, columns, 2, 8 * draw(st.integers(0, 5)))
    bits = draw(st.integers(1, 3))
    if draw(st.booleans()) and layout.size % (8 << bits) == 0:
        layout = layout.with_(permutation=Swizzle(bits, 3, draw(st.integers(bits, 6))))
    vector = draw(st.sampled_from((8, 4, 2)))
    threads = rows * columns // vector
    copy = TiledCopy.row_major(min(128, threads), columns, vector)
    return layout, [
        ldmatrix(rows, columns, draw(st.sampled_from((1, 2, 4))), transposed=draw(st.booleans())),
        mma_fragments(rows, columns),
        copy_store(copy, rows, columns, f"store.{16 * vector}", vector),
    ]


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_proof_says_what_the_slow_model_says_and_its_collision_is_real(case: tuple[Layout, list[Pattern]]) -> None:
    layout, patterns = case
    for pattern in patterns:
        proof = prove(layout, pattern)
        assert proof.conflict_free == free_by_hand(layout, pattern)
        assert proof.conflict_free == ("conflict-free" in str(proof))
        if proof.collision is None:
            continue
        actual = proof.collision
        words = []
        for lane, (row, column), address in zip(actual.lanes, actual.elements, actual.addresses, strict=True):
            assert pattern.rows[actual.request, lane] == row
            assert pattern.columns[actual.request, lane] == column
            assert layout.byte_offset(row, column) == address
            mine = {(address + byte) // 4 for byte in range(pattern.access.width)}
            words.append({word for word in mine if word % 32 == actual.bank})
        assert all(words)
        assert not words[0] & words[1]
        assert actual.wavefronts > actual.fewest


@settings(max_examples=25, deadline=None)
@given(cases())
def test_the_pad_that_is_found_is_the_smallest_that_serves(case: tuple[Layout, list[Pattern]]) -> None:
    layout, patterns = case
    actual = smallest_pad(layout, patterns)
    for pad in range(64 if actual is None else actual.pad):
        shorter = Layout.padded(layout.rows, layout.columns, 2, pad)
        torn = any(misalignment(shorter, pattern) for pattern in patterns)
        assert torn or not all(free_by_hand(shorter, pattern) for pattern in patterns)
    if actual is not None:
        assert all(free_by_hand(actual, pattern) for pattern in patterns)


@settings(max_examples=15, deadline=None)
@given(cases())
def test_the_swizzle_that_is_found_serves_and_takes_no_more_bytes(case: tuple[Layout, list[Pattern]]) -> None:
    layout, patterns = case
    actual = find_swizzle(layout, patterns)
    assert actual is not None, "tiles of these sizes have one"
    assert isinstance(actual.permutation, Swizzle)
    assert actual.nbytes == layout.rows * layout.columns * 2
    assert all(free_by_hand(actual, pattern) for pattern in patterns)


def test_a_claim_with_one_planted_conflict_is_refuted() -> None:
    layout = Layout.tma(128, 64, 2, 128)
    good = ldmatrix(128, 64)
    assert prove(layout, good).conflict_free
    rows, columns = good.rows.copy(), good.columns.copy()
    # Lane 5 of one request reads lane 4's unit of banks, in another row.
    rows[17, 5] = (rows[17, 4] + 8) % 128
    columns[17, 5] = columns[17, 4]
    proof = prove(layout, Pattern("planted", good.access, rows, columns))
    assert proof.collision is not None
    assert proof.collision.request == 17
    assert proof.collision.lanes == (4, 5)
    assert "request 17: lane 4" in str(proof)
    assert not is_conflict_free(layout, [good, proof.pattern])


@pytest.mark.parametrize("span", [128, 64, 32])
@pytest.mark.parametrize("operation", ["ldmatrix", "stmatrix"])
def test_tma_s_swizzles_serve_matrices_of_8_rows_and_plain_rows_do_not(span: int, operation: str) -> None:
    pattern = replace(ldmatrix(64, span // 2, 1), access=SharedAccess.parse(f"{operation}.x1"))
    assert prove(Layout.tma(64, span // 2, 2, span), pattern).conflict_free
    report = prove(Layout.plain(64, span // 2, 2), pattern).report
    assert report.total_wavefronts / report.fewest.sum() == span / 16


def test_solving_prefers_what_takes_no_more_shared_memory() -> None:
    layout = Layout.plain(128, 64, 2)
    store = copy_store(TiledCopy.row_major(256, 64, 8), 128, 64, "cp.async.16", 8)
    alone = solve(layout, [store])
    assert alone.plain == alone.best == layout
    both = solve(Layout.padded(128, 64, 2, 3), [store, ldmatrix(128, 64)])
    assert both.plain is None
    assert both.padded == Layout.padded(128, 64, 2, 8)
    assert both.permuted == both.best == Layout.tma(128, 64, 2, 128)


def test_what_no_layout_of_its_kind_serves_is_none() -> None:
    row = row_reads("a row", LANES, range(32), "load.32")
    column = Pattern("a column", SharedAccess("load", 4), LANES[None, :] % 32, np.zeros((1, 32), dtype=np.int64))
    layout = Layout.plain(32, 32, 4)
    assert is_conflict_free(layout, [row])
    assert smallest_pad(layout, [row, column]) == Layout.padded(32, 32, 4, 1)
    # Of 32 diagonals of every slope, each pad brings one onto a single bank.
    slopes = [
        Pattern(f"slope {slope}", SharedAccess("load", 4), LANES[None, :], (slope * LANES[None, :]) % 32)
        for slope in range(32)
    ]
    assert smallest_pad(layout, slopes) is None
    assert find_swizzle(layout, slopes) is None
    assert solve(layout, slopes).best is None


# -- what a layout cannot serve at all ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "pattern", "reason"),
    [
        (Layout.padded(32, 32, 2, 4), ldmatrix(32, 32), r"the 16 bytes from \(1, 0\) on are not one aligned run"),
        (Layout.permuted(32, 32, 2, Swizzle(2, 2, 3)), ldmatrix(32, 32), "are not one aligned run"),
        (Layout.plain(16, 32, 2), ldmatrix(32, 32), "goes to row 31 of 16"),
        (Layout.plain(32, 16, 2), ldmatrix(32, 32), "goes to column 31 of 16"),
        (Layout.plain(32, 32, 8), mma_fragments(32, 32), "4 bytes a lane, no whole elements of 8"),
    ],
)
def test_accesses_that_a_layout_tears_apart_are_refused(layout: Layout, pattern: Pattern, reason: str) -> None:
    assert not is_conflict_free(layout, [pattern])
    with pytest.raises(InvalidRequest, match=reason):
        prove(layout, pattern)


# -- the patterns ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_ldmatrix_reads_every_element_once(matrices: int) -> None:
    pattern = ldmatrix(32, 48, matrices)
    lanes = pattern.access.lanes
    starts = set(
        zip(pattern.rows[:, :lanes].ravel().tolist(), pattern.columns[:, :lanes].ravel().tolist(), strict=True)
    )
    assert starts == {(row, column) for row in range(32) for column in range(0, 48, 8)}
    assert pattern.requests * lanes == len(starts)


def test_ldmatrix_x4_numbers_its_matrices_down_then_across() -> None:
    pattern = ldmatrix(16, 16)
    assert [(int(pattern.rows[0, lane]), int(pattern.columns[0, lane])) for lane in (0, 7, 8, 16, 31)] == [
        (0, 0),
        (7, 0),
        (8, 0),
        (0, 8),
        (15, 8),
    ]


def test_a_fragment_s_registers_are_those_of_the_ptx_manual() -> None:
    """Thread 0 of the article: (0, 0~1), (0, 8~9), (8, 0~1), (8, 8~9)."""
    pattern = mma_fragments(16, 16)
    assert sorted(zip(pattern.rows[:, 0].tolist(), pattern.columns[:, 0].tolist(), strict=True)) == [
        (0, 0),
        (0, 8),
        (8, 0),
        (8, 8),
    ]


@pytest.mark.parametrize("transposed", [False, True])
def test_a_copy_stores_every_element_once(transposed: bool) -> None:
    copy = TiledCopy.row_major(64, 16, 4)
    pattern = copy_store(copy, 32, 16, "store.32", 1, transposed=transposed)
    at = set(zip(pattern.rows.ravel().tolist(), pattern.columns.ravel().tolist(), strict=True))
    assert at == set(np.ndindex((16, 32) if transposed else (32, 16)))
    assert pattern.rows.size == 32 * 16


def test_z_order_is_a_numbering_of_8_by_4_threads() -> None:
    down, across = z_order_lanes()
    assert set(zip(down.tolist(), across.tolist(), strict=True)) == set(np.ndindex(8, 4))
    assert row_major_lanes(16)[0].tolist() == [0] * 16 + [1] * 16


def test_thread_tiles_lie_together_or_apart() -> None:
    places = np.arange(32)
    assert thread_tile(places, 8, 4)[:, :3].tolist() == [[0, 8, 16], [4, 12, 20]]
    assert thread_tile(places, 8, 4, (0, 64))[:, :3].tolist() == [[0, 4, 8], [64, 68, 72]]


def test_reads_go_through_rows() -> None:
    pattern = row_reads("x", thread_tile(LANES, 8, 4), [0, 5])
    assert pattern.rows[:, 0].tolist() == [0, 0, 5, 5]
    assert pattern.columns[:, 1].tolist() == [8, 12, 8, 12]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ldmatrix(24, 32), "a tile of 24x32 is no multiple of 16x16"),
        (lambda: SharedAccess.parse("load.x4"), "is none of"),
        (lambda: row_reads("x", np.zeros(31), [0]), "they are"),
        (
            lambda: Pattern("x", SharedAccess("load", 4), LANES[None, :], np.tile(LANES, (2, 1))),
            "pattern 'x' has shapes",
        ),
    ],
)
def test_patterns_that_make_no_sense_are_refused(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        make()
