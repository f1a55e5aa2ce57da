"""What a call of emulated kernels takes: memory for tensors and workspaces, and values for a kernel's parameters."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tirgemm.expr import evaluate
from tirgemm.gemm import DTYPE_BYTES
from tirgemm.launch import Launch, Pointer, Scalar, Size, TensorMap
from verification.emulator.memory import GuardedMemory, place
from verification.emulator.operands import KernelCall, encode


def placed(launch: Launch, case: KernelCall) -> tuple[dict[str, GuardedMemory], dict[str, np.ndarray]]:
    """Memory for the tensors and workspaces of a call by their names, and views of the tensors, with the inputs
    written."""
    memory: dict[str, GuardedMemory] = {}
    views: dict[str, np.ndarray] = {}
    for arg in launch.tensors:
        memory[arg.name], views[arg.name] = place(arg, case.m)
        if not arg.output:
            values = encode(case.tensors[arg.name], arg.dtype)
            views[arg.name][...] = values[0] if values.ndim > len(arg.shape) else values
    for workspace in launch.workspaces:
        memory[workspace.name] = GuardedMemory(evaluate(workspace.nbytes, case.m))
        if workspace.init == "zero":
            memory[workspace.name].data[:] = 0
    return memory, views


def argument(param: object, case: KernelCall, memory: dict[str, GuardedMemory]) -> Any:
    """The value of a kernel's parameter, as C has it."""
    if isinstance(param, Pointer):
        return ctypes.c_void_p(memory[param.name].address)
    if isinstance(param, Scalar):
        return ctypes.c_float(case.scalars[param.name])
    if isinstance(param, TensorMap):
        return _tensor_map(param, case.m, memory[param.name].address)
    assert isinstance(param, Size)
    value = evaluate(param.value, case.m)
    return ctypes.c_int(value) if param.dtype == "i32" else ctypes.c_longlong(value)


def addresses(values: list[Any]) -> Any:
    """An array of pointers to values of parameters, which must live as long as it does."""
    return (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))


def _tensor_map(spec: TensorMap, m: int, base: int) -> Any:
    """The model's own form of a TMA descriptor: base, rank, sizes, strides, box, swizzle, bytes of an element."""
    assert (spec.interleave, spec.oob_fill, set(spec.element_strides)) == (0, 0, {1})
    box = spec.box_at(m)
    assert set(box[2:]) <= {1}
    sizes = [evaluate(dim, m) for dim in spec.dims]
    strides = [evaluate(stride, m) for stride in spec.strides]
    words = [base, len(sizes), *(*sizes, 1)[:3], *(*strides, 0)[:2], *(*box, 1)[:3]]
    # Aligned as the type is: of the room the first address that is.
    room = (ctypes.c_ulonglong * 32)()
    at = -ctypes.addressof(room) % 64 // 8
    view = (ctypes.c_ulonglong * 16).from_buffer(room, at * 8)
    view[:12] = [*words, spec.swizzle, DTYPE_BYTES[spec.dtype]]
    return view
