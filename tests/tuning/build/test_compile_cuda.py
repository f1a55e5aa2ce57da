"""From a Program to a cubin without a GPU or a toolkit, and every way in which launch and kernel can disagree."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tirgemm import expr
from tirgemm.errors import BuildFailed
from tirgemm.families import FAMILIES
from tirgemm.families.base import Program
from tirgemm.gemm import Gemm
from tirgemm.hardware import ARCHITECTURES, named_device
from tirgemm.launch import KernelLaunch, Launch, Pointer, Scalar, Size, TensorArg
from tirgemm.tuning.build import cuda
from tirgemm.tuning.build.compile import build, compile_program
from tirgemm.tuning.driver import nvrtc
from tirgemm.tuning.process import spans

_H200 = named_device("sm_90a")
_SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* a, int n) {
  float x[64];
#pragma unroll
  for (int i = 0; i < 64; i++) x[i] = a[i * n + threadIdx.x];
  for (int k = 0; k < n; k++)
#pragma unroll
    for (int i = 0; i < 64; i++) x[i] = x[i] * x[(i + 1) % 64] + a[k];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i * n + threadIdx.x] = x[i];
}
extern "C" __global__ void lean(float* a) {
  __shared__ float s[32];
  s[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = s[31 - threadIdx.x];
}
"""


def _program(text: str = "1..300x96x72:f16:nn:alpha:beta:bias") -> Program:
    gemm = Gemm.parse(text)
    family = FAMILIES["simt"]
    return family.instantiate(gemm, family.default(gemm, _H200, "sustained"), _H200)


# -- NVRTC --------------------------------------------------------------------------------------


def test_kernel_that_spills_for_the_blocks_of_an_sm_is_compiled_for_fewer() -> None:
    wanted = nvrtc.compile_source(_SPILLING, "sm_90a").resources["spills"]
    assert wanted.spill_bytes
    lean = _SPILLING.replace("(1024, 2)", "(128, 16)")
    source, cubin = cuda.compile_lowered(lean, "sm_90a")
    assert nvrtc.compile_source(lean, "sm_90a").resources["spills"].spill_bytes
    assert not cubin.resources["spills"].spill_bytes
    assert "__launch_bounds__(128, 1)" in source
    # A block that spills by itself keeps the compile that spills least; what does not spill is left as it is.
    assert cuda.compile_lowered(_SPILLING, "sm_90a")[1].resources["spills"].spill_bytes <= wanted.spill_bytes
    free = _SPILLING.replace("(1024, 2)", "(128, 2)")
    assert cuda.compile_lowered(free, "sm_90a")[0] == free


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_source_becomes_a_cubin_with_each_kernels_resources(arch: str) -> None:
    cubin = nvrtc.compile_source(_SPILLING, arch)
    nvrtc.require_cubin(cubin.data)
    assert set(cubin.resources) == {"spills", "lean"}
    spills, lean = cubin.resources["spills"], cubin.resources["lean"]
    assert spills.registers in (32, 40, 64)
    assert spills.spill_bytes > 0
    assert (lean.spill_bytes, lean.stack_bytes) == (0, 0)
    # From compute capability 9.0 on, ptxas may count the driver's own kilobyte.
    assert lean.shared_bytes in (128, 128 + 1024)


def test_flags_and_cubin_name_no_place_of_this_machine() -> None:
    cubin = nvrtc.compile_source(_SPILLING, "sm_90a", options=("--ptxas-options=--register-usage-level=8",))
    assert cubin.flags[0] == "--gpu-architecture=sm_90a"
    assert cubin.flags[-1] == "--ptxas-options=--register-usage-level=8"
    for place in (sysconfig.get_paths()["purelib"], str(Path.home()), str(Path.cwd())):
        assert not any(place in flag for flag in cubin.flags)
        assert place.encode() not in cubin.data


def test_same_source_gives_the_same_cubin() -> None:
    first, second = (nvrtc.compile_source(_SPILLING, "sm_80").data for _ in range(2))
    assert first == second


def test_compilers_words_reach_the_error() -> None:
    with pytest.raises(BuildFailed, match=r"(?s)sm_80.*kernel\.cu\(1\): error"):
        nvrtc.compile_source("int x y;", "sm_80")
    with pytest.raises(BuildFailed, match="sm_1"):
        nvrtc.compile_source("", "sm_1")


@pytest.mark.parametrize("option", ["--use_fast_math", "-use_fast_math", "--ftz=true", "--prec-div=false"])
def test_fast_math_is_refused(option: str) -> None:
    with pytest.raises(BuildFailed, match="fast math"):
        nvrtc.compile_source("", "sm_80", options=(option,))


@pytest.mark.parametrize("data", [b"", b"// source", b".version 8.0", Path("/proc/self/exe").read_bytes()[:4096]])
def test_nothing_else_passes_for_a_cubin(data: bytes) -> None:
    with pytest.raises(BuildFailed, match="not a cubin"):
        nvrtc.require_cubin(data)


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_roots", lambda: [Path("/nowhere")])
    nvrtc.include_folders.cache_clear()
    try:
        with pytest.raises(BuildFailed, match=r"nvidia-cuda-cccl.*CUDA_PATH"):
            nvrtc.include_folders()
    finally:
        nvrtc.include_folders.cache_clear()


def test_a_toolkit_serves_where_the_wheels_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    include = tmp_path / "include"
    (include / "cccl" / "cuda" / "std").mkdir(parents=True)
    (include / "cuda_fp16.h").touch()
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    nvrtc.include_folders.cache_clear()
    try:
        assert nvrtc.include_folders() == (str(include), str(include / "cccl"))
    finally:
        nvrtc.include_folders.cache_clear()


def test_compiling_source_imports_no_tvm() -> None:
    code = (
        "import sys; from tirgemm.tuning.driver.nvrtc import compile_source\n"
        "compile_source('extern \"C\" __global__ void k() {}', 'sm_80'); sys.exit('tvm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- Program -> Binary --------------------------------------------------------------------------


def test_build_gives_a_cubin_with_its_sources_and_launch() -> None:
    gemm = Gemm.parse("1..300x96x72:f16:nn:alpha:beta:bias")
    config = FAMILIES["simt"].default(gemm, _H200, "sustained")
    with spans.listed() as kept:
        binary = build(gemm, config, _H200)
    assert [span.name for span in kept] == ["instantiate", "lower", "nvrtc"]
    assert binary.format == "cubin"
    nvrtc.require_cubin(binary.data)
    assert set(binary.sources) == {"kernel.cu", "module.py"}
    assert "__global__" in binary.sources["kernel.cu"]
    assert binary.resources["spill_bytes"] == 0
    (kernel,) = binary.launch.kernels
    assert f"{kernel.symbol}(" in binary.sources["kernel.cu"]
    assert binary.resources["shared_bytes"] >= kernel.shared_bytes > 0
    assert kernel.grid[0] != 1
    assert Size(expr.M) in kernel.params


def test_parameters_have_the_order_of_the_kernel_in_the_cubin() -> None:
    binary = compile_program(_program(), _H200)
    source = binary.sources["kernel.cu"]
    (kernel,) = binary.launch.kernels
    head = source[source.index(f"{kernel.symbol}(") :].split("(", 1)[1].split(")", 1)[0]
    names = [parameter.split()[-1].removesuffix("_ptr") for parameter in head.split(",")]
    shown = [p.name if isinstance(p, (Pointer, Scalar)) else "m" for p in kernel.params]
    assert shown == names
    assert names != [*(t.name for t in binary.launch.tensors), "alpha", "beta", "m"], (
        "nothing was reordered: a weak test"
    )


def _kernel(change: Callable[[KernelLaunch], KernelLaunch]) -> Callable[[Launch], Launch]:
    return lambda launch: replace(launch, kernels=tuple(change(k) for k in launch.kernels))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_kernel(lambda k: replace(k, grid=(1, *k.grid[1:]))), "grid is lowered as"),
        (_kernel(lambda k: replace(k, grid=(expr.make("add", k.grid[0], 1), *k.grid[1:]))), "grid is lowered as"),
        (_kernel(lambda k: replace(k, block=(k.block[0] * 2, 1, 1))), "block is lowered as"),
        (_kernel(lambda k: replace(k, cluster=(2, 1, 1))), "cluster is lowered as"),
        (_kernel(lambda k: replace(k, shared_bytes=k.shared_bytes + 16)), "shared memory is lowered as"),
        (_kernel(lambda k: replace(k, params=k.params[:-1])), "parameters, its launch"),
        (_kernel(lambda k: replace(k, symbol="other")), "kernel other of the launch is not a function"),
    ],
)
def test_launch_that_disagrees_with_the_kernel_fails(change: Callable[[Launch], Launch], words: str) -> None:
    program = _program()
    with pytest.raises(BuildFailed, match=words):
        compile_program(replace(program, launch=change(program.launch)), _H200)


def test_cpu_devices_are_refused() -> None:
    with pytest.raises(BuildFailed, match="sm_80, sm_86, sm_89, sm_90a"):
        cuda.compile_program(_program(), _H200.with_(arch="sm_75"))


def test_several_kernels_share_a_cubin_and_a_size_may_be_an_expression() -> None:
    from tvm.script import from_source

    mod = from_source(
        """# from tvm.script import ir as I
# from tvm.script import tirx as T

@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def clear(w: T.Buffer((64,), "float32")):
        for block in T.thread_binding(2, thread="blockIdx.x"):
            for thread in T.thread_binding(32, thread="threadIdx.x"):
                w[block * 32 + thread] = T.float32(0)

    @T.prim_func(s_tir=True)
    def scale(w: T.Buffer((64,), "float32"), factor: T.float32, blocks: T.int32):
        for block in T.thread_binding(blocks * 2, thread="blockIdx.x"):
            for thread in T.thread_binding(32, thread="threadIdx.x"):
                if block * 32 + thread < 64:
                    w[block * 32 + thread] = w[block * 32 + thread] * factor
"""
    )
    tiles = expr.ceildiv(expr.M, 48)
    clear = KernelLaunch("clear", (Pointer("w"),), grid=(2, 1, 1), block=(32, 1, 1))
    scale = KernelLaunch(
        "scale", (Pointer("w"), Scalar("alpha"), Size(tiles)), grid=(expr.make("mul", tiles, 2), 1, 1), block=(32, 1, 1)
    )
    launch = Launch((TensorArg("w", "f32", (64,), (1,), 16, True),), (), (clear, scale))
    binary = compile_program(Program(mod, launch), _H200)
    first, second = binary.launch.kernels
    assert first.params == (Pointer("w"),)
    assert set(second.params) <= set(scale.params)
    assert second.grid == scale.grid
    assert first.symbol != second.symbol


def test_source_and_cubin_are_the_same_in_another_process() -> None:
    code = (
        "from tirgemm.families import FAMILIES\n"
        "from tirgemm.gemm import Gemm\nfrom tirgemm.hardware import named_device\nfrom tirgemm.tuning.build.compile "
        "import build\n"
        "gemm = Gemm.parse('77x96x72:f16:nt:bias'); device = named_device('sm_90a')\n"
        "binary = build(gemm, FAMILIES['simt'].default(gemm, device, 'sustained'), device)\n"
        "print(binary.source_sha256, binary.binary_sha256)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1


def test_tvms_own_compiler_hook_is_back_after_a_build() -> None:
    import tvm
    import tvm_ffi

    name = "tvm_callback_cuda_compile"
    previous = tvm.get_global_func(name, allow_missing=True)
    tvm_ffi.register_global_func(name, lambda *_: "mine", override=True)
    try:
        cuda.lower(_program(), "sm_80")
        assert tvm.get_global_func(name)("", None) == "mine"
    finally:
        if previous is None:
            tvm_ffi.registry.remove_global_func(name)
        else:
            tvm_ffi.register_global_func(name, previous, override=True)


def test_no_fast_intrinsics_in_the_epilogues() -> None:
    for act in ("gelu", "gelu_tanh", "silu"):
        _, source = cuda.lower(_program(f"33x40x48:f16:nt:act={act}"), "sm_90a")
        assert not any(name in source for name in ("__expf", "__tanhf", "__logf", "__fdividef", "tanh.approx"))


@pytest.mark.parametrize(
    ("family", "arch"), [("simt", "sm_80"), ("wmma", "sm_80"), ("mma", "sm_80"), ("mma", "sm_90a"), ("wgmma", "sm_90a")]
)
def test_silu_compiles_to_less_machine_code_than_gelu(family: str, arch: str) -> None:
    gemm, device = Gemm.parse("512x512x256:f16:nt:bias:act=gelu"), named_device(arch)
    config = FAMILIES[family].default(gemm, device, "sustained")
    sizes = [
        len(compile_program(FAMILIES[family].instantiate(gemm.with_(act=act), config, device), device).data)
        for act in ("silu", "gelu")
    ]
    assert sizes[0] <= sizes[1]
