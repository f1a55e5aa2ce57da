"""Shared layouts: what they refuse, where elements lie, that no two meet, their text, and their use in TIR."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tirgemm.errors import InvalidConfig
from tirgemm.families.wgmma.planning.tile import permuted
from tirgemm.layouts import Layout, Swizzle

SHOWN = (
    Layout.plain(128, 32, 2),
    Layout.padded(128, 32, 2, 8),
    Layout.permuted(128, 32, 2, Swizzle(2, 3, 3)),
    Layout.permuted(16, 128, 2, Swizzle(3, 3, 4)),
    Layout.permuted(64, 64, 2, Swizzle(3, 3, 3)),
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout: odd sizes, pads, and permutations where the rows allow them."""
    element_bytes = draw(st.sampled_from((1, 2, 4, 8, 16)))
    rows, columns, pad = draw(st.integers(1, 24)), draw(st.integers(1, 70)), draw(st.integers(0, 9))
    layout = Layout.padded(rows, columns, element_bytes, pad)
    bits, base = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    if draw(st.booleans()) and layout.size % (1 << bits + base) == 0:
        layout = layout.with_(permutation=Swizzle(bits, base, draw(st.integers(bits, 7))))
    return layout


def grid(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.mgrid[0 : layout.rows, 0 : layout.columns]
    return rows, columns


@settings(deadline=None)
@given(layouts())
def test_every_element_has_a_place_of_its_own_inside_the_bytes(layout: Layout) -> None:
    rows, columns = grid(layout)
    offsets = layout.byte_offset(rows, columns)
    assert len(np.unique(offsets)) == layout.rows * layout.columns
    assert offsets.min() >= 0
    assert offsets.max() + layout.element_bytes <= layout.nbytes


@settings(deadline=None)
@given(layouts())
def test_coordinates_are_the_inverse_of_offset(layout: Layout) -> None:
    rows, columns = grid(layout)
    back = layout.coordinates(layout.offset(rows, columns))
    assert (back[0] == rows).all()
    assert (back[1] == columns).all()


def test_the_text_form_has_the_pad_and_the_permutation() -> None:
    texts = [str(layout) for layout in (*SHOWN, Layout(16, 24, 4, 32, Swizzle(1, 2, 2)))]
    alone = ["128x32:2", "128x32:2+8", "128x32:2^2,3,3", "16x128:2^3,3,4", "64x64:2^3,3,3"]
    assert texts == [*alone, "16x24:4+8^1,2,2"]


@settings(deadline=None)
@given(layouts())
def test_integers_and_arrays_agree(layout: Layout) -> None:
    row, column = layout.rows - 1, layout.columns // 2
    assert int(layout.offset(np.array([row]), np.array([column]))[0]) == layout.offset(row, column)


@settings(deadline=None)
@given(layouts())
def test_vectors_stay_whole_and_aligned(layout: Layout) -> None:
    rows, columns = grid(layout)
    offsets = layout.offset(rows, columns)[:, : layout.columns // layout.vector * layout.vector]
    runs = offsets.reshape(layout.rows, -1, layout.vector)
    assert (runs - runs[..., :1] == np.arange(layout.vector)).all()
    assert (runs[..., 0] % layout.vector == 0).all()


@settings(deadline=None)
@given(layouts())
def test_the_index_map_is_the_offset_by_rows(layout: Layout) -> None:
    rows, columns = grid(layout)
    if not layout.keeps_rows:
        with pytest.raises(InvalidConfig, match="use offset"):
            layout.index_map(rows, columns)
        return
    row, place = layout.index_map(rows, columns)
    assert (row * layout.stride + place == layout.offset(rows, columns)).all()


@settings(deadline=None)
@given(layouts(), st.sampled_from((1, 2, 4, 8, 16)))
def test_recast_keeps_every_byte_where_it_is(layout: Layout, element_bytes: int) -> None:
    if element_bytes > layout.element_bytes:
        with pytest.raises(InvalidConfig):
            layout.recast(element_bytes)
        return
    other = layout.recast(element_bytes)
    assert other.nbytes == layout.nbytes
    byte = np.arange(layout.columns * layout.element_bytes)
    for row in {0, layout.rows - 1}:
        one, two = (
            each.byte_offset(row, byte // each.element_bytes) + byte % each.element_bytes for each in (layout, other)
        )
        assert (one == two).all()


@pytest.mark.parametrize("layout", SHOWN, ids=str)
def test_tir_expressions_place_elements_as_integers_do(layout: Layout) -> None:
    from tvm import tirx

    for row, column in ((0, 0), (5, 9), (13, 31), (layout.rows - 1, layout.columns - 1)):
        constants = tirx.IntImm("int32", row), tirx.IntImm("int32", column)
        assert int(layout.offset(*constants)) == layout.offset(row, column)
        assert tuple(map(int, layout.index_map(*constants))) == layout.index_map(row, column)
    variables = tirx.Var("row", "int32"), tirx.Var("column", "int32")
    assert layout.index_map(*variables)[0].same_as(variables[0])


@pytest.mark.parametrize(("span", "bits"), [(128, 3), (64, 2), (32, 1)])
@pytest.mark.parametrize("element_bytes", [1, 2, 4])
def test_tma_swizzles_are_the_documented_ones_of_byte_addresses(span: int, bits: int, element_bytes: int) -> None:
    layout = Layout.tma(64, span // element_bytes, element_bytes, span)
    addresses = np.arange(0, layout.nbytes, element_bytes)
    rows, columns = addresses // span, addresses % span // element_bytes
    by_manual = addresses ^ ((addresses >> 7 & (1 << bits) - 1) << 4)
    assert (layout.byte_offset(rows, columns) == by_manual).all()


@pytest.mark.parametrize("span", [128, 64, 32])
def test_the_wgmma_family_permutes_as_the_layout_does(span: int) -> None:
    layout, units = Layout.tma(32, span // 2, 2, span), span // 16
    for row in range(32):
        for unit in range(units):
            there = int(layout.byte_offset(row, unit * 8))
            assert there == row * span + 16 * permuted(row, unit, units)


@pytest.mark.also_torch
def test_layouts_and_banks_load_no_tvm() -> None:
    modules = (
        "tirgemm.layouts, tirgemm.analysis.banks.conflict_proof, "
        "tirgemm.analysis.banks.coalescing, tirgemm.analysis.figures.shared_memory"
    )
    code = (
        f"import sys, {modules}, tirgemm.analysis.figures.charts; print([m for m in "
        f"('tvm', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_a_swizzle_is_cutlass_s_xor() -> None:
    swizzle = Swizzle(3, 4, 3)
    for offset in range(0, 4096, 7):
        assert swizzle(offset) == offset ^ ((offset & 0b111 << 7) >> 3)
        assert swizzle(swizzle(offset)) == offset


def test_scaling_turns_a_swizzle_of_bytes_into_one_of_elements() -> None:
    assert Swizzle(3, 4, 3).scaled(2) == Swizzle(3, 3, 3)
    with pytest.raises(InvalidConfig, match="runs of 2, smaller than 4"):
        Swizzle(1, 1, 3).scaled(4)
    with pytest.raises(InvalidConfig, match="no power of two"):
        Swizzle(3, 4, 3).scaled(3)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Layout(0, 32, 2, 32), "rows of a layout is 0"),
        (lambda: Layout(8, 32, 3, 32), "elements of 3 bytes"),
        (lambda: Layout(8, 32, 2, 31), "rows of 32 elements overlap at a stride of 31"),
        (lambda: Layout(8, True, 2, 32), "columns of a layout is True"),
        (lambda: Layout.padded(8, 32, 2, -1), "fewer than none"),
        (lambda: Layout.permuted(3, 24, 2, Swizzle(2, 3, 3)), "no multiple of the 32 elements"),
        (lambda: Layout.tma(8, 32, 2, 128), "rows of 64 bytes under the 128-byte swizzle"),
        (lambda: Layout.padded(8, 32, 2, 3).recast(16), "columns of a layout is 0"),
        (lambda: Layout.plain(8, 32, 16).recast(3), "elements of 3 bytes"),
        (lambda: Swizzle(3, 3, 2), "shift 2 below its 3 bits"),
        (lambda: Swizzle(0, 3, 3), "bits 0"),
        (lambda: Swizzle(3, 3, 40), "offsets have 32 bits"),
        (lambda: Layout.plain(8, 32, 2).byte_offset(8, 0), "row 8 is outside"),
        (lambda: Layout.plain(8, 32, 2).byte_offset(0, [0, -1]), "column -1 is outside"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_reason(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        make()
