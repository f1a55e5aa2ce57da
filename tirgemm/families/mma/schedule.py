"""The schedule of ``mma``: from the staged problem to a kernel, one small step a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tirgemm.families.mma.epilogue import finish_rows
from tirgemm.families.mma.fragment_blocks import StagedMma
from tirgemm.families.tensorcore.names import STAGED
from tirgemm.families.tensorcore.pipeline import INNER, STEPS
from tirgemm.families.tensorcore.schedule import GRID_LOOPS, copy_by_all_threads, place_on_grid, share_tile
from tirgemm.families.tensorcore.tiling import Tiling

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

SYMBOL = "mma_gemm"


@dataclass(frozen=True)
class MmaLoops:
    """The loops of the ``gemm`` block once placed on the machine."""

    thread: Any
    outputs: Any
    """The loop over threads around the outputs that each finishes."""
    step: Any
    inner: Any


def scheduled(tiling: Tiling, registers: int) -> tuple[Schedule, MmaLoops]:
    """The schedule before instructions take the place of what spells them out."""
    from tvm import IRModule
    from tvm.s_tir import Schedule

    sch = Schedule(IRModule({SYMBOL: StagedMma(tiling, SYMBOL).primfunc()}), debug_mask="none")
    sch.work_on(SYMBOL)
    nest = place_with_rows(sch, tiling) if tiling.epilogue == STAGED else place_on_machine(sch, tiling)
    sch.set_scope("gemm", 0, "local")
    load_fragments(sch, nest)
    for side in tiling.sides:
        share_tile(sch, side, nest.step)
        copy_by_all_threads(sch, side, (("threadIdx.x", tiling.threads),))
    mark_products(sch, nest)
    overlap(sch, nest, tiling, registers)
    return sch, nest


def place_on_machine(sch: Schedule, tiling: Tiling) -> MmaLoops:
    """Bind blocks to the grid, warps and lanes to threads, and finish outputs in the registers of their sums'
    threads."""
    block = sch.get_sblock("gemm")
    inner = sch.get_loops(block)[GRID_LOOPS:]
    grid = place_on_grid(sch, tiling, block, inner)
    wm, wn, lane, step, ki = inner[:5]
    thread = sch.fuse(wm, wn, lane)
    sch.bind(thread, "threadIdx.x")
    finish_in_registers(sch, thread, grid + 1, tiling)
    return MmaLoops(thread, thread, step, ki)


def place_with_rows(sch: Schedule, tiling: Tiling) -> MmaLoops:
    """As ``place_on_machine``, but finish outputs behind all sums of the block, by other threads than those of their
    sums."""
    epilogue, block = sch.get_sblock("epilogue"), sch.get_sblock("gemm")
    inner = sch.get_loops(epilogue)[GRID_LOOPS:]
    grid = place_on_grid(sch, tiling, epilogue, inner)
    wm, wn, lane, rows, turns, vector = inner
    outputs = sch.fuse(wm, wn, lane)
    sch.compute_at(block, sch.get_loops(epilogue)[grid - 1], preserve_unit_loops=True)
    finish_rows(sch, outputs, rows, turns, vector, tiling)
    wm, wn, lane, step, ki = sch.get_loops(block)[grid + GRID_LOOPS :][:5]
    thread = sch.fuse(wm, wn, lane)
    sch.bind(thread, "threadIdx.x")
    return MmaLoops(thread, outputs, step, ki)


def finish_in_registers(sch: Schedule, thread: Any, outer: int, tiling: Tiling) -> None:
    """Every thread finishes its own sums, two neighbours at once where D is aligned; ``outer`` loops are around
    that."""
    epilogue = sch.get_sblock("epilogue")
    sch.reverse_compute_at(epilogue, thread, preserve_unit_loops=True)
    *_, last = sch.get_loops(epilogue)
    _, vector = sch.split(last, [None, 2 if tiling.split > 1 else min(2, tiling.width_d)])
    sch.vectorize(vector)
    for loop in sch.get_loops(epilogue)[outer:-1]:
        sch.unroll(loop)


def load_fragments(sch: Schedule, nest: MmaLoops) -> None:
    """Read a warp's fragments of each 16 of k from shared memory once."""
    for operand in ("a", "b"):
        fragment = sch.get_sblock(f"{operand}_frag")
        sch.set_scope(fragment, 0, "local")
        sch.compute_at(fragment, nest.inner, preserve_unit_loops=True)
        lane = sch.get_loops(fragment)[-2]
        sch.blockize(lane)


def mark_products(sch: Schedule, nest: MmaLoops) -> None:
    """One instruction's products become a block of their own."""
    gemm = sch.get_sblock("gemm")
    sch.decompose_reduction(gemm, nest.step)
    update = sch.get_sblock("gemm_update")
    sch.blockize(sch.get_loops(update)[-2])


def overlap(sch: Schedule, nest: MmaLoops, tiling: Tiling, registers: int) -> None:
    """Mark the loops that ``pipelined`` overlaps: ``stages`` steps in flight, ``registers`` sets of fragments."""
    sch.annotate(nest.step, STEPS, tiling.stages)
    sch.annotate(nest.inner, INNER, registers)
