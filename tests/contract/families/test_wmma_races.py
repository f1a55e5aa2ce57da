"""The source of wmma kernels on the emulator: right in any order of threads, and wrong where a barrier is taken
away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.families.emulation import emulate
from tirgemm.config import Value
from tirgemm.families.base import Program
from tirgemm.families.wmma import Wmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build import cuda
from verification.emulator.operands import KernelCall
from verification.emulator.wmma_on_cpu import emulated

_DEVICE = named_device("sm_90a")
_FAMILY = Wmma()
_TILE = {"tile_m": 32, "tile_n": 64, "tile_k": 32, "warps_m": 2, "warps_n": 2, "split": 1, "raster": 1}


def _program(gemm: Gemm, **changes: Value) -> Program:
    config = _FAMILY.default(gemm, _DEVICE, "sustained").with_(**_TILE | changes)
    return _FAMILY.instantiate(gemm, config, _DEVICE)


# Rows, columns and k all end inside a tile; fewer steps than stages too.
@pytest.mark.parametrize(
    ("text", "stages", "registers"),
    [
        ("40x72x150:f16:nt:ldb=152:lda=152:beta", 2, 1),
        ("1..35x66x100:f16:nn:ldb=72:bias:alpha", 3, 1),
        ("40x70x100:f16:tn:acc=f16:align=4", 4, 1),
        ("40x70x100:f16:tt:align=4", 2, 2),
        ("40x72x150:f16:nt:ldb=152:lda=152:beta", 3, 2),
        ("1..35x66x100:f16:nn:ldb=72:bias:alpha", 4, 2),
    ],
)
def test_result_does_not_depend_on_the_order_of_threads(text: str, stages: int, registers: int, tmp_path: Path) -> None:
    gemm = Gemm.parse(text)
    program = _program(gemm, stages=stages, registers=registers)
    host, source = cuda.lower(program, _DEVICE.arch)
    case = KernelCall.random(gemm, gemm.m_max, seed=3)
    case.check(emulate(*emulated(source, cuda.checked_launch(program, host)), case, tmp_path))


# Of the kernel's barriers: with two sets of registers the one before the loop and the one in it; then those around the
# first row of staged sums. The first of these is not needed with two sets: the last fragments are loaded ahead.
@pytest.mark.parametrize(("registers", "which"), [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 3)], ids=str)
def test_emulator_sees_a_missing_barrier(registers: int, which: int, tmp_path: Path) -> None:
    # A warp has two rows of fragments, so that staged sums are overwritten too; the last of seven steps lies where they
    # go.
    gemm = Gemm.parse("32x32x224:f16:nt")
    program = _program(gemm, stages=3, registers=registers, warps_m=1, tile_n=32)
    host, source = cuda.lower(program, _DEVICE.arch)
    source, launch = emulated(source, cuda.checked_launch(program, host))
    pieces = source.split("__syncthreads();")
    mutant = "__syncthreads();".join(pieces[: which + 1]) + "__syncthreads();".join(pieces[which + 1 :])
    case = KernelCall.random(gemm, 32, seed=4)
    with pytest.raises(AssertionError):
        case.check(emulate(mutant, launch, case, tmp_path))


@pytest.mark.parametrize(("load", "split"), [("copy", 3), ("repack", 2)])
def test_the_kernels_of_a_call_run_in_order(load: str, split: int, tmp_path: Path) -> None:
    gemm = Gemm.parse("40x70x198:f16:nt:align=4:bias:alpha")
    program = _program(gemm, stages=2, registers=2, load=load, split=split)
    host, source = cuda.lower(program, _DEVICE.arch)
    launch = cuda.checked_launch(program, host)
    assert len(launch.kernels) == (2 if load == "copy" else 4)
    case = KernelCall.random(gemm, 40, seed=5)
    case.check(emulate(*emulated(source, launch), case, tmp_path))
