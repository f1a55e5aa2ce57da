"""Family ``mma``: m16n8k16 on the tensor cores, fed by ldmatrix, scheduled in TensorIR.

Tiles reach shared memory by cp.async in up to five stages, permuted so that neither those copies nor ldmatrix meet bank
conflicts; fragments are double-buffered in registers. fp16 and bf16 inputs, fp32 or fp16 accumulation, any sizes,
layouts, strides, batches and epilogues; the order of every sum is the config's, so every kernel is deterministic.
"""

from __future__ import annotations

from tirgemm.config import Config, Space
from tirgemm.device import Device
from tirgemm.families.base import LoadWaits, Program, SharedTile, require_valid
from tirgemm.families.mma import heuristic
from tirgemm.families.mma.rules import RULES
from tirgemm.families.mma.space import space, tiling
from tirgemm.families.summation import refused_rows
from tirgemm.families.tensorcore.default_choice import shortlist
from tirgemm.families.tensorcore.estimate import load_waits
from tirgemm.families.tensorcore.tiling import unsupported
from tirgemm.gemm import Gemm, Regime


class Mma:
    """Implements the family protocol; see ``tirgemm.families.base``."""

    name = "mma"
    rules = RULES

    def supports(self, gemm: Gemm, device: Device) -> str | None:
        return unsupported(gemm, device, self.name) or refused_rows(self.name, gemm, device)

    def space(self, gemm: Gemm, device: Device) -> Space:
        return space(gemm)

    def default(self, gemm: Gemm, device: Device, regime: Regime) -> Config:
        return self.shortlist(gemm, device, regime, 1)[0]

    def shortlist(
        self, gemm: Gemm, device: Device, regime: Regime, count: int, *, trained: bool = True
    ) -> list[Config]:
        return shortlist(self, heuristic.configs_of_cuts, gemm, device, regime, count, trained=trained)

    def predict_us(self, gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
        return heuristic.predict_us(gemm, config, device, regime)

    def load_waits(self, gemm: Gemm, config: Config, device: Device, regime: Regime) -> LoadWaits:
        return load_waits(gemm, config, device, regime)

    def shared_tile(self, gemm: Gemm, config: Config, device: Device) -> SharedTile:
        return tiling(gemm, config).shared_tile

    def instantiate(self, gemm: Gemm, config: Config, device: Device) -> Program:
        from tirgemm.families.mma.program import program

        require_valid(self, gemm, config, device)
        return program(tiling(gemm, config), config["registers"])
