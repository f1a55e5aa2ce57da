"""Tiling for mma.sync and WMMA: block, warps, stages, split, shared layouts, copies. No TVM.

A tile lies in shared memory as rows of *runs* of 16 bytes, eight elements: what cp.async writes and a row of ldmatrix
reads at once. Rows run along the operand's contiguous dimension: k where it is k-major, else m or n.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tirgemm import expr
from tirgemm.device import Device
from tirgemm.errors import InvalidGemm
from tirgemm.expr import Dim
from tirgemm.families.base import SharedTile
from tirgemm.families.common.aligned_copy import AlignedCopy
from tirgemm.families.common.alignment import access_width
from tirgemm.families.tensorcore.names import COPY, HALF, PADDED, PERMUTED, REPACK, STAGED
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand, Range
from tirgemm.hardware import ARCHITECTURES, MAX_GRID, WARP
from tirgemm.layouts import Layout, Swizzle, TiledCopy

ELEMENT_BYTES = 2
RUN = 8
RUN_BYTES = RUN * ELEMENT_BYTES
LINE_BYTES = 128
# k of one tensor-core instruction, for both families.
MMA_K = 16
# The narrowest cp.async, in elements.
LEAST_WIDTH = 2
# The largest tile of either family along m or n.
LARGEST_TILE = 256
OPERANDS: tuple[Operand, ...] = ("a", "b")
# Rows of the parts of a split are multiples of so many sums.
PART_WIDTH = 4
# Rows of a warp that leave through shared memory together, and the unused sums behind each: what an instruction's lanes
# store at once then lies in all banks.
STAGED_ROWS = 16
STAGED_PAD = 8


@dataclass(frozen=True, slots=True)
class Side:
    """The tile of one operand: ``extent`` outputs along its own dimension by ``depth`` along k.

    ``layout`` places its runs (rows by runs of a row); ``width`` elements are copied at once, by ``threads`` threads
    of which neighbours copy ``across`` runs of a row. ``source`` describes the copy with aligned rows where the operand
    is repacked first.
    """

    operand: Operand
    extent: int
    depth: int
    k_major: bool
    layout: Layout
    width: int
    threads: int
    across: int
    source: AlignedCopy | None

    @property
    def rows(self) -> int:
        return self.extent if self.k_major else self.depth

    @property
    def runs(self) -> int:
        """Runs of a row."""
        return (self.depth if self.k_major else self.extent) // RUN

    @property
    def nbytes(self) -> int:
        """Bytes of a stage."""
        return self.layout.nbytes

    @property
    def row_threads(self) -> int:
        """Threads that copy one row's part at a time."""
        return self.across * RUN // self.width

    @property
    def whole(self) -> bool:
        """Whether copies of all threads cover the tile without a rest."""
        down = self.threads // self.row_threads
        return self.threads % self.row_threads == 0 and down > 0 and self.rows % down == 0

    @property
    def turn(self) -> tuple[int, int] | None:
        """Rows and runs that all threads copy at once; None where later turns do not do the same so much further on.

        That they do takes whole turns, and a permutation that leaves a turn's runs among themselves in the same order.
        """
        if not self.whole:
            return None
        rows, runs = self.threads // self.row_threads, self.across
        at, place = np.meshgrid(np.arange(self.rows), np.arange(self.runs), indexing="ij")
        near = self.layout.index_map(at % rows, place % runs)[1]
        same = self.layout.index_map(at, place)[1] == near + place // runs * runs
        return (rows, runs) if same.all() else None

    @property
    def copy(self) -> TiledCopy:
        """Threads and values of one copy, in rows (along m or n) and columns (along k) of the tile."""
        if self.k_major:
            return TiledCopy.row_major(self.threads, self.across * RUN, self.width)
        return TiledCopy.column_major(self.threads, self.across * RUN, self.width)


@dataclass(frozen=True, slots=True)
class Tiling:
    """A block of ``tile_m x tile_n`` outputs, summed ``tile_k`` at a time by ``warps_m x warps_n`` warps.

    ``split`` parts of k have ``steps`` tiles each, ``stages`` of them in flight. ``raster`` columns of blocks are
    neighbours in time. ``resident`` blocks must fit an SM, which bounds a thread's registers; 0 leaves them to the
    compiler. ``width_d`` elements of D are stored at once.
    """

    gemm: Gemm
    tile_m: int
    tile_n: int
    tile_k: int
    warps_m: int
    warps_n: int
    stages: int
    split: int
    raster: int
    epilogue: str
    resident: int
    a: Side
    b: Side
    width_d: int

    @property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * WARP

    @property
    def warp_m(self) -> int:
        """Outputs of a warp along m."""
        return self.tile_m // self.warps_m

    @property
    def warp_n(self) -> int:
        return self.tile_n // self.warps_n

    @property
    def steps(self) -> int:
        """Tiles of k of one part."""
        tiles = -(-self.gemm.k // self.tile_k)
        return -(-tiles // self.split)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.a, self.b

    @property
    def staged_pitch(self) -> int:
        """Sums from a row to the next in a warp's part of shared memory, where they leave that way."""
        return self.warp_n + STAGED_PAD

    @property
    def staged_bytes(self) -> int:
        """Bytes of the sums in shared memory, sixteen rows of every warp."""
        if self.epilogue != STAGED:
            return 0
        return self.threads // WARP * STAGED_ROWS * self.staged_pitch * DTYPE_BYTES[self.gemm.acc]

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory: the stages; the outputs take their place after the last step."""
        return max(self.stages * (self.a.nbytes + self.b.nbytes), self.staged_bytes)

    @property
    def shared_tile(self) -> SharedTile:
        """A's tile for pictures, by elements; the tiles of both operands follow one another."""
        return SharedTile(self.a.layout.recast(ELEMENT_BYTES), self.a.copy, self.a.nbytes + self.b.nbytes)

    @property
    def rows_of_blocks(self) -> Dim:
        return expr.ceildiv(self.gemm.m_dim, self.tile_m)

    @property
    def columns_of_blocks(self) -> int:
        return -(-self.gemm.n // self.tile_n)

    @property
    def blocks(self) -> Dim:
        """Thread blocks of the kernel that multiplies."""
        return expr.make("mul", self.rows_of_blocks, self.columns_of_blocks * self.gemm.batch * self.split)

    @property
    def grid(self) -> tuple[Dim, Dim, Dim]:
        """All blocks in x; where m is a range, rows by ``raster`` columns in x, other columns in y, the rest in z."""
        if not isinstance(self.gemm.m, Range):
            return (self.blocks, 1, 1)
        columns = self.columns_of_blocks
        return (
            expr.make("mul", self.rows_of_blocks, self.raster),
            columns // self.raster,
            self.gemm.batch * self.split,
        )

    @property
    def partial_pitch(self) -> int:
        """Elements from a row to the next of the partial sums."""
        return -(-self.gemm.n // PART_WIDTH) * PART_WIDTH

    @property
    def partial_elements(self) -> Dim:
        """Elements of the partial sums of all parts."""
        return expr.make("mul", self.gemm.m_dim, self.split * self.gemm.batch * self.partial_pitch)


def k_major(gemm: Gemm, operand: Operand) -> bool:
    """Whether k is the contiguous dimension of A or B in memory."""
    return not gemm.trans_a if operand == "a" else gemm.trans_b


@lru_cache(maxsize=1024)
def shared_layout(kind: str | int, rows: int, runs: int) -> Layout:
    """A tile's runs of 16 bytes in shared memory, ``runs`` a row.

    ``permuted``: eight rows' runs of one column, which ldmatrix reads together, lie in eight different places of 128
    bytes; rows of 16 and 32 bytes share such a line, so that they move by a part of it alone. ``padded``: a run
    after each row; a number: so many of them.
    """
    if kind == PADDED or isinstance(kind, int):
        return Layout.padded(rows, runs, RUN_BYTES, 1 if kind == PADDED else int(kind))
    if kind == PERMUTED and runs > 1:
        bits = runs.bit_length() - 1
        return Layout.permuted(rows, runs, RUN_BYTES, Swizzle(min(3, bits), 0, max(3, bits)))
    return Layout.plain(rows, runs, RUN_BYTES)


@lru_cache(maxsize=64)  # every config of a problem asks for it
def repacked(gemm: Gemm, operand: Operand) -> AlignedCopy | None:
    """The copy of A or B whose rows are whole runs, or None where 16 bytes are copied of the operand itself.

    Raises InvalidGemm where it takes more than 16 GiB.
    """
    width = access_width(gemm, operand)
    return None if width == RUN else AlignedCopy.of(gemm, operand, width, width)


def repacked_bytes(gemm: Gemm, load: str) -> int:
    """Bytes of the copies of A and B that the knob ``load`` asks for, at the largest m."""
    if load != REPACK:
        return 0
    items = (repacked(gemm, operand) for operand in OPERANDS)
    return sum(expr.evaluate(item.nbytes, gemm.m_max) for item in items if item)


def side(
    gemm: Gemm, operand: Operand, extent: int, depth: int, threads: int, shared: str | int, copy: str, load: str
) -> Side:
    """The tile of A or B under the knobs ``shared``, ``copy`` and ``load``."""
    # Rows are whole copies: compute-sanitizer calls one of which fewer bytes are asked for an invalid read where the
    # rest lies behind the operand.
    width = access_width(gemm, operand)
    source = repacked(gemm, operand) if load == REPACK else None
    if source is not None:
        width = RUN
    major = k_major(gemm, operand)
    rows, runs = (extent, depth // RUN) if major else (depth, extent // RUN)
    line = LINE_BYTES // RUN_BYTES // (2 if copy == HALF else 1)
    layout = shared_layout(shared, rows, runs)
    return Side(operand, extent, depth, major, layout, width, threads, min(runs, line), source)


def loads(gemm: Gemm) -> tuple[str, ...]:
    """The ways in which A and B can reach shared memory, simplest first; none where a copy of one would be too
    large."""
    widths = [access_width(gemm, operand) for operand in OPERANDS]
    ways = (COPY,) if min(widths) >= LEAST_WIDTH else ()
    if min(widths) == RUN:
        return ways
    try:
        for operand in OPERANDS:
            repacked(gemm, operand)
    except InvalidGemm:
        return ways
    return (*ways, REPACK)


def unsupported(gemm: Gemm, device: Device, family: str) -> str | None:
    """Why a tensor-core family does not write ``gemm`` for ``device``, or None."""
    if device.kind != "cuda":
        return f"{family} kernels run on NVIDIA GPUs, not on {device.kind} {device.model}"
    if device.arch not in ARCHITECTURES:
        return f"{family} kernels are compiled for {', '.join(ARCHITECTURES)}, not for {device.arch}"
    if DTYPE_BYTES[gemm.dtype] != ELEMENT_BYTES:
        return f"{family} multiplies f16 and bf16, not {gemm.dtype}"
    if not loads(gemm):
        return (
            "rows of A or B are aligned to 2 bytes, which cp.async cannot copy, and an aligned copy takes over 16 GiB"
        )
    tile = LARGEST_TILE
    blocks = -(-gemm.m_max // tile) * -(-gemm.n // tile) * gemm.batch
    if blocks > MAX_GRID[0]:
        return f"even blocks of {tile}x{tile} outputs are {blocks} blocks; the driver takes at most {MAX_GRID[0]}"
    if isinstance(gemm.m, Range) and max(-(-gemm.n // tile), gemm.batch) > MAX_GRID[1]:
        return (
            f"m is a range, n makes {-(-gemm.n // tile)} columns of blocks, batch is {gemm.batch}; both may be "
            f"{MAX_GRID[1]}"
        )
    return None
