"""Every pipeline of simt on the emulator: right in any order of threads, and wrong where a barrier is taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.families.emulation import emulate
from tirgemm.config import Value
from tirgemm.families import FAMILIES
from tirgemm.families.base import Program
from tirgemm.families.simt.tiling import PIPELINES
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build import cuda
from verification.emulator.cuda_emulator import Diverged
from verification.emulator.operands import KernelCall

_DEVICE = named_device("sm_90a")
_FAMILY = FAMILIES["simt"]


def _program(gemm: Gemm, **changes: Value) -> Program:
    config = _FAMILY.default(gemm, _DEVICE, "sustained").with_(**changes)
    return _FAMILY.instantiate(gemm, config, _DEVICE)


# Few threads copy the second tile in the first problem; k ends inside a step in both.
@pytest.mark.parametrize("text", ["9x68x76:f32:nn:beta", "1..37x31x45:f32:nt:alpha"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_result_does_not_depend_on_the_order_of_threads(text: str, pipeline: str, tmp_path: Path) -> None:
    gemm = Gemm.parse(text)
    program = _program(gemm, pipeline=pipeline)
    host, source = cuda.lower(program, _DEVICE.arch)
    launch = cuda.checked_launch(program, host)
    case = KernelCall.random(gemm, gemm.m_max, seed=3)
    case.check(emulate(source, launch, case, tmp_path))


# Vectors of eight halves are converted to eight floats; the guards of rows, columns and k all cut some tile.
@pytest.mark.parametrize("text", ["20x72x88:f16:nt:bias", "20x72x88:f16:tn:beta", "20x72x88:f16:nn:acc=f16"])
def test_wide_loads_of_halves_mean_what_they_should(text: str, tmp_path: Path) -> None:
    gemm = Gemm.parse(text)
    program = _program(gemm, vector=8, block_k=32)
    host, source = cuda.lower(program, _DEVICE.arch)
    case = KernelCall.random(gemm, gemm.m_max, seed=6)
    case.check(emulate(source, cuda.checked_launch(program, host), case, tmp_path))


@pytest.mark.parametrize("pipeline", ["none", "register", "async3"])
@pytest.mark.parametrize("which", [0, 1])
def test_emulator_sees_a_missing_barrier(pipeline: str, which: int, tmp_path: Path) -> None:
    gemm = Gemm.parse("16x68x256:f32:nn")
    program = _program(gemm, pipeline=pipeline)
    host, source = cuda.lower(program, _DEVICE.arch)
    pieces = source.split("__syncthreads();")
    # The loop's two barriers come first; what follows it has its own.
    mutant = "__syncthreads();".join(pieces[: which + 1]) + "__syncthreads();".join(pieces[which + 1 :])
    case = KernelCall.random(gemm, 16, seed=4)
    with pytest.raises(AssertionError):
        case.check(emulate(mutant, cuda.checked_launch(program, host), case, tmp_path))


def test_emulator_sees_a_barrier_that_some_threads_skip(tmp_path: Path) -> None:
    gemm = Gemm.parse("16x68x64:f32:nn")
    program = _program(gemm, pipeline="none")
    host, source = cuda.lower(program, _DEVICE.arch)
    mutant = source.replace("__syncthreads();", "if (threadIdx.x < 32) __syncthreads();", 1)
    with pytest.raises(Diverged):
        emulate(mutant, cuda.checked_launch(program, host), KernelCall.random(gemm, 16, seed=5), tmp_path)
