"""What the tensor-core families' shared layouts claim, proven for every tile of their spaces: no conflicts where none
are claimed."""

from __future__ import annotations

import pytest

from tirgemm.analysis.banks.access_patterns import Pattern, copy_store, ldmatrix
from tirgemm.analysis.banks.conflict_proof import prove
from tirgemm.families.tensorcore.names import NONE, PADDED, PERMUTED
from tirgemm.families.tensorcore.tiling import RUN, shared_layout
from tirgemm.layouts import Layout, Swizzle, TiledCopy

RUNS = (2, 4, 8, 16, 32)
ROWS = 128
THREADS = 128
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a")


def halves(layout: Layout) -> Layout:
    """A layout of runs as one of 16-bit elements, as ldmatrix sees it."""
    return layout.recast(2)


def stores(runs: int, line: int) -> Pattern:
    """cp.async of 16 bytes, ``line`` neighbouring lanes to a row's part: whole lines of 128 bytes are 8 runs."""
    copy = TiledCopy.row_major(THREADS, min(runs, line) * RUN, RUN)
    return copy_store(copy, ROWS, runs * RUN, "cp.async.16", RUN)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("runs", RUNS)
def test_permuted_is_conflict_free_for_ldmatrix_and_for_the_stores_of_whole_line_copies(runs: int, arch: str) -> None:
    layout = halves(shared_layout(PERMUTED, ROWS, runs))
    for matrices in (1, 2, 4):
        for transposed in (False, True):
            assert prove(layout, ldmatrix(ROWS, runs * RUN, matrices, transposed=transposed), arch).collision is None
    assert prove(layout, stores(runs, 8), arch).collision is None


@pytest.mark.parametrize("runs", RUNS)
def test_padded_is_conflict_free_for_ldmatrix_and_for_stores_of_rows_of_a_whole_line(runs: int) -> None:
    layout = halves(shared_layout(PADDED, ROWS, runs))
    assert prove(layout, ldmatrix(ROWS, runs * RUN)).collision is None
    assert prove(layout, stores(runs, 8)).conflict_free == (runs >= 8)


@pytest.mark.parametrize("kind", [NONE, PADDED, PERMUTED])
@pytest.mark.parametrize("runs", [8, 16, 32])
def test_half_line_copies_of_rows_of_whole_lines_conflict_whatever_the_layout(runs: int, kind: str) -> None:
    """Two rows' halves meet in one phase, at the same column: the copy is there to be compared with."""
    proof = prove(halves(shared_layout(kind, ROWS, runs)), stores(runs, 4))
    assert proof.collision is not None
    assert proof.report.total_wavefronts == 2 * proof.report.fewest.sum()


@pytest.mark.parametrize("runs", RUNS)
def test_plain_conflicts_in_ldmatrix_alone(runs: int) -> None:
    layout = halves(shared_layout(NONE, ROWS, runs))
    assert not prove(layout, ldmatrix(ROWS, runs * RUN)).conflict_free
    assert prove(layout, stores(runs, 8)).collision is None


@pytest.mark.parametrize("runs", RUNS)
def test_a_wrong_permutation_is_found_out(runs: int) -> None:
    """The negative test of the two above: one bit too few, or keyed by the wrong rows."""
    right = shared_layout(PERMUTED, ROWS, runs).permutation
    assert isinstance(right, Swizzle)
    wrong = [Swizzle(right.bits, 0, right.shift + 1)]
    if right.bits > 1:
        wrong.append(Swizzle(right.bits - 1, 0, right.shift))
    for permutation in wrong:
        layout = halves(Layout.permuted(ROWS, runs, 16, permutation))
        proof = prove(layout, ldmatrix(ROWS, runs * RUN))
        assert proof.collision is not None
        assert proof.collision.lanes[0] != proof.collision.lanes[1]
