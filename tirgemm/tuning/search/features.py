"""Features of the cost model: named numbers, pure functions of gemm, config, device and regime.

Shapes enter as logarithms and as what a tile makes of them (waves, quantisation, traffic), so that records of one
shape say something about another. A feature that does not apply is absent, and the model takes it as missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import cast

from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.families.base import Family, WithDerivedKnobs
from tirgemm.families.common.knob_parts import knob_parts
from tirgemm.gemm import DTYPE_BYTES, Gemm, Range, Regime


def features(
    gemm: Gemm, config: Config, device: Device, regime: Regime, family: Family | None = None
) -> dict[str, float]:
    """Every feature of one candidate. ``family`` adds its own analytic estimate, and what it derives from its knobs."""
    feature_values = dict(_problem(gemm, regime))
    feature_values[f"family={config.family}"] = 1.0
    for name, value in config.knobs:
        feature_values.update(_knob(f"{config.family}.{name}", value))
    feature_values.update(_tiling(gemm, dict(config.knobs) | _derived(config, family), device))
    if family is not None:
        us = family.predict_us(gemm, config, device, regime)
        feature_values["log_predicted_us"] = math.log(us)
        feature_values["log_predicted_flops"] = math.log(gemm.flops / us)
    return feature_values


def _derived(config: Config, family: Family | None) -> dict[str, Value]:
    # By the class: asking an object whether it follows a protocol takes longer than all that is derived.
    if family is None or not _derives(type(family)):
        return {}
    return dict(cast(WithDerivedKnobs, family).derived_knobs(config))


@lru_cache(maxsize=64)
def _derives(family: type) -> bool:
    return issubclass(family, WithDerivedKnobs)


@lru_cache(maxsize=4096)
def _problem(gemm: Gemm, regime: Regime) -> tuple[tuple[str, float], ...]:
    """What does not depend on the config."""
    feature_values = {
        "log_m": math.log2(gemm.m_max),
        "log_n": math.log2(gemm.n),
        "log_k": math.log2(gemm.k),
        "log_batch": math.log2(gemm.batch),
        "log_flops": math.log2(gemm.flops),
        "log_bytes": math.log2(gemm.nbytes),
        "intensity": gemm.flops / gemm.nbytes,
        "in_bytes": DTYPE_BYTES[gemm.dtype],
        "out_bytes": DTYPE_BYTES[gemm.out],
        "bf16": gemm.dtype == "bf16",
        "acc_f16": gemm.acc == "f16",
        "trans_a": gemm.trans_a,
        "trans_b": gemm.trans_b,
        "log_align": math.log2(gemm.align),
        "epilogue": gemm.alpha + gemm.bias + (gemm.act != "none"),
        "reads_c": gemm.beta,
        "deterministic": gemm.deterministic,
        "ranged": isinstance(gemm.m, Range),
        "isolated": regime == "isolated",
        "k_mod_8": gemm.k % 8 == 0,
        "n_mod_8": gemm.n % 8 == 0,
    }
    return tuple((name, float(value)) for name, value in feature_values.items())


@lru_cache(maxsize=4096)
def _nbytes(gemm: Gemm) -> int:
    return gemm.nbytes


def _knob(name: str, value: Value) -> dict[str, float]:
    """A number as itself, a flag as 0 or 1, a word as an indicator."""
    if isinstance(value, str):
        return {f"{name}={value}": 1.0}
    return {name: float(value)}


def _tiling(gemm: Gemm, knobs: Mapping[str, Value], device: Device) -> dict[str, float]:
    """What the tile makes of the problem: blocks, waves, waste, traffic and room, as far as the knobs say."""
    part = {name: value for name, value in knob_parts(knobs).items() if type(value) is int}
    feature_values: dict[str, float] = {}
    for axis, size in (("m", gemm.m_max), ("n", gemm.n), ("k", gemm.k)):
        if f"tile_{axis}" in part:
            tile = part[f"tile_{axis}"] = part[f"tile_{axis}"] or size
            feature_values[f"fill_{axis}"] = size / (math.ceil(size / tile) * tile)
        if part.get(f"thread_{axis}", 0) > 0:
            micro = part[f"thread_{axis}"]
            feature_values[f"micro_fill_{axis}"] = size / (math.ceil(size / micro) * micro)
    bm, bn, bk = (part.get(f"tile_{axis}", 0) for axis in "mnk")
    tm, tn = part.get("thread_m", 0), part.get("thread_n", 0)
    size = DTYPE_BYTES[gemm.dtype]
    if bm > 0 and bn > 0:
        split = max(1, part.get("split", 1))
        blocks = math.ceil(gemm.m_max / bm) * math.ceil(gemm.n / bn) * gemm.batch * split
        waves = blocks / device.units
        traffic = blocks / split * gemm.k * (bm + bn) * size
        feature_values |= {
            "log_blocks": math.log2(blocks),
            "log_waves": math.log2(waves),
            "wave_fill": waves / math.ceil(waves),
            "tile_intensity": bm * bn / (bm + bn),
            "log_tile": math.log2(bm * bn),
            "log_tile_shape": math.log2(bm / bn),
            "log_traffic": math.log2(traffic),
            "traffic_ratio": traffic / _nbytes(gemm),
        }
        if bk > 0:
            stage = (bm + bn) * bk * size
            staged = stage * max(1, part.get("stages", 1))
            feature_values |= {"log_stage_bytes": math.log2(stage), "log_staged_bytes": math.log2(staged)}
            room = device.limits.shared_per_sm
            if room:
                feature_values["blocks_by_shared"] = room / (staged + device.limits.shared_reserved_per_block)
    if tm > 0 and tn > 0:
        feature_values |= {
            "accumulators": tm * tn,
            "log_accumulators": math.log2(tm * tn),
            "operand_registers": tm + tn,
            "micro_intensity": tm * tn / (tm + tn),
        }
    if device.kind == "cuda" and bm > 0 and bn > 0 and tm > 0 and tn > 0:
        threads = max(1, bm * bn // (tm * tn))
        feature_values |= {"threads": threads, "log_threads": math.log2(threads)}
        if device.limits.registers_per_sm:
            registers = min(255, tm * tn + 2 * (tm + tn) + 24)
            feature_values["blocks_by_registers"] = device.limits.registers_per_sm / (threads * registers)
            feature_values["blocks_by_threads"] = device.limits.threads_per_sm / threads
    return feature_values
