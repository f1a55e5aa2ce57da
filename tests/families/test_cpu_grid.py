"""``grid_program``: schedules of the workload as kernels of a CPU's grid, run; the family of docs/adding-a-family.md is
one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.contract.families.cpu_runner import run
from tests.newcomer.pages import blocks
from tirgemm.detect import device as detect
from tirgemm.errors import InvalidConfig
from tirgemm.families import Family, rejected
from tirgemm.families.cpu_grid import grid_program
from tirgemm.gemm import Gemm
from tirgemm.launch import Pointer, Scalar
from tirgemm.workload import workload
from verification.emulator.operands import KernelCall

ROOT = Path(__file__).resolve().parents[2]
DEVICE = detect("cpu")


def tiled() -> Family:
    """The page's family."""
    actual: dict[str, Any] = {}
    page = blocks(ROOT / "docs" / "adding-a-family.md", ROOT)
    exec(next(block.body for block in page if block.title == "tiled.py"), actual)
    family: Family = actual["Tiled"]()
    return family


@pytest.mark.parametrize(
    "text",
    [
        "64x64x64:f32:nn",
        "36x24x7:f16:nt:alpha:beta:bias:act=gelu",
        "12x40x33:bf16:tn:batch=3:bias:act=silu:out=f32",
        "4x8x2:f32:nt",
        "8x8x1:f32:tt:lda=9:ldb=11:ldd=17:beta:ldc=13:align=4",
    ],
)
def test_scheduled_workloads_compute_the_problem_block_by_block(text: str) -> None:
    gemm, family = Gemm.parse(text), tiled()
    assert isinstance(family, Family)
    assert family.supports(gemm, DEVICE) is None
    space = family.space(gemm, DEVICE)
    configs = [config for config in space if rejected(family, gemm, config, DEVICE) is None]
    default = family.default(gemm, DEVICE, "sustained")
    for number, config in enumerate([default, *random.Random(text).sample(configs, 2)]):
        program = family.instantiate(gemm, config, DEVICE)
        (kernel,) = program.launch.kernels
        tiles = gemm.m_max // config["tile_m"] * (gemm.n // config["tile_n"]) * gemm.batch
        assert kernel.grid == (tiles, 1, 1)
        assert kernel.params == (
            *(Pointer(name) for name in (*gemm.inputs, "d")),
            *(Scalar(name) for name in gemm.scalars),
        )
        case = KernelCall.random(gemm, gemm.m_max, seed=number)
        case.check(run(program, case, DEVICE))


def test_a_schedule_without_one_outermost_loop_is_refused() -> None:
    from tvm.s_tir import Schedule

    gemm = Gemm.parse("8x8x8:f32:nn")
    with pytest.raises(InvalidConfig, match=r"8x8x8:f32:nn.* has no single outermost loop with a constant extent"):
        grid_program(gemm, Schedule(workload(gemm)))
