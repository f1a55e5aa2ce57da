"""The memory accesses of a config's kernels, from its family's program on."""

from __future__ import annotations

from tirgemm.analysis.memory_traffic import KernelAnalysis, analyse
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import family_named
from tirgemm.families.base import Program
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.cuda import checked_launch, compile_lowered, lower_all


def memory_of(
    gemm: Gemm, config: Config, device: Device, *, compiled: bool = True, m: int = 0
) -> tuple[KernelAnalysis, ...]:
    """The accesses of every kernel of ``config``, in order of launch."""
    program = family_named(config.family).instantiate(gemm, config, device)
    return memory_of_program(program, gemm, device, compiled=compiled, m=m)


def memory_of_program(
    program: Program, gemm: Gemm, device: Device, *, compiled: bool = True, m: int = 0
) -> tuple[KernelAnalysis, ...]:
    """The accesses of every kernel of ``program``, in order of launch; as written where it is not ``compiled``."""
    host, module, source = lower_all(program, device.arch)
    cubin = compile_lowered(source, device.arch)[1].data if compiled else None
    return analyse(module, checked_launch(program, host), gemm, device, cubin, m)
