"""Turns of a tile's copy: which of a thread's copies lie a constant behind its first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tirgemm.families.tensorcore.names import HALF, LINE, NONE, PADDED, PERMUTED
from tirgemm.families.tensorcore.tiling import RUN, Side, side
from tirgemm.gemm import Gemm

# Elements from a row of the operand to the next.
_PITCH = 4096


def _side(shared: str, copy: str, words: str = "nt", extent: int = 128, depth: int = 64, threads: int = 256) -> Side:
    return side(Gemm.parse(f"4096x4096x4096:f16:{words}"), "b", extent, depth, threads, shared, copy, "copy")


@pytest.mark.parametrize("shared", [NONE, PADDED, PERMUTED])
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_whole_lines_are_copied_a_constant_further_each_turn(shared: str, layout: str) -> None:
    assert _side(shared, LINE, layout).turn == (32, 8)


def test_half_lines_move_within_the_permutation() -> None:
    """The other half of a line is not four runs on in every row: XOR with the row's number puts it before in some."""
    assert _side(NONE, HALF).turn == (64, 4)
    assert _side(PERMUTED, HALF).turn is None


def test_turns_of_few_rows_move_within_the_permutation() -> None:
    """Of four rows a turn, the next turn's have other keys."""
    assert _side(PERMUTED, LINE, threads=32).turn is None
    assert _side(NONE, LINE, threads=32).turn == (4, 8)


def test_a_tile_that_turns_do_not_cover_has_none() -> None:
    assert _side(NONE, LINE, extent=16, threads=256).turn is None


@pytest.mark.parametrize("words", ["nt", "nn", "nt:align=8"])
@pytest.mark.parametrize("shared", [NONE, PADDED, PERMUTED])
@pytest.mark.parametrize("copy", [LINE, HALF])
@pytest.mark.parametrize(("depth", "threads"), [(16, 64), (32, 128), (64, 32), (64, 256)])
def test_what_is_behind_a_threads_first_copy_is_what_its_turns_copy(
    words: str, shared: str, copy: str, depth: int, threads: int
) -> None:
    one = _side(shared, copy, words, depth=depth, threads=threads)
    assert one.whole
    down, across = one.turn or (threads // one.row_threads, one.across)
    first: dict[int, tuple[int, int, int]] = {}
    same = True
    for thread, row, place, eighth in _copies(one):
        start = (row % down, place % across, eighth)
        assert first.setdefault(thread, start) == start, "every turn starts from the same address"
        read, near = (_offset(one, *at) for at in ((row, place, eighth), start))
        same &= read == near + row // down * down * _PITCH + place // across * across * RUN
    assert same == (one.turn is not None)


def _copies(one: Side) -> Iterator[tuple[int, int, int, int]]:
    """Thread, row, place and part of a run of every copy, in the order in which threads are dealt out."""
    parts = RUN // one.width
    for number in range(one.rows * one.runs * parts):
        rest, part = divmod(number, parts)
        rest, across = divmod(rest, one.across)
        outer, row = divmod(rest, one.rows)
        yield number % one.threads, row, outer * one.across + across, part * one.width


def _offset(one: Side, row: int, place: int, start: int) -> int:
    """Where the operand has what the tile has there."""
    run = one.layout.index_map(row, place)[1]
    return int(row * _PITCH + run * RUN + start)
