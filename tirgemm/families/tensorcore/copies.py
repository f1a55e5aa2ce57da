"""The copies of tiles as cp.async: 16 bytes at a time, or 8 or 4, of which those outside the operand are zero."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

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
        self.buffer = decl_buffer([tiling.stages * self.size], DTYPE_NAMES[tiling.gemm.dtype], "tiles", scope=SHARED)
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

    index = [x, p] if side.k_major else [p, x]
    limits = [(x, size, side.extent), (p, gemm.k, side.depth * tiling.split)]
    (r, r_size, r_block), (c, c_size, c_block) = limits if side.k_major else reversed(limits)
    count: Any = None
    if not (isinstance(c_size, int) and c_size % c_block == 0):
        left = symbol(c_size) - c
        if isinstance(c_size, int) and c_size % side.width == 0:
            count = tirx.Select(left > 0, tirx.const(side.width, dtype), tirx.const(0, dtype))
        else:
            count = tirx.max(tirx.min(left, tirx.const(side.width, dtype)), tirx.const(0, dtype))
    if not (isinstance(r_size, int) and r_size % r_block == 0):
        whole = tirx.const(side.width, dtype) if count is None else count
        count = tirx.Select(r < symbol(r_size), whole, tirx.const(0, dtype))
    if count is not None:
        count = (count * ELEMENT_BYTES).astype("int32")
    origin = address(source, [z, *index] if gemm.batch > 1 else index)
    body = cp_async(side.width * ELEMENT_BYTES, stage.at(side, step, row, place, start), origin, count)
    return with_body(block, body, list(block.reads), [region(stage.buffer)])
