"""Programmatic dependent launch of whole calls: a kernel is launched while the one before it in the stream ends.

Every kernel of a call waits at its entry for all that is ahead of it (``griddepcontrol.wait``, PTX ISA, from sm_90 on)
and reads and writes nothing before; what overlaps is the launch itself. It lets the next one be launched as soon as all
of its own blocks run. A kernel that does not ask for it, such as PyTorch's, begins as ever.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import BuildFailed
from tirgemm.gemm import Gemm
from tirgemm.hardware import dependent_launch_refusal
from tirgemm.launch import DEPENDENT_LAUNCH, KernelLaunch, Launch
from tirgemm.tuning.build import compile as plain
from tirgemm.tuning.build.binary import Binary

# The name of the function here that a build pool compiles with.
BUILDER = f"{__name__}:build"
_WAIT = (
    '\n  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");'
    '\n  asm volatile("griddepcontrol.wait;" ::: "memory");'
)


def build(gemm: Gemm, config: Config, device: Device) -> Binary:
    """As ``tirgemm.tuning.build.compile.build``, for dependent launches. Raises BuildFailed, InvalidConfig."""
    if reason := dependent_launch_refusal(device):
        raise BuildFailed(reason)
    return with_dependent_launch(plain.build(gemm, config, device), device.arch)


def with_dependent_launch(binary: Binary, arch: str) -> Binary:
    """The same kernels, compiled again from their source to wait at their entry, each with the launch attribute. Raises
    BuildFailed."""
    from tirgemm.tuning.driver.nvrtc import compile_source

    source, launch = waiting(binary.sources["kernel.cu"], binary.launch)
    cubin = compile_source(source, arch)
    return replace(
        binary, data=cubin.data, launch=launch, sources=binary.sources | {"kernel.cu": source}, flags=cubin.flags
    )


def waiting(source: str, launch: Launch) -> tuple[str, Launch]:
    """CUDA source whose kernels wait before anything else, and their launches with the attribute. Raises BuildFailed
    where it has none of a launch's name."""
    for kernel in launch.kernels:
        entry = re.compile(rf"(__global__[^;{{}}]*\b{re.escape(kernel.symbol)}\([^;{{}}]*\)\s*\{{)")
        source, count = entry.subn(lambda match: match[1] + _WAIT, source)
        if count != 1:
            raise BuildFailed(f"the source defines {count} kernels {kernel.symbol}; there must be one")
    return source, replace(launch, kernels=tuple(_dependent(kernel) for kernel in launch.kernels))


def _dependent(kernel: KernelLaunch) -> KernelLaunch:
    others = tuple(attribute for attribute in kernel.attributes if attribute[0] != DEPENDENT_LAUNCH[0])
    return replace(kernel, attributes=(*others, DEPENDENT_LAUNCH))
