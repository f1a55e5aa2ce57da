"""Runs the CUDA source of ``wgmma`` on the CPU, against a model of sm_90a that does what hurts most of what PTX allows.

The source is the very one that NVRTC gets. Every helper that wraps an instruction becomes a call of the model
(``hopper_on_cpu.cc``), found by the assembly in it, so that a weakened helper means what it says; the rest of the
source is compiled as it is.
"""

from __future__ import annotations

import _ctypes
import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np

from tirgemm.artifact.closing import Closing
from tirgemm.expr import evaluate
from tirgemm.launch import Launch
from verification.emulator.call_memory import addresses, argument, placed
from verification.emulator.operands import KernelCall, decode
from verification.emulator.precompiled import compile_kernels, folder_of, kernel_text, object_of

HEADERS = Path(__file__).parent
_HEADER = HEADERS / "hopper_on_cpu.h"
_COMPILER = ("g++", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing")
_KERNEL_COMPILER = (*_COMPILER, "-O1", "-w")
_HELPER = re.compile(r"^__forceinline__ __device__ ([\w ]*?)\b(\w+)\(([^)]*)\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_STATIC = re.compile(r"^( *)__shared__ (?:alignas\(\d+\) |__align__\(\d+\) )?(\w+) (\w+)\[(\d+)\];", re.MULTILINE)
_DYNAMIC = re.compile(r"extern __shared__ __align__\(\d+\) (\w+) (\w+)\[\];")
# Threads write shared memory by instructions that the model sees, not by plain stores; only the kernel that adds parts
# does.
_PLAIN_STORE = re.compile(r"^\s*\(\(\w+\*\)_ptr\)\[[^=]*\] = ", re.MULTILINE)
# Pattern of the assembly -> C++, with {0} for the helper's first parameter and \1 for the pattern's first group.
_INSTRUCTIONS: tuple[tuple[str, str], ...] = (
    (r"mbarrier\.init\.", "hopper::barrier_init({0}, {1});"),
    (r"mbarrier\.try_wait\.parity\.acquire\.cta", "hopper::barrier_wait(hopper::to_shared({0}), {1});"),
    (r"\"mbarrier\.arrive\.expect_tx\.", "hopper::barrier_expect({0}, {1});"),
    (r"\"mbarrier\.arrive\.shared::cluster\.b64 _, \[%0\];", "hopper::barrier_arrive({0}, 1);"),
    (r"\"mbarrier\.arrive\.shared\.b64 _, \[%0\], %1;", "hopper::barrier_arrive({0}, {1});"),
    (r"cp\.async\.mbarrier\.arrive\.noinc", "hopper::cp_async_arrive({0});"),
    (
        r"cp\.async\.ca\.shared\.global[\w.:]* \[%0(\+\d+)?\], \[%1\], (\d+)(?=[;,])",
        r"hopper::cp_async({0} \1, {1}, \2, {size:\2});",
    ),
    (
        r"cp\.async\.bulk\.tensor\.(\d)d\.shared::cluster",
        r"hopper::tma_load({__dst_mem}, {__tmap}, {xyz:\1}, {__mbar}, {mask});",
    ),
    (r"cp\.async\.bulk\.tensor\.(\d)d\.global\.shared", r"hopper::tma_store({__tmap}, {xyz:\1}, {__src_mem});"),
    (r"cp\.async\.bulk\.commit_group", "hopper::bulk_commit();"),
    (r"cp\.async\.bulk\.wait_group\.read (\d+)", r"hopper::bulk_wait(\1);"),
    (r"fence\.proxy\.async", "hopper::fence_proxy();"),
    (r"fence\.mbarrier_init", "hopper::fence_init();"),
    (r"fence\.acq_rel\.cta", ""),
    (r"bar\.sync %0, 128", "hopper::bar_sync({0}, 128);"),
    (r"bar\.sync %0, %1", "hopper::bar_sync({0}, {1});"),
    (r"barrier\.cluster\.arrive\.release", "hopper::cluster_arrive(true);"),
    (r"barrier\.cluster\.arrive\.relaxed", "hopper::cluster_arrive(false);"),
    (r"barrier\.cluster\.wait\.acquire", "hopper::cluster_wait();"),
    (
        r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f(16|32)\.(b?f16)\.b?f16 .*, 1, 1, ([01]), ([01]);",
        r"hopper::wgmma(&{0}, \1, \2 == 16, {bf16:\3}, \4, \5, {__a_desc}, {__b_desc}, {__scale_d});",
    ),
    (r"wgmma\.fence", "hopper::wgmma_fence();"),
    (r"wgmma\.commit_group", "hopper::wgmma_commit();"),
    (r"wgmma\.wait_group\.sync\.aligned (\d+)", r"hopper::wgmma_wait(\1);"),
    (r"stmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?\.", r"hopper::stmatrix({0}, \1, {across:\2}, {rest});"),
    (r"st\.shared\.v4\.f32", "hopper::store_shared({all});"),
    (r"st\.shared\.v2\.b32 \[%0(\+\d+)?\]", r"hopper::store_words({0} \1, {1}, {2});"),
    (r"st\.shared\.v2\.f32", "hopper::store_floats({all});"),
    (r"st\.shared\.f32", "hopper::store_float({all});"),
    (r"ld\.shared::cluster\.v4\.f32", "hopper::load_cluster({all});"),
    (r"griddepcontrol\.launch_dependents", "hopper::launch_dependents();"),
    (r"griddepcontrol\.wait", "hopper::wait_for_kernel();"),
    (r"mapa\.shared::cluster\.u32", "{0} = ({1} & 0xffffff) | {2} << 24;"),
    (r"cluster_ctarank", "return hopper::rank();"),
    (r"cvt\.rn\.f16x2\.f32", "{0} = hopper::packed<half>({2}, {1});"),
    (r"cvt\.rn\.bf16x2\.f32", "{0} = hopper::packed<nv_bfloat16>({2}, {1});"),
    (r"setmaxnreg|prefetch\.tensormap", ""),
    (r'asm volatile\("" :', "return {0};"),
    (r"mov\.u(?:32|64) %0, %%(?:clock|clock64|globaltimer);", "return hopper::clock();"),
    (r"mov\.u32 %0, %%smid;", "return hopper::sm();"),
)


class NotEmulated(AssertionError):
    """The source has what the model does not know."""


class Stuck(AssertionError):
    """No thread can go on."""


class Forbidden(AssertionError):
    """The kernel did what PTX's memory model leaves undefined."""


class _Launch(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("grid", "threads", "cluster", "shared_bytes", "dependent")] + [
        ("arguments", ctypes.c_void_p)
    ]


class Kernels(Closing):
    """The compiled kernels of one source. A context manager: it unloads them."""

    def __init__(self, source: str, launch: Launch, folder: Path) -> None:
        self._launch = launch
        text, self._static_bytes = translated(source)
        table = ", ".join(f"call_{kernel.symbol}" for kernel in launch.kernels)
        calls = "".join(_call(source, kernel.symbol) for kernel in launch.kernels)
        (folder / "kernel.cc").write_text(
            f'#include "{_HEADER.name}"\n{text}\n{calls}'
            'extern "C" __attribute__((visibility("default")))\n'
            "int emulate(const hopper::Launch* launches, unsigned seed, char* message) {\n"
            f"  static const hopper::Kernel kernels[] = {{{table}}};\n"
            f"  return hopper::run(launches, kernels, {len(launch.kernels)}, seed, message);\n}}\n"
        )
        model = object_of(_HEADER.with_suffix(".cc"), (*_COMPILER, "-O3"))
        includes = (f"-I{folder_of(_HEADER, _KERNEL_COMPILER)}", f"-I{HEADERS}")
        library = compile_kernels([*_KERNEL_COMPILER, *includes], model, folder)
        self._library = ctypes.CDLL(str(library))

    def close(self) -> None:
        _ctypes.dlclose(self._library._handle)

    def __call__(self, case: KernelCall, seed: int) -> np.ndarray:
        """D as (batch, m, n) float64, under the schedule that ``seed`` means. Raises Stuck, Forbidden."""
        d = decode(self.outputs(case, seed)["d"], case.gemm.out)
        return d if d.ndim == 3 else d[None]

    def outputs(self, case: KernelCall, seed: int) -> dict[str, np.ndarray]:
        """Every output of the call as it lies in memory, under the schedule that ``seed`` means. Raises Stuck,
        Forbidden."""
        memory, views = placed(self._launch, case)
        kept: list[Any] = []
        launches = (_Launch * len(self._launch.kernels))()
        for slot, kernel in zip(launches, self._launch.kernels, strict=True):
            values = [argument(param, case, memory) for param in kernel.params]
            arguments = addresses(values)
            kept += [values, arguments]
            slot.grid, slot.threads, slot.cluster = evaluate(kernel.grid[0], case.m), kernel.block[0], kernel.cluster[0]
            slot.shared_bytes = kernel.shared_bytes + self._static_bytes
            slot.dependent = int(("programmatic_dependent_launch", 1) in kernel.attributes)
            slot.arguments = ctypes.addressof(arguments)
        message = ctypes.create_string_buffer(200)
        outcome = self._library.emulate(launches, ctypes.c_uint(seed), message)
        if outcome:
            raise (Stuck if outcome == 1 else Forbidden)(message.value.decode() or "no thread can go on")
        for name, owner in memory.items():
            owner.check_guards(name)
        return {arg.name: views[arg.name].copy() for arg in self._launch.tensors if arg.output}


def translated(source: str) -> tuple[str, int]:
    """The source for g++, and the bytes of its statically shared memory. Raises NotEmulated."""
    text = kernel_text(source)
    if match := _PLAIN_STORE.search(text):
        raise NotEmulated(f"a plain store to shared memory: {match[0].strip()}")
    static = 0

    def allotted(match: re.Match[str]) -> str:
        nonlocal static
        indent, kind, name, count = match.groups()
        at, static = static, static + 1024 * (1 + int(count) * 8 // 1024)
        return f"{indent}{kind}* {name} = ({kind}*)(hopper::shared() + {at});"

    text = _STATIC.sub(allotted, text)
    text = _DYNAMIC.sub(r"\1* \2 = (\1*)hopper::shared();", text)
    text = _HELPER.sub(_helper, text)
    helpers, start, kernels = text.partition('extern "C" __global__')
    kernels = kernels.replace(" / ", " /hopper::by* ").replace(" % ", " /hopper::rest* ")
    return helpers + start + kernels, static


def _helper(helper: re.Match[str]) -> str:
    """What stands for a helper around one instruction."""
    kind, name, parameters, body = helper.groups()
    if "thread_rank()" in body:
        return f"inline int {name}() {{ return threadIdx.x; }}"
    if "asm" not in body:
        return helper[0]
    names = [parameter.split()[-1].lstrip("&*") for parameter in parameters.split(",") if parameter.strip()]
    for pattern, meaning in _INSTRUCTIONS:
        if match := re.search(pattern, body):
            code = re.sub(r"\\(\d)", lambda group: match[int(group[1])] or "", meaning)
            return f"inline {kind.strip()} {name}({parameters}) {{ {_filled(code, names)} }}"
    raise NotEmulated(body.strip()[:200])


def _filled(code: str, names: list[str]) -> str:
    def value(match: re.Match[str]) -> str:
        word, _, detail = match[1].partition(":")
        if word.isdigit():
            return names[int(word)]
        if word == "size":
            return "__src_size" if "__src_size" in names else detail
        if word == "xyz":
            return "__coords0, __coords1, " + ("__coords2" if detail == "3" else "0")
        special = {
            "mask": "__cta_mask" if "__cta_mask" in names else "-1",
            "bf16": str(int(detail == "bf16")),
            "across": str(int(detail == ".trans")),
            "rest": ", ".join(names[1:]),
            "all": ", ".join(names),
        }
        return special.get(word, word)

    return re.sub(r"\{([\w:.]+)\}", value, code)


def _call(source: str, symbol: str) -> str:
    signature = re.search(rf"{symbol}\(([^)]*)\) \{{", source)
    assert signature is not None
    words = r"\bconst\b|__grid_constant__|__restrict__"
    types = [re.sub(words, "", param.strip().rsplit(" ", 1)[0]).strip() for param in signature[1].split(",")]
    passed = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(types))
    return f"static void call_{symbol}(void** arguments) {{ {symbol}({passed}); }}\n"
