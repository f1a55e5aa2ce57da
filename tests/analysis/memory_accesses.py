"""The memory accesses of a config's kernels, from its family's program on."""

from __future__ import annotations

from tirgemm.analysis.memory_traffic import KernelAnalysis
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.tuning.explain import memory_of_program


def memory_of(
    gemm: Gemm, config: Config, device: Device, *, compiled: bool = True, m: int = 0
) -> tuple[KernelAnalysis, ...]:
    """The accesses of every kernel of ``config``, in order of launch."""
    program = family_named(config.family).instantiate(gemm, config, device)
    return memory_of_program(program, gemm, device, compiled=compiled, m=m)
