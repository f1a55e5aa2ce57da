"""Split-K reduction kernel: adds the parts of k in their order and finishes D, four neighbours of a row a thread."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

from tirgemm.expr import Dim
from tirgemm.families.common.launch_bounds import bounded
from tirgemm.families.tensorcore.tile_blocks import Writer
from tirgemm.families.tensorcore.tiling import PART_WIDTH, Tiling
from tirgemm.hardware import WARP
from tirgemm.workload import named

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_MOST_THREADS = 256
# Blocks that an SM holds: with the most threads each has 128 registers.
_RESIDENT = 2


def reduce_threads(tiling: Tiling) -> int:
    """Threads along a row: as many as it has words of four outputs, in whole warps."""
    words = tiling.partial_pitch // PART_WIDTH
    return min(_MOST_THREADS, -(-words // WARP) * WARP)


def reduce_grid(tiling: Tiling) -> tuple[Dim, Dim, Dim]:
    """Rows, parts of rows, matrices."""
    words = tiling.partial_pitch // PART_WIDTH
    return (tiling.gemm.m_dim, -(-words // reduce_threads(tiling)), tiling.gemm.batch)


def reduce_kernel(tiling: Tiling, symbol: str) -> PrimFunc:
    """The scheduled PrimFunc that reads the partial sums and writes D."""
    from tvm import IRModule
    from tvm.s_tir import Schedule

    sch = Schedule(IRModule({symbol: _Reduce(tiling, symbol).primfunc()}), debug_mask="none")
    sch.work_on(symbol)
    z, i, word, e = sch.get_loops(sch.get_sblock("epilogue"))
    block, thread = sch.split(word, [None, reduce_threads(tiling)])
    for loop, axis in ((z, "blockIdx.z"), (i, "blockIdx.x"), (block, "blockIdx.y"), (thread, "threadIdx.x")):
        sch.bind(loop, axis)
    total = sch.get_sblock("total")
    sch.set_scope(total, 0, "local")
    sch.compute_at(total, thread, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(total)[-1])
    if tiling.width_d == PART_WIDTH:
        sch.vectorize(e)
    else:
        sch.unroll(e)
    # Told nothing, ptxas makes do with 32 registers for the sake of occupancy, and spills; all parts are loaded at
    # once.
    return bounded(sch.mod[symbol], _RESIDENT)


class _Reduce(Writer):
    """Writes the staged problem: blocks ``total`` and ``epilogue``."""

    def write(self) -> None:
        T, gemm, tiling = self.tir, self.gemm, self.tiling
        self.declare_size()
        self.declare_partials()
        self.declare_outputs()
        self.declare_m()
        words = self.dim(tiling.partial_pitch // PART_WIDTH)
        shape = [self.dim(gemm.batch), self.dim(gemm.m_dim), words, self.dim(PART_WIDTH)]
        totals = named("totals", T.sblock_alloc_buffer(shape, "float32"))
        with T.grid(*shape) as loops, T.sblock("total"):
            z, i, word, e = at = T.axis.remap("SSSS", list(loops))
            parts = [self.partials[part, z, i, word * PART_WIDTH + e] for part in range(tiling.split)]
            T.buffer_store(totals, functools.reduce(operator.add, parts), list(at))
        with T.grid(*shape) as loops, T.sblock("epilogue"):
            z, i, word, e = T.axis.remap("SSSS", list(loops))
            j = word * PART_WIDTH + e
            inside = self.guard(j, gemm.n, PART_WIDTH)
            if inside:
                with T.If(self.every(inside)), T.Then():
                    self.finish(totals[z, i, word, e], z, i, j)
            else:
                self.finish(totals[z, i, word, e], z, i, j)
