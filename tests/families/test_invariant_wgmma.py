"""Rows of emulated ``wgmma`` kernels: the same bits over m, tiles, steps of k, orientations and all ways to add parts.

The model adds the products of an instruction one by one, which hardware does not; what is shown is the rest: where
parts begin, in what order they are added, and the epilogue.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tirgemm.config import Config
from tirgemm.families.wgmma import Wgmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build import cuda
from verification.emulator.operands import KernelCall
from verification.emulator.wgmma_on_cpu import Kernels

FAMILY, H200 = Wgmma(), named_device("sm_90a")
# Four parts of k.
PROBLEM = "64x4096:f16:nt:out=f32:alpha:beta:bias"
MOST = 40
PLAIN: dict[str, int | str]
PLAIN = {"tile_m": 64, "cluster_m": 1, "cluster_n": 1, "schedule": "cooperative", "resident": 1, "stages": 2}
KERNELS: tuple[tuple[int, dict[str, int | str]], ...] = (
    (1, {"tile_n": 32, "tile_k": 128, "reduction": "kernel", "swap": 0}),
    (9, {"tile_n": 32, "tile_k": 64, "reduction": "cluster", "swap": 0}),
    (MOST, {"tile_n": 16, "tile_k": 128, "reduction": "cluster", "swap": 1}),
    (23, {"tile_n": 24, "tile_k": 64, "reduction": "block", "swap": 0}),
    (33, {"tile_n": 32, "tile_k": 128, "reduction": "block", "swap": 1}),
)
FREE: dict[str, int | str] = {"tile_n": 16, "tile_k": 64, "split": 1, "reduction": "cluster", "swap": 0}


@pytest.fixture(scope="module")
def inputs() -> KernelCall:
    return KernelCall.random(Gemm.parse(f"{MOST}x{PROBLEM}"), MOST, seed=5)


def first_row(gemm: Gemm, changes: dict[str, int | str], inputs: KernelCall, folder: Path) -> np.ndarray:
    """The first row of D, of inputs whose first rows are the same for every m."""
    config: Config = FAMILY.default(gemm, H200, "sustained").with_(order="m", group=1, **PLAIN | changes)
    program = FAMILY.instantiate(gemm, config, H200)
    host, source = cuda.lower(program, H200.arch)
    m = gemm.m_max
    tensors = {name: t if name in ("b", "bias") else t[:, :m] for name, t in inputs.tensors.items()}
    folder.mkdir()
    with Kernels(source, cuda.checked_launch(program, host), folder) as kernels:
        row: np.ndarray = kernels(KernelCall(gemm, m, tensors, inputs.scalars), 0)[0, 0]
    return row


def test_rows_of_every_kernel_have_the_same_bits(inputs: KernelCall, tmp_path: Path) -> None:
    rows = [
        first_row(Gemm.parse(f"{m}x{PROBLEM}:invariant"), changes, inputs, tmp_path / str(m)) for m, changes in KERNELS
    ]
    assert np.unique(rows[0]).size > 60
    for row in rows[1:]:
        assert np.array_equal(row, rows[0])
    free = first_row(Gemm.parse(f"9x{PROBLEM}"), FREE, inputs, tmp_path / "free")
    assert np.allclose(free, rows[0], rtol=1e-3, atol=1e-3)
    assert not np.array_equal(free, rows[0]), "the model would not see another order"
