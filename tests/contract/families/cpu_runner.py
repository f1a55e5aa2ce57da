"""Runs a CPU Program the way the launcher does, from Python: guard bands around everything, every block in order."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tirgemm.device import Device
from tirgemm.expr import evaluate
from tirgemm.families.base import Program
from tirgemm.launch import Pointer, Scalar, Size
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.compile import compile_program
from verification.emulator.call_memory import placed
from verification.emulator.memory import POISON, GuardedMemory
from verification.emulator.operands import KernelCall, decode

_NONE, _INT, _FLOAT, _POINTER = 0, 1, 3, 4


class _FfiAny(ctypes.Structure):
    """TVMFFIAny: type index, padding, value."""

    _fields_ = [("type_index", ctypes.c_int32), ("padding", ctypes.c_int32), ("value", ctypes.c_uint64)]


def run(program: Program, case: KernelCall, device: Device) -> np.ndarray:
    """D as (batch, m, n) float64, having checked guards, gaps and inputs."""
    return call(compile_program(program, device), case)


def call(binary: Binary, case: KernelCall) -> np.ndarray:
    launch, gemm = binary.launch, case.gemm
    memory, views = placed(launch, case)
    before = {arg.name: memory[arg.name].raw.copy() for arg in launch.tensors}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(binary.data)
        library = ctypes.CDLL(str(path))
        for kernel in launch.kernels:
            function = getattr(library, f"__tvm_ffi_{kernel.symbol}")
            _call_blocks(function, kernel.params, evaluate(kernel.grid[0], case.m), case, memory)
    for name, owner in memory.items():
        owner.check_guards(name)
    for arg in launch.tensors:
        if not arg.output:
            assert (memory[arg.name].raw == before[arg.name]).all(), f"input {arg.name} was written"
    d = decode(views["d"].copy(), gemm.out)
    views["d"][...] = _poison_like(views["d"])
    assert (memory["d"].raw == POISON).all(), "d: written between its rows"
    return d if d.ndim == 3 else d[None]


def _poison_like(view: np.ndarray) -> np.ndarray:
    return np.full(view.dtype.itemsize, POISON, np.uint8).view(view.dtype)


def _call_blocks(
    function: Any, params: tuple[Any, ...], blocks: int, case: KernelCall, memory: dict[str, GuardedMemory]
) -> None:
    arguments = (_FfiAny * (len(params) + 1))()
    for slot, param in zip(arguments, params, strict=False):
        if isinstance(param, Pointer):
            slot.type_index, slot.value = _POINTER, memory[param.name].address
        elif isinstance(param, Scalar):
            slot.type_index, slot.value = _FLOAT, int(np.float64(case.scalars[param.name]).view(np.uint64))
        else:
            assert isinstance(param, Size)
            slot.type_index, slot.value = _INT, evaluate(param.value, case.m)
    result = _FfiAny(_NONE, 0, 0)
    arguments[len(params)].type_index = _INT
    for block in range(blocks):
        arguments[len(params)].value = block
        assert function(None, arguments, len(params) + 1, ctypes.byref(result)) == 0
