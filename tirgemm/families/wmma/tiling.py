"""How a config cuts the problem for WMMA: the tensor-core families' tiling in fragments, padded rows. No TVM."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tirgemm.config import Config
from tirgemm.families.tensorcore.names import LINE, NONE, PADDED, STAGED
from tirgemm.families.tensorcore.tiling import RUN, RUN_BYTES, Side, Tiling, output_width, side
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand
from tirgemm.hardware import WARP
from tirgemm.layouts import Layout

# Rows, columns and depth of a fragment.
FRAGMENT = 16
# Elements after each row of the sums in shared memory: what one store of a fragment writes then lies in all banks.
STAGED_PAD = 8


# How many times larger a buffer may be than one that takes its place.
_MOST_SHARED_BY = 16
# An accumulator's registers by the accumulator's dtype; a factor's, of which two steps are under way.
SUM_REGISTERS = {"f32": 8, "f16": 4}
_FACTOR_REGISTERS = 4
_OTHER_REGISTERS = 40


@dataclass(frozen=True, slots=True)
class WmmaTiling(Tiling):
    """A warp has ``fragments_m x fragments_n`` accumulators of 16 x 16.

    Of the factors there are ``sets``: with two, those of the next 16 of k are loaded while products are computed.
    An SM must hold ``resident`` blocks; 0 says nothing.
    """

    sets: int
    resident: int

    @property
    def fragments_m(self) -> int:
        return self.tile_m // self.warps_m // FRAGMENT

    @property
    def fragments_n(self) -> int:
        return self.tile_n // self.warps_n // FRAGMENT

    @property
    def staged_pitch(self) -> int:
        """Elements from a row of a warp's sums to the next in shared memory."""
        return self.fragments_n * FRAGMENT + STAGED_PAD

    @property
    def staged_bytes(self) -> int:
        """Bytes of the sums in shared memory: one row of fragments of every warp, in the accumulator's dtype."""
        return self.threads // WARP * FRAGMENT * self.staged_pitch * DTYPE_BYTES[self.gemm.acc]

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory: the stages; staged sums take their place, unless they are much smaller.

        So TVM lays them out (``MergeSharedMemoryAllocations``): it does not give a small buffer a large one's place.
        """
        tiles = self.stages * (self.a.nbytes + self.b.nbytes)
        if tiles > _MOST_SHARED_BY * self.staged_bytes:
            return tiles + self.staged_bytes
        return max(tiles, self.staged_bytes)

    @property
    def registers(self) -> int:
        """An estimate of the registers of a thread."""
        return registers_of(self.fragments_m, self.fragments_n, SUM_REGISTERS[self.gemm.acc], self.sets)


def registers_of(fragments_m: int, fragments_n: int, sum_registers: int, sets: int) -> int:
    """An estimate of the registers of a thread: sums, ``sets`` of factors, addresses."""
    factors = _FACTOR_REGISTERS * (fragments_m + fragments_n)
    return fragments_m * fragments_n * sum_registers + sets * factors + _OTHER_REGISTERS


def tiling(gemm: Gemm, config: Config) -> WmmaTiling:
    """The cut that ``config`` means for ``gemm``. Defined for every point of the space, valid or not."""
    warps_m, warps_n = config["warps_m"], config["warps_n"]
    threads = warps_m * warps_n * WARP
    extents: dict[Operand, int] = {"a": config["tile_m"], "b": config["tile_n"]}
    sides = tuple(
        _padded(gemm, operand, extent, config["tile_k"], threads, config["load"], config["pad"])
        for operand, extent in extents.items()
    )
    return WmmaTiling(
        gemm=gemm,
        tile_m=config["tile_m"],
        tile_n=config["tile_n"],
        tile_k=config["tile_k"],
        warps_m=warps_m,
        warps_n=warps_n,
        stages=config["stages"],
        split=config["split"],
        raster=config["raster"],
        shared=PADDED if config["pad"] else NONE,
        epilogue=STAGED,
        resident=config["resident"],
        a=sides[0],
        b=sides[1],
        width_d=output_width(gemm),
        sets=config["sets"],
    )


def _padded(gemm: Gemm, operand: Operand, extent: int, depth: int, threads: int, load: str, pad: int) -> Side:
    """The tile of an operand with ``pad`` elements after each row."""
    plain = side(gemm, operand, extent, depth, threads, NONE, LINE, load)
    return replace(plain, layout=Layout.padded(plain.rows, plain.runs, RUN_BYTES, pad // RUN))
