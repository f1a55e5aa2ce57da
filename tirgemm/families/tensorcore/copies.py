"""cp.async copies of tiles: 16 bytes at a time, or 8 or 4, of which those outside the operand are zero."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tirgemm import expr
from tirgemm.expr import Dim
from tirgemm.families.tensorcore.intrinsics import Exchange, address, behind, cp_async, region, variables, with_body
from tirgemm.families.tensorcore.schedule import SHARED
from tirgemm.families.tensorcore.tiling import ELEMENT_BYTES, RUN, RUN_BYTES, Side, Tiling
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

    def behind(self, side: Side, pointer: Any, rows: Any, runs: Any = 0) -> Any:
        """The address so many rows and runs of a tile behind ``pointer``."""
        return behind(pointer, (rows * side.layout.stride + runs) * RUN_BYTES, DTYPE_NAMES[self.tiling.gemm.dtype])


def copies(func: PrimFunc, stage: Stage, *, by_turns: bool) -> dict[str, Exchange]:
    """What takes the place of the blocks that copy one vector of a tile, by their names.

    ``by_turns``: where possible, a thread's addresses are its first copy's and a number of bytes added to it.
    """
    tiling = stage.tiling
    m = func.params[-1] if isinstance(tiling.gemm.m, Range) else None
    return {f"{side.operand}_tile_o": partial(_copy, stage, side, by_turns, m) for side in tiling.sides}


def _copy(stage: Stage, side: Side, by_turns: bool, m: Any, block: Any) -> Any:
    vector = _Vector(stage, side, block)
    stage.replaced[side.operand] = block.writes[0].source
    turn = side.turn if by_turns and _in_32_bits(side, vector.pitch) else None
    target, origin = vector.addresses(turn)
    start = address(vector.source, [0] * len(vector.source.shape))
    body = cp_async(side.width * ELEMENT_BYTES, target, origin, vector.inside(m), start)
    return with_body(block, body, list(block.reads), [region(stage.buffer)])


class _Vector:
    """What one cp.async copies, in terms of its block's variables."""

    def __init__(self, stage: Stage, side: Side, block: Any) -> None:
        self.stage, self.side, self.tiling = stage, side, stage.tiling
        self.source = block.reads[0].source
        self.z, self.part, self.outer, self.step, self.row, self.place, eighth = variables(block)[:7]
        self.start = eighth * side.width
        self.run = side.layout.index_map(self.row, self.place)[1]

    @property
    def pitch(self) -> Any:
        """Elements from a row of the operand to the next."""
        return self.source.strides[-2]

    def at(self, row: Any, run: Any) -> tuple[Any, Any]:
        """Row and column of the operand that the tile has in ``row`` at ``run``."""
        side, tiling = self.side, self.tiling
        column = run * RUN + self.start
        own, deep = (row, column) if side.k_major else (column, row)
        x, p = self.outer * side.extent + own, (self.part * tiling.steps + self.step) * side.depth + deep
        return (x, p) if side.k_major else (p, x)

    def addresses(self, turn: tuple[int, int] | None) -> tuple[Any, Any]:
        """Where it is copied to, in shared memory, and from; with a turn, each as the first copy's and the bytes from
        there."""
        side, layout = self.side, self.side.layout
        if turn is None:
            target = self.stage.at(side, self.step, self.row, self.place, self.start)
            return target, self._address(self.row, self.run)
        down, across = turn
        first, beginning = self.row % down, self.place % across
        rows, runs = self.row // down * down, self.place // across * across
        target = self.stage.at(side, self.step, first, beginning, self.start)
        origin = self._address(first, layout.index_map(first, beginning)[1])
        nbytes = rows * (self.pitch * ELEMENT_BYTES) + runs * RUN_BYTES
        return self.stage.behind(side, target, rows, runs), behind(origin, nbytes, self.source.dtype)

    def _address(self, row: Any, run: Any) -> Any:
        matrix = [self.z] if self.tiling.gemm.batch > 1 else []
        return address(self.source, [*matrix, *self.at(row, run)])

    def inside(self, m: Any) -> Any | None:
        """The condition that the operand has what is copied; None where that is certain."""
        from tvm import tirx

        side, tiling, gemm = self.side, self.tiling, self.tiling.gemm
        dtype = str(self.row.ty.dtype)

        def symbol(value: Dim) -> Any:
            made = evaluate_symbolic(value, None if m is None else m.astype(dtype))
            return tirx.const(made, dtype) if isinstance(made, int) else made

        own = (gemm.m_dim if side.operand == "a" else gemm.n, side.extent)
        deep = (gemm.k, side.depth * tiling.split)
        (rows, row_block), (columns, column_block) = (own, deep) if side.k_major else (deep, own)
        if side.source:
            # Rows of a copy with aligned rows go on with zeros to the end of a run.
            columns = expr.make("mul", expr.ceildiv(columns, RUN), RUN)
        at = self.at(self.row, self.run)
        conditions = [
            index < symbol(limit)
            for index, limit, block in zip(at, (rows, columns), (row_block, column_block), strict=True)
            if not (isinstance(limit, int) and limit % block == 0)
        ]
        return tirx.all(*conditions) if len(conditions) > 1 else conditions[0] if conditions else None


def _in_32_bits(side: Side, pitch: Any) -> bool:
    """Whether the bytes from a tile's first row to its last are known and fit a signed integer."""
    from tvm.tirx import IntImm

    return isinstance(pitch, IntImm) and side.rows * int(pitch) * ELEMENT_BYTES < 2**31
