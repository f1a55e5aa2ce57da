"""Family ``wgmma``: warp-specialised Hopper kernels in TIRx: TMA, mbarriers, wgmma.

fp16 and bf16 inputs, fp32 or fp16 accumulation, every layout, batches, epilogues and m as a range, at any alignment:
operands that TMA cannot load are copied to aligned rows first, or loaded by cp.async. The order of every sum is the
config's, so every kernel is deterministic.
"""

from __future__ import annotations

from typing import Any

from tirgemm.config import Config, Space, Value
from tirgemm.device import Device
from tirgemm.errors import InvalidGemm
from tirgemm.expr import evaluate
from tirgemm.families.base import LoadWaits, OutputTile, Program, SharedTile, TimedProgram, require_valid
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.tile_work import TileWork
from tirgemm.families.summation import refused_rows
from tirgemm.families.wgmma import heuristic
from tirgemm.families.wgmma.estimate import load_waits
from tirgemm.families.wgmma.planning import repacking
from tirgemm.families.wgmma.planning.copies import COPYING_THREADS, copies_of
from tirgemm.families.wgmma.planning.names import BLOCK
from tirgemm.families.wgmma.planning.plan import plan
from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES
from tirgemm.families.wgmma.rules import RULES
from tirgemm.families.wgmma.space import space
from tirgemm.families.wgmma.work import estimates_us, tile_work
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand, Regime
from tirgemm.layouts import Layout, TiledCopy

_ARCH = "sm_90a"
_OPERANDS: tuple[Operand, ...] = ("a", "b")
# TMA's strides are of 40 bits, its coordinates and the tiles' counts of 32.
_MAX_STRIDE_BYTES = 2**40
# A tile of a cluster has at most 512 rows, and a step of k 128 elements.
_MAX_SIZE = 2**31 - 1024
_LARGEST_TILE = 256


class Wgmma:
    """Implements the family protocol; see ``tirgemm.families.base``."""

    name = "wgmma"
    rules = RULES

    def supports(self, gemm: Gemm, device: Device) -> str | None:
        if device.kind != "cuda":
            return f"wgmma kernels run on NVIDIA GPUs, not on {device.kind} {device.model}"
        if device.arch != _ARCH:
            return f"wgmma is an instruction of {_ARCH}; {device.arch} does not have it"
        if DTYPE_BYTES[gemm.dtype] != 2:
            return f"wgmma multiplies f16 and bf16 here, not {gemm.dtype}"
        try:
            repacking.copies(gemm)
        except InvalidGemm as error:
            return str(error)
        return self._too_large(gemm) or refused_rows(self.name, gemm, device)

    def _too_large(self, gemm: Gemm) -> str | None:
        largest = max(gemm.m_max, gemm.n, gemm.k)
        if largest > _MAX_SIZE:
            return f"sizes are rounded up to whole tiles in 32 bits: {largest} is above {_MAX_SIZE}"
        tiles = gemm.batch * -(-gemm.m_max // _LARGEST_TILE) * -(-gemm.n // _LARGEST_TILE)
        if tiles > _MAX_SIZE:
            return f"tiles are counted in 32 bits: {tiles} of {_LARGEST_TILE}x{_LARGEST_TILE} are above {_MAX_SIZE}"
        operands: tuple[Operand, ...] = (*_OPERANDS, "d")
        for operand in operands:
            nbytes = gemm.span(operand) * DTYPE_BYTES[gemm.operand_dtype(operand)]
            if nbytes >= _MAX_STRIDE_BYTES:
                return f"TMA's strides are below {_MAX_STRIDE_BYTES} bytes; {operand.upper()} takes {nbytes} bytes"
        return None

    def space(self, gemm: Gemm, device: Device) -> Space:
        return space(gemm, device)

    def default(self, gemm: Gemm, device: Device, regime: Regime) -> Config:
        return heuristic.default(gemm, device, regime)

    def predict_us(self, gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
        return heuristic.predict_us(gemm, config, device, regime)

    def shortlist(
        self, gemm: Gemm, device: Device, regime: Regime, count: int, *, trained: bool = True
    ) -> list[Config]:
        return heuristic.shortlist(gemm, device, regime, count, trained=trained)

    def derived_knobs(self, config: Config) -> dict[str, Value]:
        """As parts of k count those that different blocks compute."""
        return {"split_k": 1 if config["reduction"] == BLOCK else config["split"]}

    def tile_work(self, gemm: Gemm, configs: ConfigColumns, device: Device) -> TileWork:
        return tile_work(gemm, configs, device)

    def estimates_us(self, gemm: Gemm, configs: ConfigColumns, device: Device, regime: Regime) -> Any:
        return estimates_us(gemm, configs, device, regime)

    def output_tile(self, gemm: Gemm, config: Config, device: Device, m: int) -> OutputTile:
        cut = plan(gemm, config, device.units)
        rows, columns = (cut.tile_n, cut.tile_m) if cut.orientation.swapped else (cut.tile_m, cut.tile_n)
        tiles = None if cut.cluster.adds_parts else evaluate(cut.grid.work, m) * cut.cluster.size
        return OutputTile(rows, columns, cut.tile_k, tiles, cut.cluster.split if cut.cluster.writes_partials else 1)

    def load_waits(self, gemm: Gemm, config: Config, device: Device, regime: Regime) -> LoadWaits:
        return load_waits(plan(gemm, config, device.units), gemm, device, regime)

    def shared_tile(self, gemm: Gemm, config: Config, device: Device) -> SharedTile:
        cut = plan(gemm, config, device.units)
        tile = cut.right if cut.orientation.swapped else cut.left
        copy = None
        if cut.loads.copied["a"]:
            copy = TiledCopy.row_major(COPYING_THREADS, tile.width, copies_of(cut, "a").elements)
        span = tile.width * ELEMENT_BYTES
        return SharedTile(Layout.tma(tile.rows, tile.width, ELEMENT_BYTES, span), copy, cut.memory.stage_bytes)

    def instantiate(self, gemm: Gemm, config: Config, device: Device) -> Program:
        from tirgemm.families.wgmma.program import program

        require_valid(self, gemm, config, device)
        return program(plan(gemm, config, device.units))

    def timed_program(self, gemm: Gemm, config: Config, device: Device, slots: int) -> TimedProgram:
        from tirgemm.families.wgmma.program import timed_program

        require_valid(self, gemm, config, device)
        return timed_program(plan(gemm, config, device.units), slots)
