"""The static rules of ``wgmma``, cheapest first."""

from __future__ import annotations

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.expr import evaluate
from tirgemm.families.base import Rule
from tirgemm.families.wgmma.plan import DIRECT, MMA_M, STAGED, TMA, Plan, plan, stored_by_tma
from tirgemm.families.wgmma.space import LEAST_STEPS, TILES_M, TILES_N
from tirgemm.gemm import DTYPE_BYTES, Gemm

MAX_GRID = 2**31 - 1
# Tiles of this many rows and columns or fewer may leave SMs idle: nothing smaller would be better.
_SMALLEST_M, _SMALL_N = 64, 32
# Registers of a wgmma beside its accumulators, as the assembler counts them.
_INSTRUCTION_REGISTERS = 26
_MAX_WORKSPACE_BYTES = 2**30


def _schedule(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    if not cut.pingpong:
        return None
    if cut.split > 1:
        return f"split={cut.split} leaves a block one tile, and pingpong needs two to overlap them"
    if cut.waves == 1:
        return "every block has one tile; pingpong needs two to overlap them"
    return None


def _cluster(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    if cut.cluster > 2:
        return f"a cluster of {cut.cluster} blocks leaves SMs of {device.arch} idle: their groups are no multiple of {cut.cluster}"
    if cut.cluster > 1 and cut.split > 1:
        return f"a cluster of {cut.cluster} shares tiles where there are many; split={cut.split} is for where there are few"
    for axis, size, tile, count in (
        ("m", gemm.m_max, cut.tile_m, cut.cluster_m),
        ("n", gemm.n, cut.tile_n, cut.cluster_n),
    ):
        if count > 1 and size <= tile:
            return f"cluster_{axis}={count} has one tile of {tile} to share among {size} outputs along {axis}"
    return None


def _tile(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    for axis, size, tile, smaller in (
        ("m", gemm.m_max, config["tile_m"], TILES_M),
        ("n", gemm.n, config["tile_n"], TILES_N),
    ):
        enough = [s for s in smaller if size <= s < tile]
        if enough:
            return f"tile_{axis}={tile} is more than the {size} outputs along {axis} need: {enough[0]} is enough"
    return None


def _accumulators(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    # Before setmaxnreg, that is for the assembler, threads share the registers evenly.
    even, need = device.limits.registers_per_sm // cut.threads, cut.tile_n // 2 + _INSTRUCTION_REGISTERS
    if need > even:
        return f"a wgmma of {cut.tile_n} columns takes {need} registers; each of {cut.threads} threads has {even}"
    if cut.accumulators <= cut.most_accumulators:
        return None
    return (
        f"a thread has {cut.accumulators} accumulators; {cut.consumers} consumer warpgroups of {cut.consumer_registers} "
        f"registers leave room for {cut.most_accumulators}"
    )


def _stages(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    steps = cut.split_steps * (evaluate(cut.waves, gemm.m_max) if cut.split == 1 else 1)
    if cut.stages > max(2, steps):
        return f"stages={cut.stages} are more than the {steps} steps of k that a block takes in all"
    return None


def _shared(gemm: Gemm, config: Config, device: Device) -> str | None:
    need, limit = plan(gemm, config, device.units).shared_bytes, device.limits.shared_per_block
    if need <= limit:
        return None
    return f"stages={config['stages']} need {need} bytes of shared memory; a block of {device.arch} has {limit}"


def _split(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    if cut.split == 1:
        return None
    if cut.split_steps < LEAST_STEPS:
        return f"split={cut.split} leaves {cut.split_steps} of {cut.steps} steps of k; a part needs {LEAST_STEPS}"
    if (cut.split - 1) * cut.split_steps >= cut.steps:
        return f"split={cut.split} parts of {cut.split_steps} steps are more than the {cut.steps} steps of k"
    tiles = evaluate(cut.work, gemm.m_max) // cut.split
    if tiles >= device.units:
        return f"{tiles} tiles keep {device.units} SMs busy without split={cut.split}"
    if tiles * cut.split > 2 * device.units and cut.split > 2:
        return f"split={cut.split} makes {tiles * cut.split} parts for {device.units} SMs; fewer would keep them busy"
    nbytes = 4 * evaluate(cut.partial_elements, gemm.m_max)
    if nbytes > _MAX_WORKSPACE_BYTES:
        return f"split={cut.split} needs {nbytes} bytes of workspace; the limit is {_MAX_WORKSPACE_BYTES}"
    return None


def _epilogue(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    way = config["epilogue"]
    if config["split"] > 1 and way != DIRECT:
        return f"split={config['split']} writes partial sums, which are fp32 and leave by epilogue={DIRECT}"
    if way != DIRECT and DTYPE_BYTES[gemm.out] != 2:
        return f"epilogue={way} stores 16-bit outputs; {gemm.out} leaves by {DIRECT}"
    if way == TMA and not stored_by_tma(gemm):
        return f"epilogue={TMA} needs rows of D 16 bytes apart and aligned; {STAGED} does not"
    return None


def _raster(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    along = evaluate(cut.tiles_m, gemm.m_max) if cut.order == "m" else cut.tiles_n
    if cut.group >= 2 * along and cut.group > 1:
        return f"group={cut.group} is more than the {along} tiles along {cut.order}: a smaller group is the same order"
    if cut.order == "n" and along == 1:
        return "there is one tile along n, so that order=n is the same as order=m with group=1"
    return None


def _grid(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    # A warpgroup counts on to the first tile that does not exist.
    count, limit = evaluate(cut.work, gemm.m_max), MAX_GRID - 4 * device.units
    return None if count <= limit else f"there are {count} tiles; the limit is {limit}"


def _waves(gemm: Gemm, config: Config, device: Device) -> str | None:
    """Idle SMs that smaller tiles or a split would use."""
    cut = plan(gemm, config, device.units)
    work = evaluate(cut.work, gemm.m_max) * cut.cluster
    if 2 * work > device.units or (cut.tile_m == _SMALLEST_M and cut.tile_n <= _SMALL_N):
        return None
    if _with_smaller_tile(gemm, cut) <= work:
        return None
    return f"{work} blocks keep fewer than half of {device.units} SMs busy; smaller tiles would be more"


def _with_smaller_tile(gemm: Gemm, cut: Plan) -> int:
    """Blocks that there would be with the larger side of the tile halved."""
    halve_m = cut.tile_m > MMA_M and cut.tile_m >= cut.tile_n
    m, n = (cut.tile_m // 2, cut.tile_n) if halve_m else (cut.tile_m, max(16, cut.tile_n // 2))
    return -(-gemm.m_max // m) * -(-gemm.n // n) * cut.slices


RULES: tuple[Rule, ...] = (
    Rule("epilogue", _epilogue),
    Rule("tile", _tile),
    Rule("accumulators", _accumulators),
    Rule("shared", _shared),
    Rule("cluster", _cluster),
    Rule("schedule", _schedule),
    Rule("split", _split),
    Rule("stages", _stages),
    Rule("raster", _raster),
    Rule("grid", _grid),
    Rule("waves", _waves),
)
