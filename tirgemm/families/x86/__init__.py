"""Family ``x86``: operands copied into fp32 panels, multiplied by register tiles, in vectors of AVX2 or AVX-512.

The structure is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), and of
BLIS; the code comes from TensorIR schedules through LLVM. Every sum is added in the order of k, so that any config
is deterministic.
"""

from __future__ import annotations

from tirgemm.config import Config, Space, Value
from tirgemm.device import Device
from tirgemm.families.base import Program, require_valid
from tirgemm.families.summation import refused_rows
from tirgemm.families.x86 import heuristic
from tirgemm.families.x86.rules import RULES
from tirgemm.families.x86.space import padded_elements, space
from tirgemm.gemm import MAX_SIZE, Gemm, Regime
from tirgemm.workload import index_dtype

_NEEDED = ("avx2", "f16c", "fma")


class X86:
    """fp16, bf16 or fp32 inputs, fp32 accumulation, on CPUs with AVX2, FMA and F16C."""

    name = "x86"
    rules = RULES

    def supports(self, gemm: Gemm, device: Device) -> str | None:
        if device.kind != "cpu":
            return f"x86 writes for CPUs, not for {device.kind} {device.arch}"
        missing = [feature for feature in _NEEDED if feature not in device.features]
        if missing or not device.arch.startswith("x86-64"):
            return (
                f"x86 needs the CPU features {', '.join(_NEEDED)}; {device.arch} here lacks "
                f"{', '.join(missing) or 'x86-64'}"
            )
        if gemm.acc != "f32":
            return f"x86 accumulates in f32; acc={gemm.acc} is not written for CPUs"
        if index_dtype(gemm) != "int32":
            return f"x86 indexes with 32 bits; an operand of {gemm} reaches beyond {MAX_SIZE} elements"
        largest = padded_elements(gemm, device)
        if largest > MAX_SIZE:
            return (
                f"x86 indexes with 32 bits; {largest} elements of an operand, padded to whole tiles, exceed {MAX_SIZE}"
            )
        return refused_rows(self.name, gemm, device)

    def space(self, gemm: Gemm, device: Device) -> Space:
        return space(gemm, device)

    def default(self, gemm: Gemm, device: Device, regime: Regime) -> Config:
        del regime  # the best blocking does not depend on whether the caches are warm
        return heuristic.default(gemm, device, self.space(gemm, device))

    def predict_us(self, gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
        return heuristic.predict_us(gemm, config, device, regime)

    def derived_knobs(self, config: Config) -> dict[str, Value]:
        return {"thread_n": config["vectors"] * config["lanes"]}

    def instantiate(self, gemm: Gemm, config: Config, device: Device) -> Program:
        require_valid(self, gemm, config, device)
        from tirgemm.families.x86.program import program

        return program(gemm, config)
