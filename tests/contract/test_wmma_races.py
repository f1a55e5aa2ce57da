"""The source of wmma kernels on the emulator: right in any order of threads, and wrong where a barrier is taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.cuda_emulator import emulate
from tests.contract.operands import Case
from tests.contract.wmma_on_cpu import emulated
from tirgemm.families.base import Program
from tirgemm.families.wmma import Wmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.compile import cuda

_DEVICE = named_device("sm_90a")
_FAMILY = Wmma()
_TILE = {"tile_m": 32, "tile_n": 64, "tile_k": 32, "warps_m": 2, "warps_n": 2, "split": 1, "raster": 1}


def _program(gemm: Gemm, **changes: object) -> Program:
    config = _FAMILY.default(gemm, _DEVICE, "sustained").with_(**_TILE | changes)
    return _FAMILY.instantiate(gemm, config, _DEVICE)


# Rows, columns and k all end inside a tile; fewer steps than stages too.
@pytest.mark.parametrize("registers", [1, 2])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(
    "text",
    [
        "40x72x150:f16:nt:ldb=152:lda=152:beta",
        "1..35x65x100:f16:nn:ldb=72:bias:alpha",
        "40x70x100:f16:tn:acc=f16:align=4",
    ],
)
def test_result_does_not_depend_on_the_order_of_threads(text: str, stages: int, registers: int, tmp_path: Path) -> None:
    gemm = Gemm.parse(text)
    program = _program(gemm, stages=stages, registers=registers)
    host, source = cuda.lower(program, _DEVICE.arch)
    case = Case.random(gemm, gemm.m_max, seed=3)
    case.check(emulate(*emulated(source, cuda.checked_launch(program, host)), case, tmp_path))
