"""The problem over whole tiles for WMMA: fragments of 16 x 16 x 16 summed over the tiles of a block."""

from __future__ import annotations

from typing import Any

from tirgemm.families.tensorcore.tile_blocks import StagedGemm
from tirgemm.families.tensorcore.tiling import RUN
from tirgemm.families.wmma.tile import FRAGMENT, WmmaTiling

SYMBOL = "wmma_gemm"
_RUNS = FRAGMENT // RUN


class StagedWmma(StagedGemm):
    """Sums are (warp row, warp column, fragment row, row, fragment column, column).

    So a warp's sums lie row by row, in shared memory too, and a fragment is 16 strided rows of them.
    """

    def __init__(self, tiling: WmmaTiling) -> None:
        super().__init__(tiling, SYMBOL)
        self.cut = tiling

    @property
    def sum_loops(self) -> tuple[int, ...]:
        cut = self.cut
        return (cut.warps_m, cut.warps_n, cut.fragments_m, FRAGMENT, cut.fragments_n, FRAGMENT)

    def place_of_sum(self, at: list[Any]) -> tuple[Any, Any]:
        wi, wj, fi, i, fj, j = at
        return self.row(wi, fi) + i, self.column(wj, fj) + j

    def write_sums(self) -> None:
        """One block, ``gemm``; of its loops the last six are a fragment's rows, columns and depth, each in two runs."""
        T, cut = self.tir, self.cut
        around = [*self.outer, self.block_rows, self.block_columns]
        warps = [self.dim(d) for d in (cut.warps_m, cut.warps_n, cut.fragments_m, cut.fragments_n)]
        inside = [self.dim(d) for d in (_RUNS, RUN)]
        depth = [self.steps, self.dim(cut.tile_k // FRAGMENT)]
        loops_over = [*around, *warps, *depth, *inside * 3]
        kinds = "S" * 8 + "RR" + "SSSS" + "RR"
        with T.grid(*loops_over) as loops, T.sblock("gemm"):
            z, part, bi, bj, wi, wj, fi, fj, step, fk, ir, ie, jr, je, kr, ke = T.axis.remap(kinds, list(loops))
            where = [z, part, bi, bj, wi, wj, fi, ir * RUN + ie, fj, jr * RUN + je]
            with T.init():
                T.buffer_store(self.sums, self.zero(self.acc), where)
            rows, columns = (self.row(wi, fi), ir, ie), (self.column(wj, fj), jr, je)
            a = self.factor(0, [z, part, bi, step], rows, (fk * FRAGMENT, kr, ke))
            b = self.factor(1, [z, part, bj, step], columns, (fk * FRAGMENT, kr, ke))
            T.buffer_store(self.sums, self.sums[tuple(where)] + a * b, where)

    def factor(self, number: int, tile: list[Any], own: tuple[Any, ...], deep: tuple[Any, ...]) -> Any:
        """An element of a tile, in the accumulator's dtype; places are (start, run, element)."""
        side = self.tiling.sides[number]
        (r, r_run, r_element), (c, c_run, c_element) = (own, deep) if side.k_major else (deep, own)
        row = r + r_run * RUN + r_element
        at = (*tile, row, c // RUN + c_run, c_element)
        return self.tir.cast(self.tiles[side.operand][at], self.acc)

    def row(self, warp: Any, fragment: Any) -> Any:
        return (warp * self.cut.fragments_m + fragment) * FRAGMENT

    def column(self, warp: Any, fragment: Any) -> Any:
        return (warp * self.cut.fragments_n + fragment) * FRAGMENT
