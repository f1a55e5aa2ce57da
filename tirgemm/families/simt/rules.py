"""The static rules of ``simt``, cheapest first."""

from __future__ import annotations

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.expr import evaluate
from tirgemm.families.base import Rule
from tirgemm.families.common.parameters import tiles_reach
from tirgemm.families.simt.tiling import PIPELINES, ThreadTiling, blocks, grid, tiling
from tirgemm.gemm import DTYPE_BYTES, Gemm
from tirgemm.hardware import MAX_GRID, WARP, occupancy

_MIN_THREADS, _MAX_THREADS = 32, 1024
# Blocks of this many outputs or fewer may leave SMs idle: nothing smaller would be better.
_SMALL_BLOCK = 32 * 32
_REGISTER_SLACK = 8
_REGISTER_UNIT = 8  # registers of a thread are given in multiples of this
# TVM's copies by cp.async count the bytes from an operand's start to what they copy in an int.
_MAX_ASYNC_BYTES = 2**31 - 1


def _thread_tile(gemm: Gemm, config: Config, device: Device) -> str | None:
    for axis in ("m", "n"):
        block, thread = config[f"block_{axis}"], config[f"thread_{axis}"]
        if thread > block:
            return f"thread_{axis}={thread} is more than block_{axis}={block} holds"
    return None


def _threads(gemm: Gemm, config: Config, device: Device) -> str | None:
    threads = config["block_m"] // config["thread_m"] * (config["block_n"] // config["thread_n"])
    if _MIN_THREADS <= threads <= _MAX_THREADS:
        return None
    return f"the block has {threads} threads; it must have from {_MIN_THREADS} to {_MAX_THREADS}"


def _lanes(gemm: Gemm, config: Config, device: Device) -> str | None:
    lanes_n = config["lanes_n"]
    for axis, lanes in (("m", WARP // lanes_n), ("n", lanes_n)):
        threads = config[f"block_{axis}"] // config[f"thread_{axis}"]
        if threads % lanes:
            return f"lanes_n={lanes_n} puts {lanes} lanes of a warp along {axis}, where the block has {threads} threads"
    return None


def _piece(gemm: Gemm, config: Config, device: Device) -> str | None:
    most = max(config["thread_m"], config["thread_n"])
    if config["piece"] <= most:
        return None
    return f"piece={config['piece']} is more than the {most} outputs that a thread has along an axis"


def _lane_order(gemm: Gemm, config: Config, device: Device) -> str | None:
    if config["lane_order"] == "row" or 2 <= config["lanes_n"] <= WARP // 2:
        return None
    return (
        f"lane_order={config['lane_order']} needs two lanes along both axes; lanes_n={config['lanes_n']} has "
        f"{WARP // config['lanes_n']} along m"
    )


def _reads(gemm: Gemm, config: Config, device: Device) -> str | None:
    if config["reads"] == "fragments":
        return None
    for knob, value in (("vector", 1), ("pad", 0), ("pipeline", "none"), ("lane_order", "row")):
        if config[knob] != value:
            return f"reads={config['reads']} is a rung before wide accesses: {knob} must be {value}, not {config[knob]}"
    return None


def _barriers(gemm: Gemm, config: Config, device: Device) -> str | None:
    buffers = PIPELINES[config["pipeline"]]
    if config["barriers"] >= 2 or buffers > 1:
        return None
    return (
        f"barriers={config['barriers']} lets a step write one tile while another is read; "
        f"pipeline={config['pipeline']} has {buffers}"
    )


def _unroll(gemm: Gemm, config: Config, device: Device) -> str | None:
    if config["unroll"] <= config["block_k"]:
        return None
    return f"unroll={config['unroll']} is more than the {config['block_k']} steps of k that a tile holds"


def _raster(gemm: Gemm, config: Config, device: Device) -> str | None:
    columns = -(-gemm.n // config["block_n"])
    if columns % config["raster"] == 0:
        return None
    return f"raster={config['raster']} does not divide the {columns} blocks along n"


def _offsets(gemm: Gemm, config: Config, device: Device) -> str | None:
    if not config["pipeline"].startswith("async"):
        return None
    depth = -(-gemm.k // config["block_k"]) * config["block_k"]
    reach = tiles_reach(gemm, config["block_m"], config["block_n"], depth, operands=("a", "b"), proofs=False)
    nbytes = DTYPE_BYTES[gemm.dtype] * reach
    if nbytes <= _MAX_ASYNC_BYTES:
        return None
    return (
        f"tiles of A and B reach {nbytes} bytes into their operands; the copies of pipeline={config['pipeline']} count "
        f"at most {_MAX_ASYNC_BYTES}"
    )


def _copy(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = tiling(gemm, config)
    if not cut.shares:
        return None
    vectors = [
        block * cut.block_k // width for block, width in ((cut.block_m, cut.width_a), (cut.block_n, cut.width_b))
    ]
    if max(vectors) >= cut.threads:
        return None
    return f"the tiles are {vectors[0]} and {vectors[1]} vectors, too few to give each of {cut.threads} threads one"


def _shared(gemm: Gemm, config: Config, device: Device) -> str | None:
    need, limit = tiling(gemm, config).shared_bytes, device.limits.shared_per_block
    return (
        None if need <= limit else f"the tiles need {need} bytes of shared memory; a block of {device.arch} has {limit}"
    )


def _registers(gemm: Gemm, config: Config, device: Device) -> str | None:
    need = tiling(gemm, config).registers
    limit = device.limits.registers_per_thread
    if need > limit:
        return f"a thread needs about {need} registers; a thread of {device.arch} has {limit}"
    cut = tiling(gemm, config)
    if not occupancy(device.limits, cut.threads, need, cut.shared_bytes):
        return f"{cut.threads} threads of about {need} registers do not fit an SM of {device.arch}"
    return None


def _resident(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = tiling(gemm, config)
    if not cut.resident:
        return None
    reason = _written_out(gemm, cut, device)
    if reason:
        return reason
    # The estimate is a few registers high as often as low: what is just over the bound may still fit it.
    least = max(1, cut.registers - _REGISTER_SLACK)
    fit = occupancy(device.limits, cut.threads, least, cut.shared_bytes)
    if cut.resident <= fit:
        return None
    return (
        f"resident={cut.resident} blocks of {cut.threads} threads are more than the {fit} that an SM of {device.arch} "
        "holds"
    )


def _written_out(gemm: Gemm, cut: ThreadTiling, device: Device) -> str | None:
    """Why registers cannot be bounded where no loop over k is left.

    With a bound the compiler takes all that it allows: it loads what every step multiplies, C and bias in advance, and
    a few registers too many. Found by compiling: of 266 random kernels without a loop 3 spilled, all among 23 such.
    """
    tiles = -(-gemm.k // cut.block_k)
    if not (gemm.beta or gemm.bias) or cut.unroll < cut.block_k or tiles > max(cut.buffers, 1 + cut.prefetches):
        return None
    thread_m, thread_n = cut.pieces_m * cut.piece_m, cut.pieces_n * cut.piece_n
    steps = tiles * cut.block_k
    need = (thread_m * thread_n + steps * (thread_m + thread_n)) * cut.element_bytes // 4
    share = _share_of_registers(cut.resident, cut, device)
    if need <= share:
        return None
    return (
        f"the {steps} steps of k are written out: the compiler loads what all of them multiply, {need} registers with "
        f"the sums, where resident={cut.resident} leaves {share}"
    )


def _share_of_registers(resident: int, cut: ThreadTiling, device: Device) -> int:
    """Registers that a thread may have where an SM holds ``resident`` blocks."""
    share = device.limits.registers_per_sm // (resident * cut.threads) // _REGISTER_UNIT * _REGISTER_UNIT
    return min(share, device.limits.registers_per_thread)


def _grid(gemm: Gemm, config: Config, device: Device) -> str | None:
    extents = [evaluate(extent, gemm.m_max) for extent in grid(gemm, tiling(gemm, config))]
    for axis, extent, limit in zip("xyz", extents, MAX_GRID, strict=True):
        if extent > limit:
            return f"the grid has {extent} blocks along {axis}; the driver takes at most {limit}"
    return None


def _waves(gemm: Gemm, config: Config, device: Device) -> str | None:
    if config["block_m"] * config["block_n"] <= _SMALL_BLOCK:
        return None
    count = evaluate(blocks(gemm, config["block_m"], config["block_n"]), gemm.m_max)
    if 2 * count >= device.units or 2 * _blocks_of_half(gemm, config) <= 3 * count:
        return None
    return f"{count} blocks keep fewer than half of {device.units} SMs busy; smaller blocks would be more"


def _blocks_of_half(gemm: Gemm, config: Config) -> int:
    """Blocks of the grid with the longer side of the block halved."""
    m, n = config["block_m"], config["block_n"]
    m, n = (m // 2, n) if m >= n else (m, n // 2)
    return evaluate(blocks(gemm, m, n), gemm.m_max)


RULES: tuple[Rule, ...] = (
    Rule("thread_tile", _thread_tile),
    Rule("threads", _threads),
    Rule("lanes", _lanes),
    Rule("lane_order", _lane_order),
    Rule("reads", _reads),
    Rule("barriers", _barriers),
    Rule("piece", _piece),
    Rule("unroll", _unroll),
    Rule("raster", _raster),
    Rule("offsets", _offsets),
    Rule("copy", _copy),
    Rule("shared", _shared),
    Rule("registers", _registers),
    Rule("resident", _resident),
    Rule("grid", _grid),
    Rule("waves", _waves),
)
