"""The static rules of ``wgmma``, cheapest first."""

from __future__ import annotations

from typing import Any

from tirgemm.config import Config, up_to
from tirgemm.device import Device
from tirgemm.expr import evaluate
from tirgemm.families.base import Rule
from tirgemm.families.summation import invariant_rule
from tirgemm.families.wgmma.planning.alignment import loaded_by_tma, misaligned_to_lines, stored_by_tma
from tirgemm.families.wgmma.planning.memory import RESERVED_BYTES
from tirgemm.families.wgmma.planning.names import (
    CLUSTER,
    COPY,
    DIRECT,
    MAX_CLUSTER,
    REPACK,
    STAGED,
    TMA,
    WORDS,
    unknown_word,
)
from tirgemm.families.wgmma.planning.parts import invariant_summation, summation
from tirgemm.families.wgmma.planning.plan import Plan, plan
from tirgemm.families.wgmma.planning.registers import registers
from tirgemm.families.wgmma.planning.tile import CORE_ROWS, ELEMENT_BYTES, slab_extent
from tirgemm.families.wgmma.planning.warpgroups import MMA_M
from tirgemm.families.wgmma.space import GROUPS, LEAST_STEPS, TILES_M, TILES_N, epilogues
from tirgemm.gemm import DTYPE_BYTES, Gemm
from tirgemm.hardware import MAX_GRID

# Blocks of a cluster that share tiles by multicast, and where rows are aligned to lines of L2: larger ones lose there.
MAX_SHARED_BY, MAX_SHARED_BY_ALIGNED = 8, 2
# Tiles of this many rows and columns or fewer may leave SMs idle: nothing smaller would be better.
_SMALLEST_M, _SMALL_N = 64, 32
# Columns of a tile of which eight are no small part.
_FEW_COLUMNS = 64
# Registers of a wgmma beside its accumulators, as the assembler counts them.
_INSTRUCTION_REGISTERS = 26
# Registers of a producer's thread that copies by cp.async, or by elements, lest it spills; found by compiling.
_COPY_REGISTERS, _ELEMENT_REGISTERS = 40, 64
_MAX_WORKSPACE_BYTES = 2**30


def empty_parts(steps: Any, split: Any) -> Any:
    """Whether some of ``split`` parts get none of the ``steps`` of k: of one cut, or of arrays of them."""
    return -(-steps // split) * (split - 1) >= steps


def _words(gemm: Gemm, config: Config, device: Device) -> str | None:
    """Values that only old records have."""
    return next((reason for knob in WORDS if (reason := unknown_word(knob, config[knob]))), None)


def _schedule(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    if not cut.warpgroups.pingpong:
        return None
    if cut.cluster.parts > 1:
        return f"split={cut.split} leaves a block one tile, and pingpong needs two to overlap them"
    if evaluate(cut.grid.waves, gemm.m_max) == 1:
        return "every block has one tile; pingpong needs two to overlap them"
    return None


def _cluster(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    misaligned = misaligned_to_lines(gemm)
    limit = MAX_SHARED_BY if misaligned else MAX_SHARED_BY_ALIGNED
    if cut.cluster.shared_by > limit:
        return (
            f"cluster_m={cut.cluster_m} and cluster_n={cut.cluster_n} are {cut.cluster.shared_by} blocks that share "
            f"tiles; the limit is {limit}{'' if misaligned else ' where rows are aligned to lines of L2'}"
        )
    if cut.cluster.shared_by > 1 and cut.cluster.parts > 1:
        return (
            f"a cluster of {cut.cluster.shared_by} shares tiles where there are many; split={cut.split} is for where "
            "there are few"
        )
    for axis, size, tile, count in (
        ("m", cut.orientation.most_rows, cut.tile_m, cut.cluster_m),
        ("n", cut.orientation.most_columns, cut.tile_n, cut.cluster_n),
    ):
        tiles = -(-size // tile)
        if tiles <= count // 2:
            few = "one tile" if tiles == 1 else f"{tiles} tiles"
            return f"cluster_{axis}={count} has {few} of {tile} to share among {size} outputs along {axis}"
    return None


def _load(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    if cut.load != COPY:
        return None
    for operand, tile, name in (
        (cut.orientation.left_operand, cut.left, "cluster_n"),
        (cut.orientation.right_operand, cut.right, "cluster_m"),
    ):
        if not cut.loads.copied[operand] and not loaded_by_tma(gemm, operand):
            return (
                f"load={COPY} needs rows of {operand.upper()} that are whole pieces of 4 bytes, 4 bytes apart and "
                f"aligned, or a short k; {REPACK} does not"
            )
        if cut.loads.copied[operand] and tile.peers > 1:
            return (
                f"{name}={tile.peers} shares tiles of {operand.upper()} by multicast; load={COPY} brings them by "
                "threads, to one block"
            )
    need = _ELEMENT_REGISTERS if cut.loads.by_elements else _COPY_REGISTERS
    if cut.loads.copies and (left := registers(cut).producer) < need:
        return f"a thread that copies takes {need} registers; consumers leave it {left}"
    return None


def _tile(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    for axis, size, tile, smaller in (
        ("m", cut.orientation.most_rows, cut.tile_m, TILES_M),
        ("n", cut.orientation.most_columns, cut.tile_n, TILES_N),
    ):
        enough = [s for s in smaller if size <= s < tile]
        if enough and not (axis == "n" and _hardly_wider(cut, enough[0])):
            return f"tile_{axis}={tile} is more than the {size} outputs along it need: {enough[0]} is enough"
    return None


def _hardly_wider(cut: Plan, columns: int) -> bool:
    """Whether tiles of so many ``columns`` would save next to nothing: the same slabs, or eight columns of many."""
    same = not cut.right.k_major and slab_extent(columns) == slab_extent(cut.tile_n)
    return same or (columns > _FEW_COLUMNS and cut.tile_n - columns <= CORE_ROWS)


def _accumulators(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    groups = cut.warpgroups
    # Before setmaxnreg, that is for the assembler, threads share the registers evenly, in eights.
    even = device.limits.registers_per_sm // (groups.threads * cut.resident) // 8 * 8
    need = groups.accumulator_registers // groups.blocks + _INSTRUCTION_REGISTERS
    if need > even:
        return f"a wgmma of {cut.tile_n} columns takes {need} registers; each of {groups.threads} threads has {even}"
    dealt = registers(cut)
    if groups.accumulator_registers <= dealt.for_accumulators:
        return None
    return (
        f"a thread has {groups.accumulator_registers} registers of accumulators; {groups.consumers} consumer "
        f"warpgroups of {dealt.consumer} registers leave room for {dealt.for_accumulators}"
    )


def _stages(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    steps = cut.grid.tile_steps * (evaluate(cut.grid.waves, gemm.m_max) if cut.cluster.parts == 1 else 1)
    if cut.stages > max(2, steps):
        return f"stages={cut.stages} are more than the {steps} steps of k that a block takes in all"
    return None


def _shared(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut, limit = plan(gemm, config, device.units), device.limits.shared_per_block
    if cut.resident > 1:
        limit = device.limits.shared_per_sm // cut.resident - RESERVED_BYTES
    if cut.memory.nbytes <= limit:
        return None
    return f"stages={cut.stages} need {cut.memory.nbytes} bytes of shared memory; a block of {device.arch} has {limit}"


def _split(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    if cut.split == 1:
        return None if cut.reduction == CLUSTER else f"there are no parts for reduction={cut.reduction} to add"
    steps, in_part = cut.grid.steps, cut.grid.split_steps
    if in_part < LEAST_STEPS:
        return f"split={cut.split} leaves {in_part} of {steps} steps of k; a part needs {LEAST_STEPS}"
    if empty_parts(steps, cut.split):
        return f"split={cut.split} parts of {in_part} steps are more than the {steps} steps of k"
    tiles = evaluate(cut.grid.work, gemm.m_max) // (cut.split if cut.cluster.writes_partials else 1)
    if gemm.invariant:
        pass  # its parts are the same for every m, however many tiles there are
    elif cut.cluster.adds_in_turn:
        return (
            f"split={cut.split} parts that a block computes in turn take longer than one; only invariant rows need them"
        )
    elif tiles >= device.units:
        return f"{tiles} tiles keep {device.units} SMs busy without split={cut.split}"
    elif tiles * cut.split > 2 * device.units and cut.split > 2:
        return f"split={cut.split} makes {tiles * cut.split} parts for {device.units} SMs; fewer would keep them busy"
    if cut.cluster.adds_in_turn:
        return None
    return _in_cluster(cut) if cut.cluster.adds_parts else _by_kernel(cut)


def _in_cluster(cut: Plan) -> str | None:
    if cut.split > MAX_CLUSTER:
        return f"split={cut.split} is more than the {MAX_CLUSTER} blocks of a cluster"
    if cut.warpgroups.blocks > 1:
        return f"tile_m={cut.tile_m} gives a thread {cut.warpgroups.blocks} blocks of rows; a cluster adds one"
    room = cut.stages * cut.memory.stage_bytes
    if cut.memory.exchanged_bytes > room:
        return f"the sums of a tile are {cut.memory.exchanged_bytes} bytes; its stages leave {room}"
    return None


def _by_kernel(cut: Plan) -> str | None:
    if cut.orientation.swapped:
        return "the second kernel adds rows of D; swapped tiles are D's columns"
    nbytes = 4 * evaluate(cut.grid.partial_elements, cut.gemm.m_max)
    if nbytes > _MAX_WORKSPACE_BYTES:
        return f"split={cut.split} needs {nbytes} bytes of workspace; the limit is {_MAX_WORKSPACE_BYTES}"
    return None


def _epilogue(gemm: Gemm, config: Config, device: Device) -> str | None:
    way, cut = config["epilogue"], plan(gemm, config, device.units)
    if cut.cluster.writes_partials and way != DIRECT:
        return f"split={cut.split} writes partial sums, which are fp32 and leave by epilogue={DIRECT}"
    if way == STAGED and DTYPE_BYTES[gemm.out] > ELEMENT_BYTES:
        return f"epilogue={STAGED} stores 16-bit outputs; {gemm.out} leaves by {' or '.join(epilogues(gemm))}"
    if way == TMA and not stored_by_tma(gemm):
        other = next(other for other in epilogues(gemm) if other != TMA)
        return f"epilogue={TMA} needs rows of D of whole 16 bytes, 16 bytes apart and aligned; {other} does not"
    return None


def _raster(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    rows, columns = evaluate(cut.grid.tiles_m, gemm.m_max), evaluate(cut.grid.tiles_n, gemm.m_max)
    along = columns if cut.order == "n" else rows
    if cut.group not in up_to(along, GROUPS):
        return f"group={cut.group} is more than the {along} tiles along {cut.order}: a smaller group is the same order"
    if cut.order == "n" and along == 1:
        return "there is one tile along n, so that order=n is the same as order=m with group=1"
    return None


def _resident(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    blocks = evaluate(cut.grid.work, gemm.m_max) * cut.cluster.size
    if cut.resident == 1 or blocks > device.units:
        return None
    return f"{blocks} blocks have an SM each: there are no two to share one"


def _grid(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = plan(gemm, config, device.units)
    # A warpgroup counts on to the first tile that does not exist.
    count, limit = evaluate(cut.grid.work, gemm.m_max), MAX_GRID[0] - 4 * device.units
    return None if count <= limit else f"there are {count} tiles; the limit is {limit}"


def _waves(gemm: Gemm, config: Config, device: Device) -> str | None:
    """Idle SMs that smaller tiles or a split would use."""
    cut = plan(gemm, config, device.units)
    work = evaluate(cut.grid.work, gemm.m_max) * cut.cluster.size
    if 2 * work > device.units or (cut.tile_m == _SMALLEST_M and cut.tile_n <= _SMALL_N):
        return None
    if _with_smaller_tile(cut) <= work:
        return None
    return f"{work} blocks keep fewer than half of {device.units} SMs busy; smaller tiles would be more"


def _with_smaller_tile(cut: Plan) -> int:
    """Blocks that there would be with the larger side of the tile halved."""
    halve_m = cut.tile_m > MMA_M and cut.tile_m >= cut.tile_n
    m, n = (cut.tile_m // 2, cut.tile_n) if halve_m else (cut.tile_m, max(TILES_N[0], cut.tile_n // 2))
    return (
        -(-cut.orientation.most_rows // m) * -(-cut.orientation.most_columns // n) * cut.gemm.batch * cut.cluster.parts
    )


RULES: tuple[Rule, ...] = (
    Rule("words", _words),
    invariant_rule(lambda gemm, config: summation(gemm.k, config["split"], config["tile_k"]), invariant_summation),
    Rule("epilogue", _epilogue),
    Rule("load", _load),
    Rule("tile", _tile),
    Rule("accumulators", _accumulators),
    Rule("shared", _shared),
    Rule("cluster", _cluster),
    Rule("schedule", _schedule),
    Rule("split", _split),
    Rule("resident", _resident),
    Rule("stages", _stages),
    Rule("raster", _raster),
    Rule("grid", _grid),
    Rule("waves", _waves),
)
