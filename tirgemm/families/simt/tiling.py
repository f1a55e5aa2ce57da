"""Tiling for CUDA cores: block, warps, lanes, thread tile, copies. Integers only, no TVM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tirgemm import expr
from tirgemm.config import Config
from tirgemm.expr import Dim
from tirgemm.families.common.alignment import access_width, store_width
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand
from tirgemm.hardware import WARP

# Pipeline -> tiles of A and B that shared memory holds at a time.
PIPELINES: dict[str, int] = {"none": 1, "register": 1, "double": 2, "async2": 2, "async3": 3, "async4": 4}
# How a thread gets the elements that it multiplies: from fragments in registers, filled by wide loads from tiles that
# lie k-major, or by scalar loads from tiles that lie as their operands do; from such tiles at every FMA, outer product
# or inner product; or from global memory.
READS = ("fragments", "scalars", "outer", "inner", "global")
# How the lanes of a warp lie over its threads: in rows along n, or in Z order, so that 16 of them are 4 x 4.
LANE_ORDERS = ("row", "z")
# One-dimensional, or rows of blocks by ``raster`` columns in x and the other columns in y.
GRIDS = ("line", "plane")
_ACCESS_BYTES = 16
# Knobs that a tiling has as they are.
_SAME = (
    *("block_m", "block_n", "block_k", "pipeline", "unroll"),
    *("raster", "resident", "reads", "lane_order", "barriers"),
)


@dataclass(frozen=True, slots=True)
class ThreadTiling:
    """A block of ``block_m x block_n`` outputs, summed ``block_k`` at a time by ``warps_m x warps_n`` warps.

    A warp is ``lanes_m x lanes_n`` threads; a thread has ``pieces_m x pieces_n`` pieces of ``piece_m x piece_n``
    outputs, the pieces strided over the block. ``width_*`` are elements of one global access; ``pad_*`` elements
    after each row of a shared tile. The tiles of A and B lie in shared memory in the accumulator's dtype: k-major where
    ``reads`` is "fragments", else as their operands lie.
    """

    block_m: int
    block_n: int
    block_k: int
    warps_m: int
    warps_n: int
    lanes_m: int
    lanes_n: int
    pieces_m: int
    pieces_n: int
    piece_m: int
    piece_n: int
    width_a: int
    width_b: int
    width_d: int
    pad_a: int
    pad_b: int
    element_bytes: int
    buffers: int
    pipeline: str
    unroll: int
    raster: int
    resident: int
    reads: str
    lane_order: str
    plane: bool
    barriers: int

    @property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * self.lanes_m * self.lanes_n

    @property
    def rows(self) -> tuple[int, ...]:
        """block_m cut outside in: pieces, warps, lanes, elements."""
        return (self.pieces_m, self.warps_m, self.lanes_m, self.piece_m)

    @property
    def columns(self) -> tuple[int, ...]:
        return (self.pieces_n, self.warps_n, self.lanes_n, self.piece_n)

    @property
    def shares(self) -> bool:
        """Whether tiles of A and B go through shared memory."""
        return self.reads != "global"

    @property
    def fragments(self) -> bool:
        """Whether each step's operands are read into registers before they are multiplied."""
        return self.reads in ("fragments", "scalars")

    @property
    def fragment_widths(self) -> tuple[int, int]:
        """Elements of one access that fills a fragment, of A and of B: at most 16 bytes; they divide a tile's row.

        So every access is aligned: a row of 128 halves with a pad of 4 leaves accesses of 8 bytes.
        """
        wide = _ACCESS_BYTES // self.element_bytes if self.reads == "fragments" else 1
        row_a, row_b = self.block_m + self.pad_a, self.block_n + self.pad_b
        return math.gcd(min(self.piece_m, wide), row_a), math.gcd(min(self.piece_n, wide), row_b)

    @property
    def shared_bytes(self) -> int:
        if not self.shares:
            return 0
        row = self.block_m + self.pad_a + self.block_n + self.pad_b
        return self.buffers * self.block_k * row * self.element_bytes

    @property
    def prefetches(self) -> bool:
        """Whether the next tiles travel through registers while this step computes."""
        return self.pipeline in ("register", "double")

    @property
    def asynchronous(self) -> bool:
        return self.pipeline.startswith("async")

    @property
    def registers(self) -> int:
        """An estimate of the registers of a thread: accumulators, two steps' fragments, prefetched tiles, addresses."""
        thread_m, thread_n = self.pieces_m * self.piece_m, self.pieces_n * self.piece_n
        words = self.element_bytes / 4
        staged = -(-self.block_k * (self.block_m + self.block_n) // self.threads) if self.prefetches else 0
        # Halves that are loaded one at a time have a register each until they are stored.
        single = (self.block_m if self.width_a == 1 else 0) + (self.block_n if self.width_b == 1 else 0)
        unpacked = self.block_k * single // self.threads if self.prefetches else 0
        return round((thread_m * thread_n + 2 * (thread_m + thread_n) + staged - unpacked) * words) + unpacked + 24


def tiling(gemm: Gemm, config: Config) -> ThreadTiling:
    """The cut that ``config`` means for ``gemm``. Defined for every point of the space, valid or not."""
    knobs: dict[str, Any] = dict(config.knobs)
    thread_m, thread_n = min(knobs["thread_m"], knobs["block_m"]), min(knobs["thread_n"], knobs["block_n"])
    threads_m, threads_n = knobs["block_m"] // thread_m, knobs["block_n"] // thread_n
    piece_m, piece_n = min(knobs["piece"], thread_m), min(knobs["piece"], thread_n)
    asynchronous = knobs["pipeline"].startswith("async")
    lanes_n = knobs["lanes_n"]
    return ThreadTiling(
        **config.part(_SAME),
        warps_m=threads_m * lanes_n // WARP,
        warps_n=threads_n // lanes_n,
        lanes_m=WARP // lanes_n,
        lanes_n=lanes_n,
        pieces_m=thread_m // piece_m,
        pieces_n=thread_n // piece_n,
        piece_m=piece_m,
        piece_n=piece_n,
        width_a=_copy_width(gemm, "a", knobs["vector"], asynchronous),
        width_b=_copy_width(gemm, "b", knobs["vector"], asynchronous),
        width_d=min(store_width(gemm), piece_n) if knobs["reads"] == "fragments" else 1,
        pad_a=knobs["pad"] if transposes(gemm, "a") else 0,
        pad_b=knobs["pad"] if transposes(gemm, "b") else 0,
        element_bytes=DTYPE_BYTES[gemm.acc],
        buffers=PIPELINES[knobs["pipeline"]],
        plane=knobs["grid"] == "plane",
    )


def transposes(gemm: Gemm, operand: Operand) -> bool:
    """Whether copying ``operand`` to its k-major tile turns rows into columns."""
    return not gemm.trans_a if operand == "a" else gemm.trans_b


def blocks(gemm: Gemm, block_m: int, block_n: int) -> Dim:
    """Thread blocks of one launch, an expression in m where m is a range."""
    return expr.make("mul", expr.ceildiv(gemm.m_dim, block_m), gemm.batch * -(-gemm.n // block_n))


def grid(gemm: Gemm, tiling: ThreadTiling) -> tuple[Dim, Dim, Dim]:
    """All blocks in x; as a plane, rows by ``raster`` columns in x, the other columns in y, the batch in z."""
    if not tiling.plane:
        return (blocks(gemm, tiling.block_m, tiling.block_n), 1, 1)
    rows = expr.ceildiv(gemm.m_dim, tiling.block_m)
    columns = -(-gemm.n // tiling.block_n)
    return (expr.make("mul", rows, tiling.raster), columns // tiling.raster, gemm.batch)


def _copy_width(gemm: Gemm, operand: Operand, vector: int, asynchronous: bool) -> int:
    # cp.async copies bytes as they lie: a tile that is turned takes one element at a time.
    return 1 if asynchronous and transposes(gemm, operand) else min(vector, access_width(gemm, operand))
