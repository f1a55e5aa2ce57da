"""Repack kernel, where an operand's rows are not aligned: copies it to rows of whole 16-byte words, zero beyond them.

A thread makes one word: eight elements by loads as wide as the source allows, one store of 16 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tirgemm import expr
from tirgemm.expr import Dim
from tirgemm.families.common.aligned_copy import AlignedCopy
from tirgemm.families.common.alignment import access_width
from tirgemm.families.tensorcore.tile_blocks import Writer
from tirgemm.families.tensorcore.tiling import RUN, Side, Tiling
from tirgemm.gemm import DTYPE_NAMES
from tirgemm.workload import named

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

REPACK_THREADS = 256


def repack_grid(item: AlignedCopy) -> tuple[Dim, Dim, Dim]:
    return (expr.ceildiv(item.words, REPACK_THREADS), 1, 1)


def repack_kernel(tiling: Tiling, side: Side, symbol: str) -> PrimFunc:
    """The scheduled PrimFunc that reads A or B and writes its copy."""
    from tvm import IRModule
    from tvm.s_tir import Schedule

    writer = _Repack(tiling, side, symbol)
    sch = Schedule(IRModule({symbol: writer.primfunc()}), debug_mask="none")
    sch.work_on(symbol)
    store = sch.get_sblock("packed")
    z, row, word, e = sch.get_loops(store)
    block, thread = sch.split(sch.fuse(z, row, word), [None, REPACK_THREADS])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(e)
    load = sch.get_sblock("word")
    sch.set_scope(load, 0, "local")
    sch.compute_at(load, thread, preserve_unit_loops=True)
    outer, vector = sch.split(sch.get_loops(load)[-1], [None, writer.width])
    sch.unroll(outer)
    if writer.width > 1:
        sch.vectorize(vector)
    return sch.mod[symbol]


def _reach(item: AlignedCopy, m: int) -> int:
    """The largest offset, in elements, of the last block's threads, some of which are beyond the last word: in rows
    beyond it where m is a range, else in matrices."""
    row_words, words, *distances = (
        expr.evaluate(dim, m)
        for dim in (item.row_words, item.words, item.source_ld, item.ld, item.source_stride, item.stride)
    )
    ld, stride = max(distances[:2]), max(distances[2:])
    rows = REPACK_THREADS // row_words + 2
    matrices = -(-words // REPACK_THREADS) * REPACK_THREADS // (words // item.batch) + 2
    return max(rows * ld, matrices * stride if item.batch > 1 else 0)


class _Repack(Writer):
    """Writes the staged problem: blocks ``word``, which reads, and ``packed``, which writes."""

    def __init__(self, tiling: Tiling, side: Side, symbol: str) -> None:
        assert side.source is not None
        self.side, self.item = side, side.source
        super().__init__(tiling, symbol, _reach(self.item, tiling.gemm.m_max))
        # Loads end with a row: what lies behind it may be nobody's.
        columns = self.item.columns
        widths = (8, 4, 2) if isinstance(columns, int) else ()
        most = access_width(self.gemm, side.operand)
        self.width = next((w for w in widths if w <= most and columns % w == 0), 1)

    def write(self) -> None:
        T, item = self.tir, self.item
        self.declare_size()
        source = T.arg(self.side.operand, self.tensor(self.side.operand))
        dtype = DTYPE_NAMES[self.gemm.dtype]
        batch = self.dim(item.batch)
        shape = [batch, self.dim(item.rows), self.dim(item.row_words), self.dim(RUN)]
        strides = [self.dim(d) for d in (item.stride, item.ld, RUN, 1)]
        packed = T.arg(item.name, T.buffer(shape, dtype, strides=strides, align=16))
        self.declare_m()
        words = named("words", T.sblock_alloc_buffer(shape, dtype))
        with T.grid(*shape) as loops, T.sblock("word"):
            z, row, word, e = at = T.axis.remap("SSSS", list(loops))
            column = word * RUN + e
            value: Any = source[self.place(z, row, column)]
            inside = self.guard(column, item.columns, RUN, self.width)
            if inside:
                value = self.tirx.if_then_else(self.every(inside), value, self.zero(dtype))
            T.buffer_store(words, value, list(at))
        with T.grid(*shape) as loops, T.sblock("packed"):
            at = T.axis.remap("SSSS", list(loops))
            T.buffer_store(packed, words[tuple(at)], list(at))
