"""CUDA kernels: a scheduled IRModule -> CUDA source by TVM -> cubin by NVRTC.

The Launch that the family wrote is held against what TVM lowered: grid, block, cluster, shared memory and parameters
must agree, and the parameters take the order and the symbol of the kernel in the cubin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tirgemm.device import Device
from tirgemm.errors import BuildFailed
from tirgemm.families.base import Program
from tirgemm.hardware import ARCHITECTURES
from tirgemm.launch import Launch
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.lowered import check_kernel
from tirgemm.tuning.build.preamble import without_libraries
from tirgemm.tuning.build.register_arrays import with_scalars
from tirgemm.tuning.build.wmma_source import with_fragments
from tirgemm.tuning.driver.nvrtc import Cubin, PtxasResources, compile_source
from tirgemm.tuning.process import spans

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.target import Target

_COMPILE_HOOK = "tvm_callback_cuda_compile"
# Threads of a block, and how many blocks an SM should hold, as TVM writes them.
_BOUND = re.compile(r"__launch_bounds__\((\d+)(?:, \d+)?\)")
# The driver's header is for hosts only: NVRTC gets the size and the alignment of what kernels take by value.
_TENSOR_MAP = (
    "struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; "
    "};\ntypedef struct CUtensorMap_st CUtensorMap;\n"
)


def compile_program(program: Program, device: Device) -> Binary:
    """The cubin of ``program`` for ``device``'s architecture. Raises BuildFailed; TVM's own errors pass through."""
    if device.kind != "cuda" or device.arch not in ARCHITECTURES:
        raise BuildFailed(
            f"GPU kernels are compiled for {', '.join(ARCHITECTURES)}, not for {device.kind} {device.arch!r}"
        )
    with spans.span("lower"):
        host, source = lower(program, device.arch)
        launch = checked_launch(program, host)
    with spans.span("nvrtc"):
        source, cubin = compile_lowered(source, device.arch)
    missing = [kernel.symbol for kernel in launch.kernels if kernel.symbol not in cubin.resources]
    if missing:
        raise BuildFailed(f"kernel {missing[0]} is not in the cubin, which has {', '.join(cubin.resources) or 'none'}")
    sources = {"kernel.cu": source, "module.py": program.mod.script()}
    resources = _summary([cubin.resources[k.symbol] for k in launch.kernels], [k.shared_bytes for k in launch.kernels])
    resources["serialised"] = int(cubin.serialised)
    return Binary(cubin.data, "cubin", launch, sources, cubin.flags, resources)


def compile_lowered(source: str, arch: str) -> tuple[str, Cubin]:
    """The CUDA source that ``lower`` wrote as it was compiled for ``arch``, and its cubin.

    Where ptxas spills for the sake of the blocks that an SM should hold, by the bound that the source gives it or one
    of its own, bounds that ask for fewer are tried: the first that spills nothing, else the one that spills the least.
    Raises BuildFailed.
    """
    compiled: list[tuple[str, Cubin]] = []
    for text in with_looser_bounds(source):
        compiled.append((text, compile_source(text, arch)))
        if not _spilled(compiled[-1][1]):
            break
    return min(compiled, key=lambda pair: _spilled(pair[1]))


def with_looser_bounds(source: str) -> list[str]:
    """The source, and where it says how many blocks an SM should hold, with bounds that ask for one block and for
    none."""
    looser = (_BOUND.sub(bound, source) for bound in (r"__launch_bounds__(\1, 1)", r"__launch_bounds__(\1)"))
    return list(dict.fromkeys((source, *looser)))


def _spilled(cubin: Cubin) -> int:
    return sum(kernel.spill_bytes for kernel in cubin.resources.values())


def checked_launch(program: Program, host: IRModule) -> Launch:
    """The program's launch as the lowered kernels have it. Raises BuildFailed where they disagree."""
    kernels = tuple(check_kernel(kernel, program.mod, host) for kernel in program.launch.kernels)
    return replace(program.launch, kernels=kernels)


def lower(program: Program, arch: str) -> tuple[IRModule, str]:
    """The lowered module as it is before host code is finished (with the launches in it), and the CUDA source."""
    host, _, source = lower_all(program, arch)
    return host, source


def lower_all(program: Program, arch: str) -> tuple[IRModule, IRModule, str]:
    """As ``lower``, and between the two the device functions from which the source is written."""
    with _lowering(program, arch) as target:
        host, device, device_target = _lowered(program, target)
        return host, device, _source(device, device_target)


def lower_rolled(program: Program, arch: str) -> tuple[IRModule, IRModule]:
    """The two modules of ``lower_all``, with loops left as loops that are unrolled there: what is analysed and never
    compiled takes a tenth of the time so."""
    rolled = replace(program, pass_config=(*program.pass_config, ("tirx.UnrollLoop", {"explicit_unroll": False})))
    with _lowering(rolled, arch) as target:
        host, device, _ = _lowered(rolled, target)
        return host, device


@contextmanager
def _lowering(program: Program, arch: str) -> Iterator[Target]:
    """TVM's settings while ``program`` is lowered, and the target that it is lowered for."""
    import tvm
    from tvm.target import Target

    target = Target({"kind": "cuda", "arch": arch}, host="llvm")
    with tvm.transform.PassContext(opt_level=3, config=dict(program.pass_config)), target:
        yield target


def _lowered(program: Program, target: Target) -> tuple[IRModule, IRModule, Target]:
    from tvm import tirx
    from tvm.tirx.build import split_host_device_mods

    pipeline, _, finalize_device = tirx.get_tir_pipeline(program.pipeline)
    lowered = pipeline(tirx.transform.BindTarget(target)(program.mod))
    host, devices = split_host_device_mods(lowered)
    if len(devices) != 1:
        raise BuildFailed(f"the program lowers to kernels of {len(devices)} targets; it must be the GPU alone")
    ((device_target, module),) = devices.items()
    return host, finalize_device()(module), device_target


def _source(module: IRModule, target: Target) -> str:
    import tvm

    with _no_compiler():
        source = str(tvm.get_global_func("target.build.cuda")(module, target).inspect_source("cuda"))
    source = with_scalars(with_fragments(without_libraries(source)))
    return _TENSOR_MAP + source if "CUtensorMap" in source else source


@contextmanager
def _no_compiler() -> Iterator[None]:
    """Keep TVM from compiling, where a driver is present, what we compile ourselves without fast math."""
    import tvm
    import tvm_ffi

    previous: Any = tvm.get_global_func(_COMPILE_HOOK, allow_missing=True)
    # Bytes, as TVM casts to; a leading slash is taken for PTX and loaded at the first launch, which never comes.
    tvm_ffi.register_global_func(_COMPILE_HOOK, lambda *_: b"// compiled elsewhere", override=True)
    try:
        yield
    finally:
        if previous is not None:
            tvm_ffi.register_global_func(_COMPILE_HOOK, previous, override=True)
        else:
            tvm_ffi.registry.remove_global_func(_COMPILE_HOOK)


def _summary(kernels: list[PtxasResources], dynamic: list[int]) -> dict[str, int]:
    """The largest of each resource over the kernels; shared memory is static and dynamic together."""
    return {
        "registers": max(k.registers for k in kernels),
        "stack_bytes": max(k.stack_bytes for k in kernels),
        "spill_bytes": max(k.spill_bytes for k in kernels),
        "shared_bytes": max(k.shared_bytes + size for k, size in zip(kernels, dynamic, strict=True)),
    }
