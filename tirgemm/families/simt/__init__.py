"""Family ``simt``: blocked kernels on the CUDA cores, scheduled in TensorIR.

Tiles of A and B in shared memory, an outer product in registers for every k, fp32 accumulation (fp16 where the
problem says so). Any sizes, layouts, strides, batches and epilogues; the order of every sum is the config's, so every
kernel is deterministic.
"""

from __future__ import annotations

from tirgemm.config import Config, Space, Value
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig
from tirgemm.expr import evaluate
from tirgemm.families.base import LoadWaits, Program, SharedTile, require_rules
from tirgemm.families.simt import heuristic
from tirgemm.families.simt.rules import RULES
from tirgemm.families.simt.space import ladder_space, space
from tirgemm.families.simt.tiling import PIPELINES, blocks, tiling, transposes
from tirgemm.families.summation import refused_rows
from tirgemm.gemm import Gemm, Range, Regime
from tirgemm.hardware import ARCHITECTURES, MAX_GRID
from tirgemm.layouts import Layout, TiledCopy

_LARGEST_BLOCK = (128, 128)


class Simt:
    """Implements the family protocol; see ``tirgemm.families.base``."""

    name = "simt"
    rules = RULES

    def supports(self, gemm: Gemm, device: Device) -> str | None:
        if device.kind != "cuda":
            return f"simt kernels run on NVIDIA GPUs, not on {device.kind} {device.model}"
        if device.arch not in ARCHITECTURES:
            return f"simt kernels are compiled for {', '.join(ARCHITECTURES)}, not for {device.arch}"
        count = evaluate(blocks(gemm, *_LARGEST_BLOCK), gemm.m_max)
        if count > MAX_GRID[0]:
            return f"even blocks of 128x128 outputs are {count} blocks; the driver takes at most {MAX_GRID[0]}"
        if isinstance(gemm.m, Range):
            columns = -(-gemm.n // _LARGEST_BLOCK[1])
            if max(columns, gemm.batch) > MAX_GRID[1]:
                return (
                    f"m is a range, n makes {columns} columns of blocks, batch is {gemm.batch}; both may be "
                    f"{MAX_GRID[1]}"
                )
        return refused_rows(self.name, gemm, device)

    def space(self, gemm: Gemm, device: Device) -> Space:
        return space(gemm)

    def default(self, gemm: Gemm, device: Device, regime: Regime) -> Config:
        return heuristic.default(gemm, device, regime)

    def predict_us(self, gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
        return heuristic.predict_us(gemm, config, device, regime)

    def load_waits(self, gemm: Gemm, config: Config, device: Device, regime: Regime) -> LoadWaits:
        return heuristic.load_waits(gemm, config, device, regime)

    def derived_knobs(self, config: Config) -> dict[str, Value]:
        return {"stages": PIPELINES[config["pipeline"]]}

    def shared_tile(self, gemm: Gemm, config: Config, device: Device) -> SharedTile | None:
        cut = tiling(gemm, config)
        if not cut.shares:
            return None
        rows, columns = (
            (cut.block_m, cut.block_k) if cut.reads != "fragments" and not gemm.trans_a else (cut.block_k, cut.block_m)
        )
        layout = Layout.padded(rows, columns, cut.element_bytes, cut.pad_a)
        line = cut.block_k if transposes(gemm, "a") else cut.block_m
        try:
            copy = TiledCopy.row_major(cut.threads, line, cut.width_a)
        except InvalidConfig:
            copy = None
        return SharedTile(layout, copy, layout.nbytes)

    def instantiate(self, gemm: Gemm, config: Config, device: Device) -> Program:
        """The program of a config, which may be a rung's: its choices are those of ``ladder_space``."""
        from tirgemm.families.simt.program import program

        ladder_space(gemm).check(config)
        require_rules(self, gemm, config, device)
        return program(gemm, tiling(gemm, config))
