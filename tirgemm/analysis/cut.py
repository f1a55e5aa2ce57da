"""How a config cuts the problem into tiles, for what is said of waves and edges: read from its knobs."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm import expr
from tirgemm.analysis.resources import Coverage, coverage
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm

_ROWS, _COLUMNS, _STEP = ("block_m", "tile_m"), ("block_n", "tile_n"), ("block_k", "tile_k")


@dataclass(frozen=True, slots=True)
class Cut:
    """A tile of D is ``m`` x ``n``, summed ``k`` at a time.

    ``tiles``: of a persistent kernel, whose blocks take tile after tile, how many there are at this m, else None.
    ``even``: whether steps of k are dealt out evenly over the blocks, so that no wave is left half empty.
    """

    m: int
    n: int
    k: int
    tiles: int | None = None
    even: bool = False

    def covering(self, gemm: Gemm, m: int) -> Coverage:
        """What the edges of the matrix waste."""
        return coverage(m, gemm.n, gemm.k, (self.m, self.n, self.k), gemm.batch)


def cut_of(gemm: Gemm, config: Config, device: Device, m: int) -> Cut | None:
    """The cut that ``config`` makes; None for a family whose knobs name no tile."""
    knobs = dict(config.knobs)

    def size(names: tuple[str, ...]) -> int:
        return next((int(knobs[name]) for name in names if name in knobs), 0)

    rows, columns, step = size(_ROWS), size(_COLUMNS), size(_STEP)
    if not rows or not columns:
        return None
    if config.family != "wgmma":
        return Cut(rows, columns, step or gemm.k)
    from tirgemm.families.wgmma.plan import plan

    cut = plan(gemm, config, device.units)
    if cut.swapped:
        rows, columns = columns, rows
    parted = cut.in_cluster or cut.in_memory
    return Cut(rows, columns, step, None if parted else expr.evaluate(cut.work, m) * cut.cluster, cut.stream)
