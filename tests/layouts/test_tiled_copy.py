"""Thread-value layouts of copies: the CuTe article's examples, and that every element has one thread."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tirgemm.errors import InvalidConfig
from tirgemm.layouts import Layout, Strided, TiledCopy

ARTICLE = TiledCopy.parse("(16,8):(8,1) x (1,4)")


@st.composite
def copies(draw: st.DrawFn) -> TiledCopy:
    def numbered(rows: int, columns: int) -> Strided:
        return Strided((rows, columns), (columns, 1) if draw(st.booleans()) else (1, rows))

    size = st.integers(1, 6)
    return TiledCopy(numbered(draw(size), draw(size)), numbered(draw(size), draw(size)))


def test_the_article_s_tile_and_thread_value_layout() -> None:
    assert ARTICLE.tiler == (16, 32)
    thread, value = np.indices((128, 4))
    row, column = np.moveaxis(ARTICLE.elements(), -1, 0)
    number = row + 16 * column  # down the columns, as in the article's ((8,16),4):((64,1),16)
    assert (number == thread % 8 * 64 + thread // 8 + value * 16).all()
    assert number[9, 2] == 97


def test_value_2_of_thread_9_is_element_1_6() -> None:
    assert ARTICLE.elements()[9, 2].tolist() == [1, 6]
    assert ARTICLE.elements()[9].tolist() == [[1, 4], [1, 5], [1, 6], [1, 7]]


def test_neighbouring_threads_of_a_column_have_neighbouring_elements() -> None:
    assert ARTICLE.elements()[[0, 8, 16, 24], 0].tolist() == [[0, 0], [1, 0], [2, 0], [3, 0]]


def test_the_transposed_copy_serves_column_major_operands() -> None:
    assert ARTICLE.transposed == TiledCopy.parse("(8,16):(1,8) x (4,1)")
    assert ARTICLE.transposed.tiler == (32, 16)


def test_the_128_bit_copies_of_the_article() -> None:
    whole = TiledCopy.parse("(16,8):(8,1) x (1,8)")
    assert whole == TiledCopy.row_major(128, 64, 8)
    assert whole.tiler == (16, 64)
    assert TiledCopy.parse("(16,8):(1,16) x (8,1)").tiler == (128, 8)
    half = TiledCopy.parse("(32,4):(4,1) x (1,8)")
    assert half == TiledCopy.row_major(128, 32, 8)
    assert half.tiler == (32, 32)


@settings(deadline=None)
@given(copies())
def test_every_element_has_one_thread_and_one_value(copy: TiledCopy) -> None:
    rows, columns = copy.tiler
    at = copy.elements().reshape(-1, 2)
    assert {(row, column) for row, column in at.tolist()} == set(np.ndindex(rows, columns))
    assert len(at) == rows * columns
    value_rows, value_columns = copy.values.shape
    thread, value = np.indices((copy.thread_count, copy.value_count)).reshape(2, -1)
    row, column = at.T
    assert (np.dot(copy.threads.stride, (row // value_rows, column // value_columns)) == thread).all()
    assert (np.dot(copy.values.stride, (row % value_rows, column % value_columns)) == value).all()
    assert (copy.owner()[row, column] == thread).all()


def test_modes_are_written_as_cute_does() -> None:
    assert str(Strided.parse("(16, 8):(8, 1)")) == "(16,8):(8,1)"
    assert str(Strided.parse("(_16,_8)")) == "(16,8):(1,16)"
    assert str(Strided.parse("(1,8):(5,1)")) == "(1,8):(0,1)"


@settings(deadline=None)
@given(copies())
def test_the_text_form_of_a_copy_round_trips(copy: TiledCopy) -> None:
    assert TiledCopy.parse(str(copy)) == copy
    assert copy.transposed.transposed == copy


def test_composed_with_a_layout_it_gives_addresses() -> None:
    copy, layout = TiledCopy.row_major(128, 32, 8), Layout.padded(64, 32, 2, 8)
    rows, columns = np.moveaxis(copy.elements(), -1, 0)
    placed = layout.byte_offset(rows + 32, columns)
    assert placed.shape == (128, 8)
    assert placed[5, 3] == (32 + 1) * 80 + (8 + 3) * 2
    with pytest.raises(InvalidConfig, match="row 64 is outside"):
        layout.byte_offset(rows + 33, columns)


def test_requests_are_warps_in_order_of_steps_and_vectors() -> None:
    copy = TiledCopy.row_major(64, 32, 8)
    requests = copy.requests(32, 64, 4)
    # Two warps, two vectors of a thread, two steps down and two across.
    assert requests.shape == (2 * 2 * 4, 32, 2)
    assert requests[0, :5].tolist() == [[0, 0], [0, 8], [0, 16], [0, 24], [1, 0]]
    assert requests[1, 0].tolist() == [0, 4]
    assert requests[2, 0].tolist() == [8, 0]
    assert requests[4, 0].tolist() == [0, 32]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: TiledCopy.parse("(16,8):(8,1)"), "is not THREADS x VALUES"),
        (lambda: TiledCopy.parse("(16,8):(9,1) x (1,4)"), "not numbered 0 to 127"),
        (lambda: TiledCopy.parse("128 x (1,4)"), "not laid out in rows and columns"),
        (lambda: TiledCopy.parse("(16,8):(8,1) x (1,4"), "not laid out in rows and columns"),
        (lambda: TiledCopy.parse("(16,8)4 x (1,4)"), "not laid out in rows and columns"),
        (lambda: TiledCopy.parse("(16,8) x (0,4)"), "a mode of 0"),
        (lambda: TiledCopy.row_major(128, 33, 8), "do not divide lines of 33"),
        (lambda: list(ARTICLE.steps(17, 32)), "no multiple of the 16x32"),
        (lambda: ARTICLE.requests(16, 32, 3), "in accesses of 3"),
        (lambda: TiledCopy.parse("(3,5) x (1,4)").requests(3, 20, 4), "15 threads are no whole warps"),
    ],
)
def test_copies_that_make_no_sense_are_refused(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        make()
