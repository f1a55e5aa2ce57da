"""The problem over whole tiles, before scheduling: four blocks whose loops are already named after the machine.

Rows are (block, piece, warp, lane, element) and so are columns; k is (step, element). ``a_tile`` and ``b_tile`` copy
an operand, zero outside it, so that ``gemm`` has no edges; ``epilogue`` writes what lies inside D. Guards compare whole
vectors: all elements of one access pass or fail together.
"""

from __future__ import annotations

from typing import Any

from tirgemm import expr
from tirgemm.families.common.parameters import StagedWriter, tiles_reach
from tirgemm.families.simt.tiling import ThreadTiling, transposes
from tirgemm.gemm import DTYPE_NAMES, Gemm, Operand
from tirgemm.workload import index_dtype, named

SYMBOL = "simt_gemm"


class StagedProblem(StagedWriter):
    """Writes ``gemm`` as a PrimFunc of the blocks ``a_tile``, ``b_tile``, ``gemm`` and ``epilogue``.

    Parameters: the tensors in call order (a, b[, c][, bias], d), the scalars, and m where it is a range.
    """

    def __init__(self, gemm: Gemm, tiling: ThreadTiling) -> None:
        depth = -(-gemm.k // tiling.block_k) * tiling.block_k
        super().__init__(gemm, index_dtype(gemm, tiles_reach(gemm, tiling.block_m, tiling.block_n, depth)), SYMBOL)
        self.tiling, self.acc = tiling, DTYPE_NAMES[gemm.acc]

    def write(self) -> None:
        T, gemm, tiling = self.tir, self.gemm, self.tiling
        self.declare_size()
        self.a = T.arg("a", self.tensor("a"))
        self.b = T.arg("b", self.tensor("b"))
        self.declare_outputs()
        self.declare_m()

        self.batch = self.dim(gemm.batch)
        self.rows = [self.dim(d) for d in (expr.ceildiv(gemm.m_dim, tiling.block_m), *tiling.rows)]
        self.columns = [self.dim(d) for d in (expr.ceildiv(gemm.n, tiling.block_n), *tiling.columns)]
        self.depth = [self.dim(d) for d in (expr.ceildiv(gemm.k, tiling.block_k), tiling.block_k)]
        a_shape, b_shape = self.lying("a", self.depth, self.rows), self.lying("b", self.depth, self.columns)
        self.a_tile = named("a_tile", T.sblock_alloc_buffer([self.batch, *a_shape], self.acc))
        self.b_tile = named("b_tile", T.sblock_alloc_buffer([self.batch, *b_shape], self.acc))
        self.sums = named("acc", T.sblock_alloc_buffer([self.batch, *self.rows, *self.columns], self.acc))
        self.write_copy("a")
        self.write_copy("b")
        self.write_gemm()
        self.write_epilogue()

    # -- blocks --------------------------------------------------------------------------------

    def write_copy(self, operand: Operand) -> None:
        """``a_tile`` or ``b_tile``: the operand in the accumulator's dtype, zero outside."""
        T, gemm, tiling = self.tir, self.gemm, self.tiling
        if operand == "a":
            source, target, extents, size, block = self.a, self.a_tile, self.rows, gemm.m_dim, tiling.block_m
            width, k_first = tiling.width_a, gemm.trans_a
        else:
            source, target, extents, size, block = self.b, self.b_tile, self.columns, gemm.n, tiling.block_n
            width, k_first = tiling.width_b, not gemm.trans_b
        with T.grid(self.batch, *self.depth, *extents) as loops, T.sblock(f"{operand}_tile"):
            z, *at = T.axis.remap("S" * len(loops), list(loops))
            p, x = self.linear(at[:2], self.depth), self.linear(at[2:], extents)
            inside = [
                *self.guard(x, size, block, width if k_first else 1),
                *self.guard(p, gemm.k, tiling.block_k, 1 if k_first else width),
            ]
            value = source[self.place(z, p, x) if k_first else self.place(z, x, p)]
            if inside:
                # Zero in the operand's own dtype: the code generator has no vectors of eight floats.
                value = self.tirx.if_then_else(self.every(inside), value, self.zero(DTYPE_NAMES[gemm.dtype]))
            value = T.cast(value, self.acc)
            T.buffer_store(target, value, [z, *self.lying(operand, at[:2], at[2:])])

    def write_gemm(self) -> None:
        T = self.tir
        with T.grid(self.batch, *self.rows, *self.columns, *self.depth) as loops, T.sblock("gemm"):
            z, *at = T.axis.remap("S" * (len(loops) - 2) + "RR", list(loops))
            i, j, p = at[:5], at[5:10], at[10:]
            where = [z, *i, *j]
            with T.init():
                T.buffer_store(self.sums, self.zero(self.acc), where)
            product = self.a_tile[(z, *self.lying("a", p, i))] * self.b_tile[(z, *self.lying("b", p, j))]
            T.buffer_store(self.sums, self.sums[tuple(where)] + product, where)

    def write_epilogue(self) -> None:
        T, gemm, tiling = self.tir, self.gemm, self.tiling
        with T.grid(self.batch, *self.rows, *self.columns) as loops, T.sblock("epilogue"):
            z, *at = T.axis.remap("S" * len(loops), list(loops))
            i, j = self.linear(at[:5], self.rows), self.linear(at[5:], self.columns)
            inside = [
                *self.guard(i, gemm.m_dim, tiling.block_m, 1),
                *self.guard(j, gemm.n, tiling.block_n, tiling.width_d),
            ]
            if inside:
                with T.If(self.every(inside)), T.Then():
                    self.finish(self.sums[(z, *at)], z, i, j)
            else:
                self.finish(self.sums[(z, *at)], z, i, j)

    # -- expressions ---------------------------------------------------------------------------

    def lying(self, operand: Operand, depth: list[Any], extents: list[Any]) -> list[Any]:
        """Indices of a tile in the order of its memory: k-major, or within a step as the operand lies."""
        if self.tiling.reads == "fragments" or not transposes(self.gemm, operand):
            return [*depth, *extents]
        return [depth[0], *extents, depth[1]]

    def linear(self, at: list[Any], extents: list[Any]) -> Any:
        index = at[0]
        for inner, extent in zip(at[1:], extents[1:], strict=True):
            index = index * extent + inner
        return index
