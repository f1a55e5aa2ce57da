"""A config of ``wmma`` as a Program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tirgemm.families.base import Program
from tirgemm.families.common.launch_bounds import bounded
from tirgemm.families.tensorcore import program as assembled
from tirgemm.families.tensorcore.copies import Stage, copies
from tirgemm.families.tensorcore.intrinsics import exchanged
from tirgemm.families.tensorcore.pipeline import pipelined
from tirgemm.families.wmma.fragment_blocks import SYMBOL
from tirgemm.families.wmma.fragments import with_fragments
from tirgemm.families.wmma.schedule import scheduled
from tirgemm.families.wmma.tile import WmmaTiling
from tirgemm.hardware import WARP

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


def program(tiling: WmmaTiling) -> Program:
    """The scheduled module of ``tiling`` and the launch that runs it."""
    return assembled.program("wmma", tiling, kernel(tiling), (WARP, tiling.threads // WARP, 1))


def kernel(tiling: WmmaTiling) -> PrimFunc:
    """The kernel that multiplies: its schedule, then instructions, then the pipeline."""
    func, stage = scheduled(tiling).mod[SYMBOL], Stage(tiling)
    func = exchanged(func, copies(func, stage, by_turns=False))
    return bounded(pipelined(with_fragments(func, stage, tiling), spread=False), tiling.resident)
