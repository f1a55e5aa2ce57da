"""What a config's kernels do to memory: lowers and compiles it, and hands both to the analysis."""

from __future__ import annotations

from tirgemm.analysis.kernel import KernelAnalysis, analyse
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.families import family_named
from tirgemm.families.base import Program
from tirgemm.families.tracing import quick_tracing
from tirgemm.gemm import Gemm
from tirgemm.tuning.compile.cuda import checked_launch, lower_all
from tirgemm.tuning.compile.nvrtc import compile_source


def memory_of(
    gemm: Gemm, config: Config, device: Device, *, compiled: bool = True, m: int = 0
) -> tuple[KernelAnalysis, ...]:
    """The memory accesses of every kernel of ``config``, in order of launch.

    ``compiled`` false reports as written, without compiling; ``m``: what a range is taken to be, its largest by default.
    Raises Unsupported for a CPU and for a gemm that the family does not write, InvalidConfig, BuildFailed.
    """
    family = family_named(config.family)
    if device.kind != "cuda":
        raise Unsupported(f"{device.name} is a {device.kind}: memory accesses are analysed of GPU kernels only")
    reason = family.supports(gemm, device)
    if reason is not None:
        raise Unsupported(f"{config.family} does not write {gemm} for {device.name}: {reason}")
    with quick_tracing():
        program = family.instantiate(gemm, config, device)
    return memory_of_program(program, gemm, device, compiled=compiled, m=m)


def memory_of_program(
    program: Program, gemm: Gemm, device: Device, *, compiled: bool = True, m: int = 0
) -> tuple[KernelAnalysis, ...]:
    """As ``memory_of``, of a program that is at hand."""
    host, module, source = lower_all(program, device.arch)
    launch = checked_launch(program, host)
    cubin = compile_source(source, device.arch).data if compiled else None
    return analyse(module, launch, gemm, device, cubin, m)
