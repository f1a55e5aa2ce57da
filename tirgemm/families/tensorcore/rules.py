"""The static rules that the tensor-core families share, as functions of a tiling. A family wraps them into its
``Rule``s."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.expr import evaluate
from tirgemm.families.common.alignment import access_width
from tirgemm.families.tensorcore.names import HALF, LINE, REPACK
from tirgemm.families.tensorcore.reduce import reduce_grid
from tirgemm.families.tensorcore.repack import repack_grid
from tirgemm.families.tensorcore.tiling import LEAST_WIDTH, RUN_BYTES, Tiling
from tirgemm.gemm import Gemm
from tirgemm.hardware import MAX_GRID, occupancy

Check = Callable[[Gemm, Config, Device], "str | None"]
AnyTiling = TypeVar("AnyTiling", bound=Tiling)

# A part of a split with fewer steps than this is mostly prologue and epilogue.
LEAST_STEPS = 2
_MAX_WARPS = 16
_MAX_WORKSPACE_BYTES = 2**30
# Blocks of this many outputs or fewer may leave SMs idle: nothing smaller would be better.
_SMALL_TILE = 32 * 32


def of_tiling(tiling: Callable[[Gemm, Config], AnyTiling], check: Callable[[AnyTiling], str | None]) -> Check:
    """A rule's check from one of a tiling."""
    return lambda gemm, config, _: check(tiling(gemm, config))


def of_device(tiling: Callable[[Gemm, Config], AnyTiling], check: Callable[[AnyTiling, Device], str | None]) -> Check:
    """The same from one of a tiling on a device."""
    return lambda gemm, config, device: check(tiling(gemm, config), device)


def of_load(tiling: Callable[[Gemm, Config], AnyTiling]) -> Check:
    return lambda gemm, config, _: load(tiling(gemm, config), config["load"])


def of_fragments(step: int) -> Check:
    """Two sets of fragments need two instructions' worth of k, ``step`` each, in a tile."""

    def check(_: Gemm, config: Config, __: Device) -> str | None:
        if config["registers"] == 1 or config["tile_k"] > step:
            return None
        return (
            f"registers=2 loads the second {step} of k while the first is multiplied; tile_k={config['tile_k']} has one"
        )

    return check


def warps(cut: Tiling, unit_m: int, unit_n: int) -> str | None:
    """Warps must have whole instructions' outputs, and a block not too many warps."""
    for axis, tile, count, unit in (
        ("m", cut.tile_m, cut.warps_m, unit_m),
        ("n", cut.tile_n, cut.warps_n, unit_n),
    ):
        if tile % (count * unit):
            return f"warps_{axis}={count} cuts tile_{axis}={tile} into parts that are no multiple of {unit}"
    count = cut.warps_m * cut.warps_n
    return None if count <= _MAX_WARPS else f"the block has {count} warps; the most is {_MAX_WARPS}"


def tile(cut: Tiling, tiles_m: tuple[int, ...], tiles_n: tuple[int, ...]) -> str | None:
    """A tile that a smaller one would cover is never better."""
    for axis, size, mine, tiles in (
        ("m", cut.gemm.m_max, cut.tile_m, tiles_m),
        ("n", cut.gemm.n, cut.tile_n, tiles_n),
    ):
        enough = [t for t in tiles if size <= t < mine]
        if enough:
            return f"tile_{axis}={mine} is more than the {size} outputs along it need: {enough[0]} is enough"
    return None


def load(cut: Tiling, way: str) -> str | None:
    """cp.async takes four bytes at least, and repacking helps only what is not aligned."""
    if way == REPACK:
        return None
    for side in cut.sides:
        width = access_width(cut.gemm, side.operand)
        if width < LEAST_WIDTH:
            return (
                f"cp.async copies 4 bytes at least; rows of {side.operand.upper()} are aligned to 2: load={REPACK} is "
                "for them"
            )
    return None


def copy(cut: Tiling, way: str) -> str | None:
    """Copies of all threads must cover both tiles without a rest."""
    for side in cut.sides:
        if not side.whole:
            return (
                f"{side.threads} threads with {side.width} elements each do not cover {side.operand.upper()}'s tile of "
                f"{side.rows} rows of {side.runs * RUN_BYTES} bytes evenly"
            )
    if way == HALF and all(side.runs <= side.across for side in cut.sides):
        return f"rows of both tiles are at most half a line of 128 bytes: copy={HALF} is the same as copy={LINE}"
    return None


def shared(cut: Tiling, device: Device) -> str | None:
    need, limit = cut.shared_bytes, device.limits.shared_per_block
    if need <= limit:
        return None
    stages = cut.stages * (cut.a.nbytes + cut.b.nbytes)
    what = (
        f"{cut.stages} stages"
        if need == stages
        else f"{cut.stages} stages of {stages} bytes, then the sums on their way to D,"
    )
    return f"{what} take {need} bytes of shared memory; a block of {device.arch} has {limit}"


def stages(cut: Tiling) -> str | None:
    if cut.stages == 2 or cut.stages <= cut.steps + 1:
        return None
    return f"stages={cut.stages} copy {cut.stages - 1} steps ahead of {cut.steps}: fewer stages do the same"


def split(cut: Tiling) -> str | None:
    if cut.split == 1:
        return None
    whole = -(-cut.gemm.k // cut.tile_k)
    if cut.steps < LEAST_STEPS:
        return f"split={cut.split} leaves a part {cut.steps} steps of k; the least is {LEAST_STEPS}"
    if (cut.split - 1) * cut.steps >= whole:
        return f"{whole} steps of k in parts of {cut.steps} are fewer than split={cut.split} parts"
    nbytes = 4 * evaluate(cut.partial_elements, cut.gemm.m_max)
    if nbytes > _MAX_WORKSPACE_BYTES:
        return f"split={cut.split} needs {nbytes} bytes of workspace; the limit is {_MAX_WORKSPACE_BYTES}"
    return None


def raster(cut: Tiling) -> str | None:
    if cut.columns_of_blocks % cut.raster == 0:
        return None
    return f"raster={cut.raster} does not divide the {cut.columns_of_blocks} blocks along n"


def grid(cut: Tiling) -> str | None:
    grids = [cut.grid, *(repack_grid(side.source) for side in cut.sides if side.source)]
    if cut.split > 1:
        grids.append(reduce_grid(cut))
    for extents in grids:
        for axis, extent, limit in zip("xyz", extents, MAX_GRID, strict=True):
            count = evaluate(extent, cut.gemm.m_max)
            if count > limit:
                return f"a grid has {count} blocks along {axis}; the driver takes at most {limit}"
    return None


def waves(cut: Tiling, device: Device) -> str | None:
    """Idle SMs that smaller tiles or a split would use."""
    if cut.tile_m * cut.tile_n <= _SMALL_TILE:
        return None
    count = evaluate(cut.blocks, cut.gemm.m_max)
    if 2 * count >= device.units:
        return None
    m, n = (cut.tile_m // 2, cut.tile_n) if cut.tile_m >= cut.tile_n else (cut.tile_m, cut.tile_n // 2)
    smaller = -(-cut.gemm.m_max // m) * -(-cut.gemm.n // n) * cut.gemm.batch * cut.split
    if 2 * smaller <= 3 * count:
        return None
    return f"{count} blocks keep fewer than half of {device.units} SMs busy; smaller tiles would be more"


def registers(cut: Tiling, need: int, device: Device) -> str | None:
    limit = device.limits.registers_per_thread
    if need > limit:
        return f"a thread needs about {need} registers; a thread of {device.arch} has {limit}"
    if not occupancy(device.limits, cut.threads, need, cut.shared_bytes):
        return f"{cut.threads} threads of about {need} registers do not fit an SM of {device.arch}"
    return None


def resident(cut: Tiling, need: int, device: Device) -> str | None:
    """Blocks that an SM must hold have to fit it, and to exist."""
    if cut.resident == 1:
        return None
    fit = occupancy(device.limits, cut.threads, need, cut.shared_bytes)
    if cut.resident > fit:
        return (
            f"resident={cut.resident} blocks of {cut.threads} threads are more than the {fit} that an SM of "
            f"{device.arch} holds"
        )
    blocks = evaluate(cut.blocks, cut.gemm.m_max)
    if blocks <= device.units * (cut.resident - 1):
        return f"{blocks} blocks on {device.units} SMs are never {cut.resident} on one"
    return None
