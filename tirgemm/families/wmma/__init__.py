"""Family ``wmma``: 16x16x16 fragments on the tensor cores, scheduled in TensorIR; shared tiles with padded rows.

16-bit inputs, fp32 or fp16 accumulation, any sizes, layouts, strides, batches and epilogues. The order of every sum is
the config's, a split's too, so that every kernel is deterministic.
"""

from __future__ import annotations

from tirgemm.config import Config, Space
from tirgemm.device import Device
from tirgemm.families.base import Program, Rule, require_valid
from tirgemm.families.wmma import heuristic
from tirgemm.families.wmma.rules import MAX_GRID, RULES
from tirgemm.families.wmma.space import space
from tirgemm.families.wmma.tiling import tiling
from tirgemm.gemm import Gemm, Range
from tirgemm.hardware import ARCHITECTURES

__all__ = ["Wmma"]

# Tiles that a config may have for any problem; the grid has fewest blocks with them.
_LARGEST = 256


class Wmma:
    """Implements the family protocol; see ``tirgemm.families.base``."""

    name = "wmma"

    @property
    def rules(self) -> tuple[Rule, ...]:
        return RULES

    def supports(self, gemm: Gemm, device: Device) -> str | None:
        if device.kind != "cuda":
            return f"wmma kernels run on NVIDIA GPUs, not on {device.kind} {device.model}"
        if device.arch not in ARCHITECTURES:
            return f"wmma kernels are compiled for {', '.join(ARCHITECTURES)}, not for {device.arch}"
        if gemm.dtype == "f32":
            return "wmma multiplies f16 and bf16; f32 inputs would be rounded to TF32"
        rows, columns = -(-gemm.m_max // _LARGEST), -(-gemm.n // _LARGEST)
        if rows * columns * gemm.batch > MAX_GRID[0]:
            return f"even tiles of 256x256 are {rows * columns * gemm.batch} blocks; the driver takes at most {MAX_GRID[0]}"
        if isinstance(gemm.m, Range) and max(columns, gemm.batch) > MAX_GRID[1]:
            return f"m is a range, n makes {columns} columns of tiles, batch is {gemm.batch}; both may be {MAX_GRID[1]}"
        return None

    def space(self, gemm: Gemm, device: Device) -> Space:  # noqa: ARG002
        return space(gemm)

    def default(self, gemm: Gemm, device: Device, regime: str) -> Config:
        return heuristic.default(gemm, device, regime)

    def predict_us(self, gemm: Gemm, config: Config, device: Device, regime: str) -> float:
        return heuristic.predict_us(gemm, config, device, regime)

    def instantiate(self, gemm: Gemm, config: Config, device: Device) -> Program:
        from tirgemm.families.wmma.program import program

        require_valid(self, gemm, config, device)
        return program(tiling(gemm, config))
