"""CPU kernels: self-contained, reproducible, for exactly the device's features, and refused with the reason."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tvm import IRModule
from tvm.tirx.script import builder as tir

from tirgemm.device import Device
from tirgemm.errors import BuildersUnusable, BuildFailed, InvalidConfig
from tirgemm.families import FAMILIES
from tirgemm.families.base import Program
from tirgemm.gemm import Gemm
from tirgemm.launch import KernelLaunch, Launch, Pointer
from tirgemm.tuning.build.compile import build, compile_program

V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt")
V4 = ("avx", "avx2", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", *V3[2:])
GEMM = Gemm.parse("61x67x35:f16:nt")


def cpu(arch: str = "x86-64-v3", features: tuple[str, ...] = V3) -> Device:
    return Device("cpu", arch, "Some CPU", units=2, memory_bytes=2**33, features=features)


def program_of(body: Callable[[Any, Any], object], nbytes: int = 64) -> Program:
    """A Program of one kernel ``k(x: float32[16], block)`` whose statements ``body(x, block)`` writes."""
    from tvm.script.ir_builder import IRBuilder

    with IRBuilder() as builder:
        with tir.prim_func(s_tir=True):
            tir.func_name("k")
            tir.func_attr({"global_symbol": "k", "tirx.noalias": True})
            x = tir.arg("x", tir.buffer([nbytes // 4], "float32"))
            body(x, tir.arg("block", tir.int32()))
        func = builder.get()
    return Program(IRModule({"k": func}), Launch((), (), (KernelLaunch("k", (Pointer("x"),)),)))


def test_a_kernel_loads_in_a_process_without_tvm_and_runs_its_block(tmp_path: Path) -> None:
    program = program_of(lambda x, block: tir.buffer_store(x, tir.cast(block, "float32") * 2, [block]))
    binary = compile_program(program, cpu())
    (tmp_path / "kernel.so").write_bytes(binary.data)
    code = f"""
import ctypes, sys
class Any(ctypes.Structure):
    _fields_ = [("t", ctypes.c_int32), ("z", ctypes.c_int32), ("v", ctypes.c_uint64)]
library = ctypes.CDLL({str(tmp_path / "kernel.so")!r})
x = (ctypes.c_float * 16)()
args, result = (Any * 2)(Any(4, 0, ctypes.addressof(x)), Any(1, 0, 5)), Any()
assert library.__tvm_ffi_k(None, args, 2, ctypes.byref(result)) == 0
assert list(x) == [0.0] * 5 + [10.0] + [0.0] * 10, list(x)
assert "tvm" not in sys.modules and "tvm_ffi" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(binary.data) < 20_000


def test_the_same_config_compiles_to_the_same_bytes_and_source() -> None:
    config = FAMILIES["x86"].default(GEMM, cpu(), "sustained")
    first, second = (build(GEMM, config, cpu()) for _ in range(2))
    assert first.source_sha256 == second.source_sha256
    assert first.binary_sha256 == second.binary_sha256
    assert set(first.sources) == {"kernel.ll", "module.py"}


def test_code_uses_the_devices_features_and_no_others() -> None:
    narrow = build(GEMM, FAMILIES["x86"].default(GEMM, cpu(), "sustained"), cpu())
    wide_cpu = cpu("x86-64-v4", V4)
    wide = build(GEMM, FAMILIES["x86"].default(GEMM, wide_cpu, "sustained"), wide_cpu)
    assert 'target-cpu"="x86-64-v3"' in narrow.sources["kernel.ll"]
    assert 'target-cpu"="x86-64-v4"' in wide.sources["kernel.ll"]
    assert "+avx512f" not in narrow.sources["kernel.ll"]
    assert "+avx512f" in wide.sources["kernel.ll"]
    assert "-mcpu=x86-64-v3" in narrow.flags
    assert "-mattr=+fma" in narrow.flags
    assert not any("avx512" in flag for flag in narrow.flags)


def test_no_fast_math_is_used() -> None:
    text = build(GEMM, FAMILIES["x86"].default(GEMM, cpu(), "sustained"), cpu()).sources["kernel.ll"]
    assert not re.search(r"\bf(add|mul|sub|div) (fast|reassoc|nnan|ninf|arcp|afn)", text)


def test_a_parallel_loop_is_refused() -> None:
    def body(x: object, block: object) -> None:
        with tir.parallel(16) as i:
            tir.buffer_store(x, tir.cast(i + block, "float32"), [i])

    with pytest.raises(BuildFailed, match="TVM"):
        compile_program(program_of(body), cpu())


def test_a_local_buffer_that_no_stack_should_hold_is_refused() -> None:
    def body(x: object, block: object) -> None:
        local = tir.alloc_buffer([32768], "float32", scope="local")
        with tir.serial(32768) as i:
            tir.buffer_store(local, tir.cast(i + block, "float32"), [i])
        tir.buffer_store(x, local[block], [0])

    with pytest.raises(BuildFailed, match="131072 bytes; the limit"):
        compile_program(program_of(body), cpu())


def test_an_unknown_architecture_is_refused() -> None:
    program = program_of(lambda x, block: tir.buffer_store(x, tir.float32(1), [block]))
    with pytest.raises(BuildFailed, match="aarch64"):
        compile_program(program, cpu("aarch64", ()))


def test_a_machine_without_a_linker_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    program = program_of(lambda x, block: tir.buffer_store(x, tir.float32(1), [block]))
    with pytest.raises(BuildersUnusable, match="no C compiler driver"):
        compile_program(program, cpu())


def test_a_full_disk_is_no_fault_of_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    program = program_of(lambda x, block: tir.buffer_store(x, tir.float32(1), [block]))
    with pytest.raises(BuildersUnusable, match="No space left"):
        compile_program(program, cpu())


def test_what_a_rule_rejects_is_an_invalid_config_not_a_failed_build() -> None:
    config = FAMILIES["x86"].default(GEMM, cpu(), "sustained")
    with pytest.raises(InvalidConfig, match="registers"):
        build(GEMM, config.with_(tile_m=14, vectors=4), cpu())


def test_only_the_kernels_are_exported(tmp_path: Path) -> None:
    config = FAMILIES["x86"].default(GEMM, cpu(), "sustained")
    binary = build(GEMM, config, cpu())
    (tmp_path / "kernel.so").write_bytes(binary.data)
    library = ctypes.CDLL(str(tmp_path / "kernel.so"))
    for kernel in binary.launch.kernels:
        assert getattr(library, f"__tvm_ffi_{kernel.symbol}")
    with pytest.raises(AttributeError):
        _ = library.__truncsfhf2
