"""Sectors and lines of global memory: against a slow model, and the CuTe article's whole-line and half-line copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tirgemm.analysis.banks.coalescing import analyze, matrix_addresses
from tirgemm.analysis.banks.shared_access import WIDTHS
from tirgemm.errors import InvalidRequest
from tirgemm.layouts import TiledCopy

LANES = np.arange(32)


@settings(deadline=None)
@given(
    st.sampled_from(WIDTHS),
    st.lists(st.lists(st.integers(0, 300), min_size=32, max_size=32), min_size=1, max_size=3),
    st.lists(st.booleans(), min_size=32, max_size=32),
)
def test_counts_are_those_of_the_slow_model(width: int, units: list[list[int]], active: list[bool]) -> None:
    report = analyze(np.array(units) * width, width, active)
    for request, row in enumerate(units):
        touched = {unit * width + byte for unit, on in zip(row, active, strict=True) if on for byte in range(width)}
        assert report.used_bytes[request] == len(touched)
        assert report.sectors[request] == len({byte // 32 for byte in touched})
        assert report.lines[request] == len({byte // 128 for byte in touched})
        assert report.fewest_sectors[request] == -(-len(touched) // 32)
    assert 0 <= report.efficiency <= 1


@pytest.mark.parametrize(
    ("addresses", "width", "sectors", "lines", "efficiency"),
    [
        (LANES * 4, 4, 4, 1, 1.0),
        (LANES * 2, 2, 2, 1, 1.0),
        (LANES * 16, 16, 16, 4, 1.0),
        (LANES * 4 + 4, 4, 5, 2, 0.8),
        (LANES * 8, 4, 8, 2, 0.5),
        (LANES * 0, 4, 1, 1, 0.125),
        # The naive kernel with thread x along m: every lane its own row of A.
        (LANES * 4096 * 4, 4, 32, 32, 0.125),
    ],
)
def test_known_patterns(addresses: np.ndarray, width: int, sectors: int, lines: int, efficiency: float) -> None:
    report = analyze(addresses, width)
    assert (report.sectors_per_request, report.lines_per_request) == (sectors, lines)
    assert report.efficiency == efficiency


def test_the_article_s_whole_line_and_half_line_copies() -> None:
    """Eight lanes on 128 bytes: four whole lines a warp. Four lanes on 64: eight lines, half of each for nothing."""
    whole, half = TiledCopy.parse("(16,8):(8,1) x (1,8)"), TiledCopy.parse("(32,4):(4,1) x (1,8)")
    by_whole = analyze(matrix_addresses(whole.requests(128, 64, 8), 4096, 2), 16)
    by_half = analyze(matrix_addresses(half.requests(128, 32, 8), 4096, 2), 16)
    assert (by_whole.sectors_per_request, by_whole.lines_per_request) == (16, 4)
    assert (by_half.sectors_per_request, by_half.lines_per_request) == (16, 8)
    assert (by_whole.line_efficiency, by_half.line_efficiency) == (1.0, 0.5)
    assert by_whole.efficiency == by_half.efficiency == 1.0


def test_the_article_s_column_major_operand() -> None:
    """The row-major copy of a column-major operand: scalars, 4 neighbours in a column; the transposed copy: vectors."""
    copy = TiledCopy.parse("(16,8):(8,1) x (1,4)")
    scalar = copy.requests(16, 32, 1)
    apart = analyze(matrix_addresses(scalar[..., ::-1], 4096, 2), 2)
    assert apart.sectors_per_request == 8
    assert apart.efficiency == 4 * 2 / 32
    right = copy.transposed.requests(32, 16, 4)
    together = analyze(matrix_addresses(right[..., ::-1], 4096, 2), 8)
    assert together.efficiency == 1.0
    assert together.lines_per_request == 4


def test_alignment_is_that_of_the_first_address() -> None:
    given_addresses = [LANES * 4, LANES * 4 + 256, LANES * 4 + 36, LANES * 4 + 48]
    assert analyze(given_addresses, 4).aligned_bytes.tolist() == [128, 128, 4, 16]
    assert analyze(LANES * 4, 4, False).aligned_bytes.tolist() == [0]
    assert analyze(LANES * 4, 4, False).sectors_per_request == 0


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: analyze(LANES * 4, 3), "of 3 bytes a lane"),
        (lambda: analyze(LANES[:8] * 4, 4), r"shape \(1, 8\)"),
        (lambda: analyze(LANES * 4 + 2, 4), "address 2 of lane 0 in request 0 is no multiple of 4"),
        (lambda: analyze(LANES * 4 - 4, 4), "is negative"),
        (lambda: analyze(LANES * 4, 4, [True] * 3), "an active mask of shape"),
    ],
)
def test_bad_input_is_refused_by_name(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        call()
