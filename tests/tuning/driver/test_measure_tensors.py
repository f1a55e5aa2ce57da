"""Tensors over memory of our own: what a consumer keeps outlives the view that described it."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import tvm_ffi

from tirgemm.tuning.driver.tensors import View


def test_a_tensor_keeps_its_shape_when_its_view_is_gone() -> None:
    memory = np.arange(24, dtype=np.float32)
    tensors = [tvm_ffi.from_dlpack(View(memory.ctypes.data, "f32", (4, 6), (6, 1))) for _ in range(100)]
    views: list[Any] = [View(memory.ctypes.data, "f32", (3, 5), (8, 1)) for _ in range(100)]
    arrays = [np.from_dlpack(view) for view in views]
    del views
    gc.collect()
    # What was freed is written over.
    rubbish = [np.full(200, -1, np.int64) for _ in range(1000)]
    assert len(rubbish) == 1000
    assert {tuple(tensor.shape) for tensor in tensors} == {(4, 6)}
    assert {array.strides for array in arrays} == {(32, 4)}
    assert all(array[2, 4] == 20 for array in arrays)


def test_consumers_have_descriptions_of_their_own() -> None:
    """Each is freed by its consumer, so that two consumers must not share one."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    view = View(np.zeros(4, np.float32).ctypes.data, "f32", (2, 2), (2, 1))
    first, second = view.__dlpack__(), view.__dlpack__()
    assert pointer(first, b"dltensor") != pointer(second, b"dltensor")
    for _ in range(2000):
        tvm_ffi.from_dlpack(view)
