"""The static rules of ``x86``, each with the sentence that a person reads."""

from __future__ import annotations

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.expr import evaluate
from tirgemm.families.base import Rule
from tirgemm.families.summation import Summation, invariant_rule
from tirgemm.families.x86.layout import CHUNK, PanelTiling
from tirgemm.families.x86.space import VECTORS, registers, usual_block_k
from tirgemm.gemm import Gemm

# Fused multiply-adds that must be in flight: two a cycle, four cycles each, on every x86 core since Skylake and Zen.
_IN_FLIGHT = 8
_MAX_UNROLLED = 448
# Panels of rows for which it pays to transpose B in registers again and again.
_MAX_TURNS = 4
_L2_BYTES = 1024 * 1024
_L1_BYTES = 32 * 1024
_MAX_TASKS_PER_THREAD = 256


def _registers(_gemm: Gemm, config: Config, device: Device) -> str | None:
    tile_m, vectors = config["tile_m"], config["vectors"]
    needed, limit = tile_m * vectors + vectors + 1, registers(device)
    if needed > limit:
        return f"a tile of {tile_m} rows by {vectors} vectors needs {needed} vector registers; the CPU has {limit}"
    return None


def _in_flight(gemm: Gemm, config: Config, _device: Device) -> str | None:
    tile_m, vectors, lanes = config["tile_m"], config["vectors"], config["lanes"]
    sums = tile_m * vectors
    # Nothing wider: it would reach beyond n, or pad too much.
    widest = vectors == max(VECTORS) or vectors * lanes >= gemm.n or _wasteful(gemm, (vectors + 1) * lanes, lanes)
    covers = tile_m >= gemm.m_max and (widest or PanelTiling(gemm, config).turns_b)
    if sums < _IN_FLIGHT and not covers:
        return (
            f"a tile of {tile_m} rows by {vectors} vectors has {sums} independent sums; {_IN_FLIGHT} hide the latency "
            "of an FMA"
        )
    return None


def _code(_gemm: Gemm, config: Config, _device: Device) -> str | None:
    size = config["tile_m"] * config["vectors"] * config["unroll"]
    if size > _MAX_UNROLLED:
        return (
            f"unroll {config['unroll']} writes out {size} multiply-adds; beyond {_MAX_UNROLLED} the loop leaves the "
            "instruction cache"
        )
    return None


def _padding(gemm: Gemm, config: Config, _device: Device) -> str | None:
    tile_n, lanes = config["vectors"] * config["lanes"], config["lanes"]
    if _wasteful(gemm, tile_n, lanes):
        padded = -(-gemm.n // tile_n) * tile_n
        return f"tiles of {tile_n} columns pad n = {gemm.n} to {padded}; fewer vectors compute less for nothing"
    return None


def _wasteful(gemm: Gemm, tile_n: int, lanes: int) -> bool:
    """Whether tiles so wide pad the columns by a vector and a quarter of them, or more."""
    return -(-gemm.n // tile_n) * tile_n - gemm.n >= max(lanes, gemm.n // 4)


def _padding_rows(gemm: Gemm, config: Config, _device: Device) -> str | None:
    tile_m = config["tile_m"]
    padded = -(-gemm.m_max // tile_m) * tile_m
    if padded > 8 and padded - gemm.m_max > gemm.m_max // 2:
        return (
            f"tiles of {tile_m} rows pad m = {gemm.m_max} to {padded}; more than a third would be computed for nothing"
        )
    return None


def _direct_b(gemm: Gemm, config: Config, _device: Device) -> str | None:
    tile_n, panels = config["vectors"] * config["lanes"], -(-gemm.m_max // config["tile_m"])
    if config["pack_b"]:
        return None
    if gemm.trans_b and panels > _MAX_TURNS:
        return (
            f"pack_b off transposes B for each of {panels} panels of A; beyond {_MAX_TURNS} copying it once is cheaper"
        )
    if not gemm.trans_b and gemm.n % tile_n:
        return f"pack_b off reads whole tiles of {tile_n} columns of B in place; n = {gemm.n} is not a multiple"
    return None


def _direct_a(gemm: Gemm, config: Config, _device: Device) -> str | None:
    panels = -(-gemm.n // (config["vectors"] * config["lanes"]))
    limit = 8
    if not config["pack_a"] and gemm.dtype != "f32" and panels > limit:
        return (
            f"pack_a off converts A again for each of {panels} panels of B; beyond {limit} converting it once is "
            "cheaper"
        )
    return None


def _block_m(_gemm: Gemm, config: Config, _device: Device) -> str | None:
    if config["block_m"] < config["tile_m"]:
        return f"block_m {config['block_m']} is smaller than a tile of {config['tile_m']} rows"
    return None


def _cache(gemm: Gemm, config: Config, _device: Device) -> str | None:
    """The operand that passes again and again within a task must stay in L2."""
    tiling = PanelTiling(gemm, config)
    depth = tiling.chunks_per_block * CHUNK * 4
    inner = tiling.task_panels_m * tiling.tile_m if config["order"] == "rows" else tiling.task_panels_n * tiling.tile_n
    if inner * depth > 4 * _L2_BYTES:
        return (
            f"a task passes {inner * depth // 1024} KiB of one operand for every panel of the other; "
            f"more than {4 * _L2_BYTES // 1024} KiB stays in no L2 cache"
        )
    return None


def _shallow(gemm: Gemm, config: Config, _device: Device) -> str | None:
    tiling = PanelTiling(gemm, config)
    panel = tiling.chunks * CHUNK * (tiling.tile_n + tiling.tile_m) * 4
    if tiling.k_blocks > 1 and panel <= _L1_BYTES:
        return (
            f"block_k {config['block_k']} splits panels of {panel} bytes, which stay in the L1 cache ({_L1_BYTES} "
            "bytes) whole"
        )
    return None


def _tasks(gemm: Gemm, config: Config, device: Device) -> str | None:
    tasks = evaluate(PanelTiling(gemm, config).tasks, gemm.m_max)
    threads = config["threads"] or device.units
    largest = config["block_m"] >= min(gemm.m_max, 1024) and config["block_n"] >= min(gemm.n, 1024)
    # Invariant sums may be deeper than the cache rule lets blocks of that size be.
    if tasks > _MAX_TASKS_PER_THREAD * threads and not largest and not gemm.invariant:
        return (
            f"{tasks} tasks for {threads} threads; beyond {_MAX_TASKS_PER_THREAD} each, larger blocks only save "
            "overhead"
        )
    smallest = config["block_m"] == 64 and config["block_n"] == 64
    if threads > 1 and tasks < threads and not smallest and gemm.m_max * gemm.n > 64 * 64:
        return (
            f"blocks of {config['block_m']}x{config['block_n']} make {tasks} tasks; {threads} threads would not all "
            "work"
        )
    return None


def _summation(gemm: Gemm, block_k: int) -> Summation:
    # Zeros behind k make +0 of a -0, to which negative products may underflow: every kernel fills k up to whole chunks.
    return Summation(min(block_k or gemm.k, gemm.k), gemm.k)


TILE_RULES: tuple[Rule, ...] = (
    invariant_rule(
        lambda gemm, config: _summation(gemm, config["block_k"]), lambda gemm: _summation(gemm, usual_block_k(gemm))
    ),
    Rule("registers", _registers),
    Rule("in_flight", _in_flight),
    Rule("code_size", _code),
    Rule("padding_columns", _padding),
    Rule("padding_rows", _padding_rows),
    Rule("direct_b", _direct_b),
    Rule("direct_a", _direct_a),
)
"""The rules that look at the register tile and the operands alone."""

BLOCK_RULES: tuple[Rule, ...] = (
    Rule("block_m", _block_m),
    Rule("cache", _cache),
    Rule("shallow", _shallow),
    Rule("tasks", _tasks),
)
"""The rules that look at the blocks of a task too."""

RULES = TILE_RULES + BLOCK_RULES
