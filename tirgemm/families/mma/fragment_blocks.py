"""The staged problem of ``mma``: fragments of m16n8k16 as tensors over (lane, value), and the products of a warp.

``a_frag`` holds 16 x 16 elements of A as eight values of each lane, ``b_frag`` 16 x 16 of B, two instructions' worth,
``acc`` 16 x 8 sums as four values (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane = 4 * group + place in the
group. Value 2 r + h is half h of register r. For A, r counts (row half, k half), the row half fastest; for B (k half, n
half), the k half fastest.
"""

from __future__ import annotations

from typing import Any

from tirgemm.families.mma.tile import MMA_M, MMA_N, PAIR_N, SUMS, VALUES, VECTOR, rows_at_once
from tirgemm.families.tensorcore.names import STAGED
from tirgemm.families.tensorcore.tile_blocks import StagedGemm
from tirgemm.families.tensorcore.tiling import MMA_K, RUN, Side
from tirgemm.gemm import DTYPE_NAMES
from tirgemm.hardware import WARP
from tirgemm.workload import named


class StagedMma(StagedGemm):
    """See ``StagedGemm``. Blocks: ``a_tile``, ``b_tile``, ``a_frag``, ``b_frag``, ``gemm``, ``epilogue``."""

    @property
    def sum_loops(self) -> tuple[int, ...]:
        """Warps along m and n, lanes, instructions along m and n, values."""
        t = self.tiling
        return (t.warps_m, t.warps_n, WARP, t.warp_m // MMA_M, t.warp_n // MMA_N, SUMS)

    @property
    def epilogue_loops(self) -> tuple[int, ...]:
        """Where outputs leave through shared memory: warps, lanes, sixteen rows, turns of a warp over them, a
        vector."""
        t = self.tiling
        if t.epilogue != STAGED:
            return self.sum_loops
        rows = rows_at_once(t)
        return (t.warps_m, t.warps_n, WARP, t.warp_m // MMA_M, MMA_M // rows, VECTOR)

    def place_of_sum(self, at: list[Any]) -> tuple[Any, Any]:
        if self.tiling.epilogue == STAGED:
            wm, wn = at[:2]
            row, column = self._place_in_warp(at)
            return wm * self.tiling.warp_m + row, wn * self.tiling.warp_n + column
        wm, wn, lane, i, j, c = at
        row = wm * self.tiling.warp_m + i * MMA_M + c // 2 * 8 + lane // 4
        column = wn * self.tiling.warp_n + j * MMA_N + lane % 4 * 2 + c % 2
        return row, column

    def sum_of(self, at: list[Any]) -> list[Any]:
        if self.tiling.epilogue != STAGED:
            return at
        wm, wn = at[:2]
        row, column = self._place_in_warp(at)
        lane = row % 8 * 4 + column % MMA_N // 2
        return [wm, wn, lane, row // MMA_M, column // MMA_N, row % MMA_M // 8 * 2 + column % 2]

    def sums_around(self, at: list[Any]) -> list[Any] | None:
        if self.tiling.epilogue != STAGED:
            return None
        wm, wn, _, i, *_ = at
        zero = self.dim(0)
        lanes, columns, values = (slice(zero, self.dim(d)) for d in (WARP, self.tiling.warp_n // MMA_N, SUMS))
        return [wm, wn, lanes, i, columns, values]

    def _place_in_warp(self, at: list[Any]) -> tuple[Any, Any]:
        """Row and column of a staged output within its warp: lanes side by side along rows."""
        _, _, lane, i, turn, v = at
        rows = rows_at_once(self.tiling)
        lanes = WARP // rows
        return i * MMA_M + turn * rows + lane // lanes, lane % lanes * VECTOR + v

    def write_sums(self) -> None:
        t = self.tiling
        self.fragments = {
            "a": self._fragment(t.a, t.warps_m, t.warp_m // MMA_M),
            "b": self._fragment(t.b, t.warps_n, t.warp_n // PAIR_N),
        }
        self._products()

    def _fragment(self, side: Side, warps: int, count: int) -> Any:
        """The block that reads the fragments of ``warps`` warps, ``count`` each, from the tile."""
        T, tile = self.tir, self.tiles[side.operand]
        dims = [self.dim(d) for d in (self.tiling.tile_k // MMA_K, warps, count, WARP, VALUES)]
        shape = [*self.outer, self.along(side), self.steps, *dims]
        dtype = DTYPE_NAMES[self.gemm.dtype]
        fragment = named(f"{side.operand}_frag", T.sblock_alloc_buffer(shape, dtype))
        with T.grid(*shape) as loops, T.sblock(f"{side.operand}_frag"):
            z, part, block, step, ki, w, i, lane, v = at = T.axis.remap("S" * 9, list(loops))
            register, group = v // 2, lane // 4
            # Halves of A's rows run fastest over registers, halves of k for B.
            own_half, k_half = (register % 2, register // 2) if side.operand == "a" else (register // 2, register % 2)
            own = w * (count * 16) + i * 16 + own_half * 8 + group
            deep = ki * MMA_K + k_half * 8 + lane % 4 * 2 + v % 2
            row, column = (own, deep) if side.k_major else (deep, own)
            _, run = side.layout.index_map(row, column // RUN)
            T.reads(tile[z, part, block, step, 0 : side.rows, 0 : side.runs, 0:RUN])
            T.writes(fragment[tuple(at)])
            T.buffer_store(fragment, tile[z, part, block, step, row, run, column % RUN], list(at))
        return fragment

    def _products(self) -> None:
        T, t = self.tir, self.tiling
        wm, wn, lanes, mi, nj, values = (self.dim(d) for d in self.sum_loops)
        inner = self.dim(t.tile_k // MMA_K)
        outer = [*self.outer, self.block_rows, self.block_columns, wm, wn, lanes]
        a_frag, b_frag = self.fragments["a"], self.fragments["b"]
        with T.grid(*outer, self.steps, inner, mi, nj, values, self.dim(MMA_K)) as loops, T.sblock("gemm"):
            *where, step, ki, i, j, c, k = T.axis.remap("SSSSSSSRRSSSR", list(loops))
            z, part, mo, no, wm, wn, lane = where
            # The lane of a group that holds this k, and which half of a register and which k half it is.
            member, half, k_half = k % 8 // 2, k % 2, k // 8
            a_at = [z, part, mo, step, ki, wm, i]
            b_at = [z, part, no, step, ki, wn, j // 2]
            T.reads(
                a_frag[(*a_at, slice(0, WARP), slice(0, VALUES))], b_frag[(*b_at, slice(0, WARP), slice(0, VALUES))]
            )
            T.writes(self.sums[(*where, i, j, c)])
            with T.init():
                T.buffer_store(self.sums, self.zero(self.acc), [*where, i, j, c])
            left = a_frag[(*a_at, lane // 4 * 4 + member, k_half * 4 + c // 2 * 2 + half)]
            column = lane % 4 * 2 + c % 2
            right = b_frag[(*b_at, column * 4 + member, j % 2 * 4 + k_half * 2 + half)]
            product = T.cast(left, self.acc) * T.cast(right, self.acc)
            T.buffer_store(self.sums, self.sums[(*where, i, j, c)] + product, [*where, i, j, c])
