"""``TileWork`` columns and time estimates of many ``wgmma`` configs at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm.device import Device
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.tile_work import TileWork
from tirgemm.families.wgmma.estimate import (
    CONSTANTS,
    Cuts,
    cluster_slots,
    consumers_of,
    estimate_us,
    loaded_columns,
    loaded_rows,
)
from tirgemm.families.wgmma.planning.alignment import copied_at_once, loaded_by_tma
from tirgemm.families.wgmma.planning.copies import COPYING_THREADS
from tirgemm.families.wgmma.planning.names import BLOCK, CLUSTER, COPY, DIRECT, KERNEL, PINGPONG, TMA
from tirgemm.families.wgmma.planning.staging import staged_bytes
from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES, MMA_K
from tirgemm.families.wgmma.planning.warpgroups import MMA_M, WARPGROUP
from tirgemm.families.wgmma.space import epilogues
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand, Regime

_OPERANDS: tuple[Operand, ...] = ("a", "b")


def cuts_of(configs: ConfigColumns) -> Cuts:
    """What the analytic model sees of configs."""
    split, kernel = side_by_side(configs), configs["reduction"] == KERNEL
    partials = kernel & (split > 1)
    return Cuts(
        configs["tile_m"],
        configs["tile_n"],
        configs["tile_k"],
        configs["stages"],
        configs["schedule"] == PINGPONG,
        configs["resident"],
        configs["cluster_m"],
        configs["cluster_n"],
        configs["swap"],
        split,
        partials,
        ~partials & (configs["epilogue"] == TMA),
        configs["load"] == COPY,
    )


def side_by_side(configs: ConfigColumns) -> npt.NDArray[np.int64]:
    """Parts of k that different blocks compute side by side."""
    parts: npt.NDArray[np.int64] = np.where(configs["reduction"] == BLOCK, 1, configs["split"])
    return parts


def usual_epilogue(gemm: Gemm, swap: Any) -> Any:
    """How D leaves the tiles of configs without tuning, whose operands are swapped where ``swap`` says so. Outputs of
    four bytes that would be turned in shared memory go from the registers, which takes as long."""
    turned = np.asarray(swap, bool) & (DTYPE_BYTES[gemm.out] > ELEMENT_BYTES)
    return np.where(turned, DIRECT, epilogues(gemm)[0])


def staging_bytes(configs: ConfigColumns, gemm: Gemm, *, narrowed: Any) -> Any:
    """Bytes of shared memory through which D leaves where a config without tuning stores it; ``narrowed`` as in
    ``staged_bytes``."""
    unstaged = (configs["reduction"] == KERNEL) & (configs["split"] > 1)
    unstaged = unstaged | (usual_epilogue(gemm, configs["swap"]) == DIRECT)
    consumers = consumers_of(configs["tile_m"], configs["schedule"] == PINGPONG)
    size = DTYPE_BYTES[gemm.out]
    return np.where(unstaged, 0, staged_bytes(consumers, configs["tile_n"], gemm.beta, narrowed=narrowed, size=size))


def estimates_us(gemm: Gemm, configs: ConfigColumns, device: Device, regime: Regime) -> Any:
    """Microseconds that the analytic model gives each of ``configs``."""
    return estimate_us(cuts_of(configs), gemm, device, regime)


def tile_work(gemm: Gemm, configs: ConfigColumns, device: Device) -> TileWork:
    """What the blocks of ``configs`` do."""
    cuts = cuts_of(configs)
    tile_m, tile_n, split = cuts.tile_m, cuts.tile_n, cuts.split
    rows, columns = np.where(cuts.swap, gemm.n, gemm.m_max), np.where(cuts.swap, gemm.m_max, gemm.n)
    in_cluster = (split > 1) & (configs["reduction"] == CLUSTER)
    cluster = np.where(in_cluster, split, cuts.cluster_m * cuts.cluster_n)
    high, wide = -(-rows // (tile_m * cuts.cluster_m)), -(-columns // (tile_n * cuts.cluster_n))
    slices = gemm.batch * np.where(cuts.kernel, split, 1)
    work = high * wide * slices
    slots = cluster_slots(cuts, cluster, device)
    consumers = consumers_of(configs["tile_m"], cuts.pingpong)

    # A wave's clusters: groups of so many along the raster's order, crossed along the other dimension.
    by_rows = configs["order"] != "n"
    along, across = np.where(by_rows, high, wide), np.where(by_rows, wide, high)
    group = np.minimum(configs["group"], along)
    together = np.minimum(slots, high * wide)
    crossed = np.minimum(across, np.maximum(1.0, together / group))
    grouped = np.minimum(along, group * np.maximum(1.0, together / (group * across)))

    piece = {operand: np.where(cuts.copied, nbytes, 0) for operand, nbytes in copied_at_once(gemm).items()}
    unaligned = sum(gemm.span(operand) for operand in _OPERANDS if not loaded_by_tma(gemm, operand))

    c = CONSTANTS["sustained"]
    columns_clocks = np.maximum(tile_n / 2, c.wgmma_clocks + c.wgmma_clocks_per_column * tile_n)
    return TileWork(
        rows,
        columns,
        tile_m,
        tile_n,
        cuts.tile_k,
        loaded_rows(tile_m, cuts.swap, gemm) / cuts.cluster_n,
        loaded_columns(tile_n, cuts.swap, gemm) / cuts.cluster_m,
        cluster,
        work,
        slots,
        split,
        cuts.stages,
        cuts.resident,
        WARPGROUP * (consumers + 1),
        tile_m // MMA_M / np.where(cuts.pingpong, 1, consumers) * tile_n / 2,
        cuts.kernel,
        np.where(by_rows, grouped, crossed) * (tile_m * cuts.cluster_m),
        np.where(by_rows, crossed, grouped) * (tile_n * cuts.cluster_n),
        -(-along // group),
        columns_clocks * (tile_m // MMA_M) * (cuts.tile_k // MMA_K),
        np.where(cuts.swap, piece["b"], piece["a"]),
        np.where(cuts.swap, piece["a"], piece["b"]),
        COPYING_THREADS,
        np.where(cuts.copied, 0, ELEMENT_BYTES * unaligned),
    )
