"""The copies of tiles as cp.async: 16 bytes at a time, or 8 or 4, of which those outside the operand are zero."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tirgemm import expr
from tirgemm.expr import Dim
from tirgemm.families.tensorcore.intrinsics import Exchange, address, cp_async, region, variables, with_body
from tirgemm.families.tensorcore.schedule import SHARED
from tirgemm.families.tensorcore.tiling import ELEMENT_BYTES, RUN, Side, Tiling
from tirgemm.gemm import DTYPE_NAMES, Range
from tirgemm.workload import evaluate_symbolic

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


class Stage:
    """The stages as one buffer of shared memory: each first A's tile, then B's, laid out by their layouts.

    One, because TVM lays several out by what it sees of their use, and the instructions' addresses are not among that.
    """

    def __init__(self, tiling: Tiling) -> None:
        from tvm.tirx import decl_buffer

        self.tiling = tiling
        self.size = (tiling.a.nbytes + tiling.b.nbytes) // ELEMENT_BYTES
        elements = max(tiling.stages * self.size, -(-tiling.staged_bytes // ELEMENT_BYTES))
        self.buffer = decl_buffer([elements], DTYPE_NAMES[tiling.gemm.dtype], "tiles", scope=SHARED)
        self.replaced: dict[str, Any] = {}

    def at(self, side: Side, step: Any, row: Any, place: Any, element: Any = 0) -> Any:
        """The address of an element of the run at ``place`` of ``row`` in the tile of a step."""
        start = 0 if side.operand == "a" else self.tiling.a.nbytes // ELEMENT_BYTES
        within = (row * side.layout.stride + place) * RUN + element + start
        return address(self.buffer, [step % self.tiling.stages * self.size + within])


def copies(func: PrimFunc, stage: Stage) -> dict[str, Exchange]:
    """What takes the place of the blocks that copy one vector of a tile, by their names."""
    tiling = stage.tiling
    m = func.params[-1] if isinstance(tiling.gemm.m, Range) else None
    return {f"{side.operand}_tile_o": partial(_copy, stage, side, m) for side in tiling.sides}


def _copy(stage: Stage, side: Side, m: Any, block: Any) -> Any:
    from tvm import tirx

    tiling, gemm = stage.tiling, stage.tiling.gemm
    source, stage.replaced[side.operand] = block.reads[0].source, block.writes[0].source
    z, part, outer, step, row, place, eighth = variables(block)[:7]
    dtype = str(row.ty.dtype)
    start = eighth * side.width
    _, run = side.layout.index_map(row, place)
    column = run * RUN + start
    own, deep = (row, column) if side.k_major else (column, row)
    x, p = outer * side.extent + own, (part * tiling.steps + step) * side.depth + deep
    size = gemm.m_dim if side.operand == "a" else gemm.n

    def symbol(value: Dim) -> Any:
        made = evaluate_symbolic(value, None if m is None else m.astype(dtype))
        return tirx.const(made, dtype) if isinstance(made, int) else made

    own_limit = (x, size, side.extent)
    deep_limit = (p, gemm.k, side.depth * tiling.split)
    rows, (column_at, columns, column_block) = (own_limit, deep_limit) if side.k_major else (deep_limit, own_limit)
    if side.source:
        # Rows of a copy with aligned rows go on with zeros to the end of a run.
        columns = expr.make("mul", expr.ceildiv(columns, RUN), RUN)
    limits = (rows, (column_at, columns, column_block))
    inside = [
        index < symbol(limit) for index, limit, unit in limits if not (isinstance(limit, int) and limit % unit == 0)
    ]
    at = [z, rows[0], column_at] if gemm.batch > 1 else [rows[0], column_at]
    certain = tirx.all(*inside) if len(inside) > 1 else inside[0] if inside else None
    origin, start_of_all = address(source, at), address(source, [0] * len(at))
    target = stage.at(side, step, row, place, start)
    body = cp_async(side.width * ELEMENT_BYTES, target, origin, certain, start_of_all)
    return with_body(block, body, list(block.reads), [region(stage.buffer)])
