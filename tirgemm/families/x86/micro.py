"""Micro-kernel that multiplies packed panels by register tiles, with the epilogue.

Written as TensorIR with a block ``gemm`` over (chunk, k, row, column) of a register tile; ``scheduled`` then splits,
reorders, vectorises and unrolls it so that LLVM keeps the tile in registers and broadcasts A from memory operands.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tirgemm.families.x86.layout import CHUNK, PanelTiling
from tirgemm.families.x86.maths import activation, one_nan
from tirgemm.families.x86.script import Emitter
from tirgemm.gemm import Gemm
from tirgemm.launch import Param
from tirgemm.workload import Maths, epilogue, named

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


def multiply(tiling: PanelTiling) -> tuple[PrimFunc, tuple[Param, ...]]:
    """The scheduled PrimFunc ``multiply`` and its launch parameters."""
    writer = _Multiply(tiling)
    return scheduled(writer.emit.function(writer.body), tiling), tuple(writer.emit.params)


def scheduled(func: PrimFunc, tiling: PanelTiling) -> PrimFunc:
    """``func`` with the block ``gemm`` tiled for registers."""
    from tvm.s_tir import Schedule

    schedule = Schedule(func)
    *_, chunk, q, i, j = schedule.get_loops(schedule.get_sblock("gemm"))
    outer, inner = schedule.split(q, [None, int(tiling.config["unroll"])])
    column, lane = schedule.split(j, [None, tiling.lanes])
    # Columns innermost but for the lanes: a broadcast value of A meets all its vectors of B at once and dies.
    schedule.reorder(outer, inner, i, column, lane)
    for loop in (inner, i, column):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    schedule.decompose_reduction(schedule.get_sblock("gemm"), chunk)
    return next(iter(schedule.mod.functions.values()))


class _Multiply:
    """Writes the PrimFunc; one instance a kernel."""

    def __init__(self, tiling: PanelTiling) -> None:
        self.tiling, self.gemm = tiling, tiling.gemm
        self.emit = Emitter("multiply", tiling)
        self.tir = self.emit.tir
        self.partial: Any = None

    def body(self) -> None:
        tir, emit, tiling, gemm = self.tir, self.emit, self.tiling, self.gemm
        self.a = emit.workspace("packed_a", tiling.shape_a()) if tiling.packs_a else emit.tensor("a")
        self.b = emit.workspace("packed_b", tiling.shape_b()) if tiling.packs_b else emit.tensor("b")
        self.c = emit.tensor("c") if gemm.beta else None
        self.bias = emit.bias() if gemm.bias else None
        self.d = emit.tensor("d")
        if tiling.k_blocks > 1:
            self.partial = emit.workspace("partial", tiling.shape_partial())
        self.alpha = emit.scalar("alpha") if gemm.alpha else None
        self.beta = emit.scalar("beta") if gemm.beta else None
        self.m, self.block = emit.size_and_block()

        tasks_m, panels_m = emit.dim(tiling.tasks_m), emit.dim(tiling.panels_m)
        first_m = tir.floormod(self.block, tasks_m) * tiling.task_panels_m
        rest = tir.floordiv(self.block, tasks_m)
        first_n = tir.floormod(rest, tiling.tasks_n) * tiling.task_panels_n
        self.z = tir.floordiv(rest, tiling.tasks_n)
        count_m = tir.min(tiling.task_panels_m, panels_m - first_m)
        count_n = tir.min(tiling.task_panels_n, tiling.panels_n - first_n)
        rows_inner = self.tiling.config["order"] == "rows"
        extents = (count_n, count_m) if rows_inner else (count_m, count_n)
        with tir.grid(tiling.k_blocks, *extents) as (kb, outer, inner), tir.sblock("tile"):
            i, j = (inner, outer) if rows_inner else (outer, inner)
            self.s = named("s", tir.axis.opaque(tiling.k_blocks, kb))
            self.x = named("x", tir.axis.spatial(panels_m, first_m + i))
            self.y = named("y", tir.axis.spatial(tiling.panels_n, first_n + j))
            self.tile()

    def tile(self) -> None:
        """One register tile over one block of k."""
        tir, tiling = self.tir, self.tiling
        self.acc = named("acc", tir.sblock_alloc_buffer([tiling.tile_m, tiling.tile_n], "float32", scope="local"))
        if tiling.turns_b:
            shape = [CHUNK, tiling.tile_n]
            self.turned = named("turned", tir.sblock_alloc_buffer(shape, "float32", scope="local"))
        self.accumulate()
        if tiling.k_blocks == 1:
            self.finish()
            return
        with tir.If(self.s > 0), tir.Then():
            self.tile_vectors(
                lambda i, j: tir.buffer_store(self.acc, self.acc[i, j] + self.partial[self.slot(i, j)], [i, j])
            )
        with tir.If(self.s == tiling.k_blocks - 1):
            with tir.Then():
                self.finish()
            with tir.Else():
                self.tile_vectors(lambda i, j: tir.buffer_store(self.partial, self.acc[i, j], list(self.slot(i, j))))

    def accumulate(self) -> None:
        """acc = A B over the chunks of this block of k."""
        tir, tiling = self.tir, self.tiling
        first = self.s * tiling.chunks_per_block
        even = tiling.chunks % tiling.chunks_per_block == 0
        count = tiling.chunks_per_block if even else tir.min(tiling.chunks_per_block, tiling.chunks - first)
        with tir.serial(count) as c:
            if tiling.turns_b:
                self.turn_chunk(first + c)
            with tir.grid(CHUNK, tiling.tile_m, tiling.tile_n) as (q, i, j), tir.sblock("gemm"):
                vc = named("vc", tir.axis.reduce(tiling.chunks, first + c))
                vq = named("vq", tir.axis.reduce(CHUNK, q))
                vi = named("vi", tir.axis.spatial(tiling.tile_m, i))
                vj = named("vj", tir.axis.spatial(tiling.tile_n, j))
                with tir.init():
                    tir.buffer_store(self.acc, tir.float32(0), [vi, vj])
                product = self.left(vc, vq, vi) * self.right(vc, vq, vj)
                tir.buffer_store(self.acc, self.acc[vi, vj] + product, [vi, vj])

    def turn_chunk(self, c: Any) -> None:
        """A chunk of the tile's columns of B, whose rows run along k, as a piece of a panel in the L1 cache."""
        tir, emit, tiling, lanes = self.tir, self.emit, self.tiling, self.tiling.lanes

        def column(v: int, r: int) -> Any:
            n = self.y * tiling.tile_n + (v + r)
            return n if tiling.divides_n else tir.min(n, self.gemm.n - 1)

        for v in range(0, tiling.tile_n, lanes):
            for s in range(0, CHUNK, lanes):
                square = emit.turned_square(self.b, self.z, partial(column, v), c * CHUNK + s, lanes)
                for q, value in enumerate(square):
                    emit.store_vector(self.turned, [s + q, v], value)

    def left(self, c: Any, q: Any, i: Any) -> Any:
        if self.tiling.packs_a:
            return self.a[(self.z, self.x, c, q, i) if self.gemm.trans_a else (self.z, self.x, c, i, q)]
        row, p = self.x * self.tiling.tile_m + i, c * CHUNK + q
        if not self.tiling.divides_m:
            row = self.tir.min(row, self.m - 1)
        return self.emit.at(self.a, self.z, *((p, row) if self.gemm.trans_a else (row, p)))

    def right(self, c: Any, q: Any, j: Any) -> Any:
        if self.tiling.packs_b:
            return self.b[self.z, self.y, c, q, j]
        if self.tiling.turns_b:
            return self.turned[q, j]
        return self.emit.at(self.b, self.z, c * CHUNK + q, self.y * self.tiling.tile_n + j)

    def finish(self) -> None:
        """The epilogue of a whole tile as vectors; of one across the right edge element by element."""
        tir, tiling, lanes = self.tir, self.tiling, self.tiling.lanes
        first = self.x * tiling.tile_m

        def inside() -> None:
            with tir.unroll(tiling.tile_m) as i:
                self.emit.whole_or_edge(tiling.divides_m, first + i < self.m, lambda: row(i))

        def row(i: Any) -> None:
            with tir.unroll(tiling.tile_n // lanes) as v:
                self.store(i, v * lanes, self.acc, lanes)

        def edge() -> None:
            # A second buffer, because run-time indices into acc would keep it out of registers.
            spilled = named("edge", tir.sblock_alloc_buffer([tiling.tile_m, tiling.tile_n], "float32", scope="local"))
            self.tile_vectors(lambda i, j: tir.buffer_store(spilled, self.acc[i, j], [i, j]))
            rows, columns = tir.min(tiling.tile_m, self.m - first), self.gemm.n - self.y * tiling.tile_n
            # LLVM would mask a known number of neighbours in D, and write a single one that is left of 8 as 32 bits
            # for 16 (AVX-512): bf16 takes a number that is known at run time alone, as a block is never negative.
            if self.gemm.out == "bf16" and self.gemm.n % tiling.tile_n > 1:
                columns = tir.min(columns, tiling.tile_n + self.block)
            elif self.gemm.out == "bf16":
                rows = tir.min(rows, tiling.tile_m + self.block)
            with tir.grid(rows, columns) as (i, j):
                self.store(i, j, spilled, 1)

        self.emit.whole_or_edge(tiling.divides_n, (self.y + 1) * tiling.tile_n <= self.gemm.n, inside, edge)

    def store(self, i: Any, j: Any, sums: Any, lanes: int) -> None:
        """``lanes`` elements of D from the sums at (i, j) of the register tile on."""
        emit = self.emit
        column = emit.ramp(self.y * self.tiling.tile_n + j, lanes)
        at = emit.index(self.z, self.x * self.tiling.tile_m + i, column)
        value = epilogue(
            self.gemm,
            emit.let(sums[i, emit.ramp(j, lanes)]),
            self.c[tuple(at)] if self.c is not None else None,
            self.bias[column] if self.bias is not None else None,
            self.alpha,
            self.beta,
            maths=Maths(
                lambda a, b, c: self.tir.fma(a if lanes == 1 else self.tir.Broadcast(a, lanes), b, c),
                self.activated,
            ),
            lanes=lanes,
        )
        self.tir.buffer_store(self.d, value, at)

    def activated(self, gemm: Gemm, x: Any) -> Any:
        value = activation(self.tir, self.emit.hold, gemm.act, x)
        # Operands in bf16 have no NaN that rounds to a number; alpha and beta, which are fp32, may.
        rounds = gemm.out == "bf16" and (gemm.dtype != "bf16" or gemm.alpha or gemm.beta)
        return one_nan(self.tir, self.emit.hold, value) if rounds else value

    def slot(self, i: Any, j: Any) -> tuple[Any, ...]:
        return (self.z, self.y, self.x, i, j)

    def tile_vectors(self, write: Callable[[Any, Any], None]) -> None:
        """Every element of the register tile, already unrolled and in vectors: no block, so acc keeps its one
        writer."""
        tir, lanes = self.tir, self.tiling.lanes
        with (
            tir.unroll(self.tiling.tile_m) as i,
            tir.unroll(self.tiling.tile_n // lanes) as v,
            tir.vectorized(lanes) as lane,
        ):
            write(i, v * lanes + lane)
