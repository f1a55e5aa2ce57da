"""The problem over whole tiles, before scheduling: what the tensor-core families have in common of it.

``a_tile`` and ``b_tile`` copy an operand to tiles of runs of 16 bytes, zero outside it, so that nothing behind them has
edges; the tile's layout says which run goes where. A family reads its fragments from the tiles and sums them; the
``epilogue`` block writes what lies inside D, or the fp32 parts of a split. Loops are (batch, part, block row or column,
...).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from tirgemm import expr
from tirgemm.expr import Dim
from tirgemm.families.common.parameters import StagedWriter, tiles_reach
from tirgemm.families.tensorcore.tiling import PART_WIDTH, RUN, Side, Tiling
from tirgemm.gemm import DTYPE_NAMES, Operand
from tirgemm.workload import index_dtype, named

PARTIALS = "partials"


def _reach(tiling: Tiling) -> int:
    """The largest offset, in elements, that whole tiles take: of the tensors, of copies with aligned rows, of a split's
    parts."""
    copies: dict[Operand, tuple[Dim, Dim]] = {
        side.operand: (side.source.ld, side.source.stride) for side in tiling.sides if side.source
    }
    depth = tiling.split * tiling.steps * tiling.tile_k
    reach = tiles_reach(tiling.gemm, tiling.tile_m, tiling.tile_n, depth, copies)
    if tiling.split == 1:
        return reach
    parts = expr.evaluate(tiling.partial_elements, tiling.gemm.m_max)
    return max(reach, parts + tiling.tile_m * tiling.partial_pitch + tiling.tile_n)


class Writer(StagedWriter):
    """Writes a PrimFunc ``symbol`` of ``gemm`` under ``tiling``; ``reach``: an offset that must fit the index dtype."""

    def __init__(self, tiling: Tiling, symbol: str, reach: int = 0) -> None:
        super().__init__(tiling.gemm, index_dtype(tiling.gemm, max(_reach(tiling), reach)), symbol)
        self.tiling = tiling
        self.partials: Any = None

    def declare_partials(self) -> None:
        shape = [self.tiling.split, self.gemm.batch, self.gemm.m_dim, self.tiling.partial_pitch]
        buffer = self.tir.buffer([self.dim(extent) for extent in shape], "float32", align=16)
        self.partials = self.tir.arg(PARTIALS, buffer)


class StagedGemm(Writer):
    """The kernel that multiplies; a family says what lies between tiles and sums.

    Parameters: a, b (or their copies), then c, bias, d and the scalars, or the partial sums where k is split, then m
    where it is a range.
    """

    def write(self) -> None:
        self.declare_size()
        self.sources = {side.operand: self._source(side) for side in self.tiling.sides}
        if self.tiling.split > 1:
            self.declare_partials()
        else:
            self.declare_outputs()
        self.declare_m()
        self._allocate()
        for side in self.tiling.sides:
            self._copy(side)
        self.write_sums()
        self._epilogue()

    # -- what a family says --------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def sum_loops(self) -> tuple[int, ...]:
        """Extents of the loops over the sums of a block; the sums are a tensor of that shape for each block."""

    @property
    def epilogue_loops(self) -> tuple[int, ...]:
        """Extents of the loops over the outputs of a block."""
        return self.sum_loops

    @abstractmethod
    def place_of_sum(self, at: list[Any]) -> tuple[Any, Any]:
        """Row and column within the block of the output at ``at`` of ``epilogue_loops``."""

    def sum_of(self, at: list[Any]) -> list[Any]:
        """Where the sum of the output at ``at`` of ``epilogue_loops`` is, as indices of ``sum_loops``."""
        return at

    def sums_around(self, at: list[Any]) -> list[Any] | None:  # noqa: ARG002
        """The sums, as indices and slices, that the schedule takes that output to need; None for its own alone."""
        return None

    @abstractmethod
    def write_sums(self) -> None:
        """The blocks from the tiles to ``self.sums``."""

    # -- tensors ------------------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        T, gemm, tiling = self.tir, self.gemm, self.tiling
        self.outer = [self.dim(gemm.batch), self.dim(tiling.split)]
        self.block_rows = self.dim(tiling.rows_of_blocks)
        self.block_columns = self.dim(tiling.columns_of_blocks)
        self.steps = self.dim(tiling.steps)
        dtype = DTYPE_NAMES[gemm.dtype]
        self.tiles = {
            side.operand: named(
                f"{side.operand}_tile",
                T.sblock_alloc_buffer([*self.outer, self.along(side), self.steps, *self._stage(side)], dtype),
            )
            for side in tiling.sides
        }
        shape = [*self.outer, self.block_rows, self.block_columns, *(self.dim(d) for d in self.sum_loops)]
        self.acc = DTYPE_NAMES[gemm.acc]
        self.sums = named("acc", T.sblock_alloc_buffer(shape, self.acc))

    def _stage(self, side: Side) -> list[Any]:
        return [self.dim(side.rows), self.dim(side.runs), self.dim(RUN)]

    def along(self, side: Side) -> Any:
        """Blocks along the operand's own dimension."""
        return self.block_rows if side.operand == "a" else self.block_columns

    def _source(self, side: Side) -> Any:
        """The operand as the kernel reads it: itself, or its copy with aligned rows."""
        if side.source is None:
            return self.tir.arg(side.operand, self.tensor(side.operand))
        item = side.source
        shape: list[Dim] = [item.rows, item.columns]
        strides: list[Dim] = [item.ld, 1]
        if self.gemm.batch > 1:
            shape, strides = [item.batch, *shape], [item.stride, *strides]
        dims = ([self.dim(d) for d in part] for part in (shape, strides))
        dtype = DTYPE_NAMES[self.gemm.dtype]
        return self.tir.arg(item.name, self.tir.buffer(next(dims), dtype, strides=next(dims), align=16))

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _copy(self, side: Side) -> None:
        """``a_tile`` or ``b_tile``: each place of the tile takes the run that its layout puts there, zero outside."""
        T, gemm, tiling = self.tir, self.gemm, self.tiling
        source, tile = self.sources[side.operand], self.tiles[side.operand]
        size = gemm.m_dim if side.operand == "a" else gemm.n
        loops_over = [*self.outer, self.along(side), self.steps, *self._stage(side)]
        with T.grid(*loops_over) as loops, T.sblock(f"{side.operand}_tile"):
            z, part, block, step, row, place, e = at = T.axis.remap("S" * 7, list(loops))
            _, run = side.layout.index_map(row, place)  # XOR is its own inverse
            column = run * RUN + e
            own, deep = (row, column) if side.k_major else (column, row)
            x = block * side.extent + own
            p = (part * self.steps + step) * side.depth + deep
            T.reads(self._whole(source))
            T.writes(tile[tuple(at)])
            value = source[self.place(z, x, p) if side.k_major else self.place(z, p, x)]
            inside = [
                *self.guard(x, size, side.extent),
                *self.guard(p, gemm.k, side.depth * tiling.split),
            ]
            if inside:
                value = self.tirx.if_then_else(self.every(inside), value, self.zero(DTYPE_NAMES[gemm.dtype]))
            T.buffer_store(tile, value, list(at))

    def _whole(self, buffer: Any) -> Any:
        return buffer[tuple(slice(0, extent) for extent in buffer.shape)]

    def _epilogue(self) -> None:
        T, tiling = self.tir, self.tiling
        loops_over = [*self.outer, self.block_rows, self.block_columns, *(self.dim(d) for d in self.epilogue_loops)]
        with T.grid(*loops_over) as loops, T.sblock("epilogue"):
            at = list(T.axis.remap("S" * len(loops), list(loops)))
            row, column = self.place_of_sum(at[4:])
            i, j = at[2] * tiling.tile_m + row, at[3] * tiling.tile_n + column
            # Whole vectors of D lie inside or outside; rows of parts are whole vectors.
            columns, width = (self.gemm.n, tiling.width_d) if tiling.split == 1 else (tiling.partial_pitch, PART_WIDTH)
            around = self.sums_around(at[4:])
            if around is not None:
                T.reads(self.sums[(*at[:4], *around)], *self._read(at[0], i, j))
            inside = [*self.guard(i, self.gemm.m_dim, tiling.tile_m), *self.guard(j, columns, tiling.tile_n, width)]
            if inside:
                with T.If(self.every(inside)), T.Then():
                    self._store(at, i, j)
            else:
                self._store(at, i, j)

    def _read(self, z: Any, i: Any, j: Any) -> list[Any]:
        """What an output needs beside its sum."""
        return [
            *([self.c[self.place(z, i, j)]] if self.c is not None else []),
            *([self.bias[j]] if self.bias is not None else []),
        ]

    def _store(self, at: list[Any], i: Any, j: Any) -> None:
        z, part = at[:2]
        total = self.sums[(*at[:4], *self.sum_of(at[4:]))]
        if self.partials is not None:
            self.tir.buffer_store(self.partials, self.tir.cast(total, "float32"), [part, z, i, j])
            return
        self.finish(total, z, i, j)
