"""The kernels that copy an operand into fp32 panels: one block index a panel (batch outermost).

Where the operand's rows run along what the register tile broadcasts or loads, packing is a widening copy; where B is
transposed, squares of lanes by lanes elements are transposed in registers by log2(lanes) rounds of shuffles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tirgemm.families.x86.layout import CHUNK, PanelTiling
from tirgemm.families.x86.script import Emitter
from tirgemm.launch import Param

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


def pack_a(tiling: PanelTiling) -> tuple[PrimFunc, tuple[Param, ...]]:
    """A -> ``packed_a``; rows beyond m repeat the last."""
    emit = Emitter("pack_a", tiling)

    def body() -> None:
        tir, gemm, rows = emit.tir, tiling.gemm, tiling.tile_m
        a = emit.tensor("a")
        packed = emit.workspace("packed_a", tiling.shape_a())
        m, block = emit.size_and_block()
        z, panel = tir.floordiv(block, emit.dim(tiling.panels_m)), tir.floormod(block, emit.dim(tiling.panels_m))
        first = panel * rows

        def row(i: Any) -> Any:
            return tir.min(first + i, m - 1)

        if not gemm.trans_a:
            with tir.serial(rows) as i:
                emit.widen_chunks(
                    source=lambda p: emit.at(a, z, row(i), p),
                    store=lambda c, q, value: tir.buffer_store(packed, value, [z, panel, c, i, q]),
                )
            return
        # Transposed: each k holds its rows side by side.
        with tir.serial(tiling.chunks) as c, tir.serial(CHUNK) as q:
            p = c * CHUNK + q

            def copy(index: Callable[[Any], Any], kind: Any) -> None:
                with kind(rows) as i:
                    tir.buffer_store(packed, emit.guarded_k(p, lambda: emit.at(a, z, p, index(i))), [z, panel, c, q, i])

            emit.whole_or_edge(
                tiling.divides_m,
                first + rows <= m,
                lambda: copy(lambda i: first + i, tir.vectorized),
                lambda: copy(row, tir.serial),
            )

    return emit.function(body), tuple(emit.params)


def pack_b(tiling: PanelTiling) -> tuple[PrimFunc, tuple[Param, ...]]:
    """B -> ``packed_b``; columns beyond n repeat the last."""
    emit = Emitter("pack_b", tiling)

    def body() -> None:
        tir, gemm, columns = emit.tir, tiling.gemm, tiling.tile_n
        b = emit.tensor("b")
        packed = emit.workspace("packed_b", tiling.shape_b())
        _, block = emit.size_and_block(needs_m=False)
        z, panel = tir.floordiv(block, tiling.panels_n), tir.floormod(block, tiling.panels_n)
        first = panel * columns

        def column(j: Any) -> Any:
            return tir.min(first + j, gemm.n - 1)

        if gemm.trans_b:
            _transpose_panel(emit, b, packed, (z, panel), column)
            return
        with tir.serial(tiling.chunks) as c, tir.serial(CHUNK) as q:
            p = c * CHUNK + q

            def copy(index: Callable[[Any], Any], kind: Any) -> None:
                with kind(columns) as j:
                    tir.buffer_store(packed, emit.guarded_k(p, lambda: emit.at(b, z, p, index(j))), [z, panel, c, q, j])

            emit.whole_or_edge(
                tiling.divides_n,
                first + columns <= gemm.n,
                lambda: copy(lambda j: first + j, tir.vectorized),
                lambda: copy(column, tir.serial),
            )

    return emit.function(body), tuple(emit.params)


def _transpose_panel(emit: Emitter, b: Any, packed: Any, at: tuple[Any, Any], column: Callable[[Any], Any]) -> None:
    """One panel of a transposed B: rows of B are columns of the panel."""
    tir, tiling = emit.tir, emit.tiling
    z, panel = at
    lanes = tiling.lanes
    squares = CHUNK // lanes
    whole = tiling.gemm.k // lanes
    with tir.serial(tiling.tile_n // lanes) as v:
        if whole:
            with tir.serial(whole) as s:
                square = emit.turned_square(b, z, lambda r: column(v * lanes + r), s * lanes, lanes)
                for q, value in enumerate(square):
                    # squares per chunk is 1 or 2, so that chunk and k within it follow from s.
                    inside = tir.floormod(s, squares) * lanes + q
                    emit.store_vector(packed, [z, panel, tir.floordiv(s, squares), inside, v * lanes], value)
        left = tiling.chunks * CHUNK - whole * lanes
        if left:
            with tir.grid(lanes, left) as (j, q):
                p = whole * lanes + q
                value = emit.guarded_k(p, lambda: emit.at(b, z, column(v * lanes + j), p))
                chunk, inside = tir.floordiv(p, CHUNK), tir.floormod(p, CHUNK)
                tir.buffer_store(packed, value, [z, panel, chunk, inside, v * lanes + j])
