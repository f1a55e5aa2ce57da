"""Tile work: what the blocks of configs of one problem do, as columns, and the physical features that follow from it.

Only sums, products, quotients and roundings to integers occur here: those are the same to the last bit on every
machine, so that a model's thresholds tell configs apart in the same way everywhere. Trees do without logarithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm.device import Device
from tirgemm.families.common.alignment import access_width, row_alignment
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand, Range, Regime

Features = dict[str, Any]
_OPERANDS: tuple[Operand, ...] = ("a", "b", "d")
# Where a device does not say what it can do. Trees learn from the records' device what a share of it is worth.
_CLOCK_MHZ, _GBPS, _TFLOPS = 1500.0, 500.0, 100.0


@dataclass(frozen=True, slots=True)
class TileWork:
    """Arrays of one length, or numbers; NaN where a family does not say.

    ``rows``, ``columns``: outputs along the tile's rows and columns, which are D's, or D's transposed. ``loaded_m``,
    ``loaded_n``: rows and columns of operands that a block loads for a step, less what its cluster's blocks load for
    it. ``work``: tiles, or clusters of tiles, in all; ``slots`` so many run at once. ``cluster``: blocks of a cluster.
    ``wave_m``, ``wave_n``: outputs along rows and columns that run at once; ``passes``: how often the operand across
    the raster is read. ``step_clocks``: of the instructions of one step of k. ``piece_m``, ``piece_n``: bytes that a
    thread loads at once of the operands along the tile's rows and columns, 0 where TMA loads them; ``loaders``: threads
    that do; ``repacked``: bytes of copies of the operands that a kernel writes before.
    """

    rows: Any
    columns: Any
    tile_m: Any
    tile_n: Any
    tile_k: Any
    loaded_m: Any
    loaded_n: Any
    cluster: Any
    work: Any
    slots: Any
    split: Any
    stages: Any
    resident: Any
    threads: Any
    accumulators: Any
    second_kernel: Any = 0
    wave_m: Any = np.nan
    wave_n: Any = np.nan
    passes: Any = np.nan
    step_clocks: Any = np.nan
    piece_m: Any = np.nan
    piece_n: Any = np.nan
    loaders: Any = np.nan
    repacked: Any = 0


@lru_cache(maxsize=64)
def problem_features(gemm: Gemm, regime: Regime) -> Mapping[str, Any]:
    """What does not depend on the config."""
    m, n, nbytes, d_bytes = gemm.m_max, gemm.n, gemm.nbytes, gemm.span("d") * DTYPE_BYTES[gemm.out]
    return {
        "isolated": regime == "isolated",
        "flops": gemm.flops,
        "bytes": nbytes,
        "intensity": gemm.flops / nbytes,
        "short_side": min(m, n),
        "long_side": max(m, n),
        "batch": gemm.batch,
        "d_bytes": d_bytes,
        "d_share": d_bytes / nbytes,
        "in_bytes": DTYPE_BYTES[gemm.dtype],
        "out_bytes": DTYPE_BYTES[gemm.out],
        "bf16": gemm.dtype == "bf16",
        "acc_f16": gemm.acc == "f16",
        "trans_a": gemm.trans_a,
        "trans_b": gemm.trans_b,
        "align": gemm.align,
        "epilogue": gemm.alpha + gemm.bias + (gemm.act != "none"),
        "reads_c": gemm.beta,
        "deterministic": gemm.deterministic,
        "ranged": isinstance(gemm.m, Range),
        **{f"access_width_{operand}": access_width(gemm, operand) for operand in _OPERANDS},
        **{f"row_alignment_{operand}": row_alignment(gemm, operand) for operand in _OPERANDS},
    }


def physical_features(gemm: Gemm, work: TileWork, us: Any, device: Device, regime: Regime) -> Features:
    """Every feature of configs that do ``work``: numbers, or arrays of one length; ``us`` is their estimate."""
    size, deep = DTYPE_BYTES[gemm.dtype], gemm.k
    known = problem_features(gemm, regime)
    nbytes = known["bytes"]
    clock = float(device.clock_mhz or _CLOCK_MHZ)
    memory_us = nbytes / ((device.peak_gbps or _GBPS) * 1e3)
    rates = dict(device.peak_tflops)
    flops_per_us = rates.get("f16_acc16" if gemm.acc == "f16" else gemm.dtype, _TFLOPS) * 1e6
    l2_bytes = float(device.limits.l2_bytes) or np.nan
    shared_bytes = float(device.limits.shared_per_sm) or np.nan
    registers = float(device.limits.registers_per_sm) or np.nan

    # As floats: products of sizes need no 64-bit integers then, and a part of nothing is NaN instead of an error.
    rows, columns, tile_m, tile_n, tile_k = map(
        _floats, (work.rows, work.columns, work.tile_m, work.tile_n, work.tile_k)
    )
    split, stages, resident, cluster = map(_floats, (work.split, work.stages, work.resident, work.cluster))
    tiles, slots = _floats(work.work), _floats(work.slots)
    padded_m, padded_n = np.ceil(rows / tile_m) * tile_m, np.ceil(columns / tile_n) * tile_n
    part = np.ceil(np.ceil(deep / tile_k) / split)
    waves = np.ceil(tiles / slots)
    steps = waves * part * resident
    blocks = tiles * cluster
    stage = size * tile_k * (tile_m + tile_n)
    loaded = size * tile_k * (work.loaded_m + work.loaded_n)
    staged = stage * stages * resident
    through_l2 = blocks * part * loaded
    tensor_us = waves * slots * cluster * 2.0 * tile_m * tile_n * tile_k * part / flops_per_us
    step_us = steps * work.step_clocks / clock
    port_us = steps * loaded / clock
    l2_us = through_l2 / (device.units * clock)
    latency_us = steps / np.maximum(1.0, (stages - 1) * resident) / clock
    partials = work.second_kernel * 8.0 * split * gemm.batch * gemm.m_max * gemm.n
    piece_m, piece_n = _floats(work.piece_m), _floats(work.piece_n)
    in_pieces = _quotient(tile_m, piece_m) + _quotient(tile_n, piece_n)
    copies = size * tile_k * in_pieces / work.loaders
    wave_depth = size * (np.minimum(work.wave_m, rows) + np.minimum(work.wave_n, columns))
    across = np.where(np.asarray(work.wave_m) >= work.wave_n, columns, rows) * (size * deep)
    return {
        **known,
        "l2_share": nbytes / l2_bytes,
        "rows": rows,
        "columns": columns,
        "tile_m": tile_m,
        "tile_n": tile_n,
        "tile_k": tile_k,
        "tile_area": tile_m * tile_n,
        "tile_aspect": tile_m / tile_n,
        "tile_intensity": tile_m * tile_n / (tile_m + tile_n),
        "fill_m": rows / padded_m,
        "fill_n": columns / padded_n,
        "fill_k": deep / (part * split * tile_k),
        "fill": rows * columns / (padded_m * padded_n),
        "tiles_m": padded_m / tile_m,
        "tiles_n": padded_n / tile_n,
        "work": tiles,
        "blocks": blocks,
        "blocks_per_unit": blocks / (device.units * resident),
        "waves": waves,
        "wave_fill": tiles / slots / waves,
        "tail": waves - tiles / slots,
        "busy_units": np.minimum(1.0, blocks / device.units),
        "useful": gemm.flops / (2.0 * waves * slots * cluster * tile_m * tile_n * part * tile_k),
        "steps": steps,
        "part_steps": part,
        "stages": stages,
        "fill_share": stages / (part * waves),
        "stages_per_part": stages / part,
        "resident": resident,
        "cluster": cluster,
        "split": split,
        "second_kernel": work.second_kernel,
        "stage_bytes": stage,
        "loaded_bytes": loaded,
        "load_reuse": stage / loaded,
        "flying_bytes": stage * (stages - 1) * resident,
        "staged_bytes": staged,
        "shared_share": staged / shared_bytes,
        "threads": work.threads * resident,
        "accumulators": work.accumulators,
        "register_share": work.accumulators * work.threads * resident / registers,
        "tensor_us": tensor_us,
        "step_us": step_us,
        "port_us": port_us,
        "l2_us": l2_us,
        "memory_us": memory_us,
        "latency_us": latency_us,
        "step_to_l2": step_us / l2_us,
        "step_to_memory": step_us / memory_us,
        "step_to_port": step_us / port_us,
        "step_to_tensor": step_us / tensor_us,
        "tensor_to_l2": tensor_us / l2_us,
        "tensor_to_memory": tensor_us / memory_us,
        "l2_to_memory": l2_us / memory_us,
        "latency_to_step": latency_us / step_us,
        "l2_bytes": through_l2,
        "l2_reuse": through_l2 / nbytes,
        "partials_share": partials / nbytes,
        "estimate_us": us,
        "estimate_rate": gemm.flops / us,
        "bound_share": np.maximum(np.maximum(step_us, 2 * l2_us), np.maximum(memory_us, port_us)) / us,
        "memory_share": memory_us / us,
        "step_share": step_us / us,
        "l2_time_share": l2_us / us,
        "latency_share": latency_us / us,
        "tensor_share": tensor_us / us,
        "wave_step_bytes": wave_depth * tile_k,
        "wave_l2_share": wave_depth * part * tile_k / l2_bytes,
        "wave_share": wave_depth * part * tile_k / nbytes,
        "passes": work.passes,
        "across_l2_share": across / l2_bytes,
        "read_again": (work.passes - 1) * across / nbytes,
        "stored_per_block": waves * tile_m * tile_n,
        "piece_bytes": np.minimum(np.where(piece_m > 0, piece_m, 16), np.where(piece_n > 0, piece_n, 16)),
        "copies_per_step": copies,
        "copies": steps * copies,
        "copies_to_step": copies / work.step_clocks,
        "repacked_share": work.repacked / nbytes,
    }


def _quotient(size: Any, piece: Any) -> Any:
    """How many pieces: none of no bytes."""
    return np.where(piece > 0, size / np.where(piece > 0, piece, 1.0), 0.0)


def _floats(values: Any) -> npt.NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)
