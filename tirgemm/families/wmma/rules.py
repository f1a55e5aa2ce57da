"""The static rules of ``wmma``, cheapest first."""

from __future__ import annotations

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.expr import evaluate
from tirgemm.families.base import Rule
from tirgemm.families.wmma.tiling import FRAGMENT, WmmaTiling, tiling
from tirgemm.gemm import Gemm
from tirgemm.hardware import WARP, occupancy

MAX_GRID = (2**31 - 1, 65535, 65535)
# Tiles of this many outputs or fewer may leave SMs idle: nothing smaller would be better.
_SMALL_TILE = 32 * 32
_MAX_WORKSPACE_BYTES = 2**30
_REGISTER_SLACK = 8
_FLOAT_BYTES = 4


def _warps(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    for axis in ("m", "n"):
        warps, tile = config[f"warps_{axis}"], config[f"tile_{axis}"]
        if tile % (warps * FRAGMENT):
            return f"warps_{axis}={warps} do not share tile_{axis}={tile} in whole fragments of {FRAGMENT}"
    return None


def _sets(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    if config["sets"] == 2 and config["tile_k"] // FRAGMENT % 2:
        return f"sets=2 takes turns at every {FRAGMENT} of k, of which tile_k={config['tile_k']} has an odd number"
    return None


def _raster(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    columns = -(-gemm.n // config["tile_n"])
    if columns % config["raster"] == 0:
        return None
    return f"raster={config['raster']} does not divide the {columns} blocks along n"


def _split(gemm: Gemm, config: Config, device: Device) -> str | None:
    split = config["split"]
    if split == 1:
        return None
    steps = -(-gemm.k // config["tile_k"])
    part = -(-steps // split)
    if (split - 1) * part >= steps:
        return f"split={split} leaves a part of the {steps} steps of k without any"
    cut = tiling(gemm, config)
    size = evaluate(cut.partial_elements, gemm.m_max) * _FLOAT_BYTES
    if size > _MAX_WORKSPACE_BYTES:
        return f"the sums of split={split} parts take {size} bytes of workspace; the limit is {_MAX_WORKSPACE_BYTES}"
    if evaluate(cut.blocks, gemm.m_max) // split >= 2 * device.units:
        return f"there are two tiles for each of {device.units} SMs without cutting k in {split} parts"
    return None


def _copy(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    cut = tiling(gemm, config)
    for side in cut.sides:
        if not side.whole or not side.passes:
            return f"{cut.threads} threads do not copy the {side.rows} rows of {side.operand}'s tile in whole turns"
    return None


def _shared(gemm: Gemm, config: Config, device: Device) -> str | None:
    need, limit = tiling(gemm, config).shared_bytes, device.limits.shared_per_block
    if need <= limit:
        return None
    return f"the tiles need {need} bytes of shared memory; a block of {device.arch} has {limit}"


def _registers(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = tiling(gemm, config)
    room = _room(cut, device)
    if cut.registers <= room:
        return None
    return f"a thread needs about {cut.registers} registers; {cut.threads} threads of {device.arch} have {room} each"


def _resident(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = tiling(gemm, config)
    if not cut.resident:
        return None
    # The estimate is high rather than low: what is just over the bound may still fit it.
    fit = occupancy(device.limits, cut.threads, max(1, cut.registers - _REGISTER_SLACK), cut.shared_bytes)
    if cut.resident <= fit:
        return None
    return f"resident={cut.resident} blocks of {cut.threads} threads are more than the {fit} that an SM of {device.arch} holds"


def _grid(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    extents = [evaluate(extent, gemm.m_max) for extent in tiling(gemm, config).grid]
    for axis, extent, limit in zip("xyz", extents, MAX_GRID, strict=True):
        if extent > limit:
            return f"the grid has {extent} blocks along {axis}; the driver takes at most {limit}"
    return None


def _waves(gemm: Gemm, config: Config, device: Device) -> str | None:
    if config["tile_m"] * config["tile_n"] <= _SMALL_TILE:
        return None
    count = evaluate(tiling(gemm, config).blocks, gemm.m_max)
    if 2 * count >= device.units or 2 * _blocks_of_half(gemm, config) <= 3 * count:
        return None
    return f"{count} blocks keep fewer than half of {device.units} SMs busy; smaller tiles would be more"


def _blocks_of_half(gemm: Gemm, config: Config) -> int:
    """Blocks of the grid with the longer side of the tile halved."""
    m, n = config["tile_m"], config["tile_n"]
    changed = {"tile_m": m // 2} if m >= n else {"tile_n": n // 2}
    return evaluate(tiling(gemm, config.with_(**changed)).blocks, gemm.m_max)


def _room(cut: WmmaTiling, device: Device) -> int:
    """Registers that a thread may take so that one block fits an SM: whole units of eight."""
    return min(device.limits.registers_per_thread, device.limits.registers_per_sm // max(cut.threads, WARP) // 8 * 8)


RULES: tuple[Rule, ...] = (
    Rule("warps", _warps),
    Rule("sets", _sets),
    Rule("raster", _raster),
    Rule("copy", _copy),
    Rule("shared", _shared),
    Rule("registers", _registers),
    Rule("resident", _resident),
    Rule("split", _split),
    Rule("grid", _grid),
    Rule("waves", _waves),
)
