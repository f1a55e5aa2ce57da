"""tvm_ffi tensors over memory that this process owns: any address, dtype, shape and strides, on either device kind.

NumPy has no bfloat16 and nobody here has PyTorch, so the DLPack structures are written by hand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import tvm_ffi

CPU, CUDA = 1, 2
_CODES = {"f16": (2, 16), "f32": (2, 32), "bf16": (4, 16)}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class View:
    """A tensor over memory at ``address``. Keep it, and the memory, as long as ``tensor`` is used."""

    def __init__(
        self,
        address: int,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int],
        device_type: int = CPU,
        device_id: int = 0,
    ) -> None:
        self._extents = (ctypes.c_int64 * (2 * len(shape)))(*shape, *strides)
        first = ctypes.cast(self._extents, ctypes.POINTER(ctypes.c_int64))
        second = ctypes.cast(ctypes.addressof(self._extents) + 8 * len(shape), ctypes.POINTER(ctypes.c_int64))
        code, bits = _CODES[dtype]
        self._managed = _DLManagedTensor(
            _DLTensor(address, device_type, device_id, len(shape), code, bits, 1, first, second, 0), None, None
        )
        self.tensor: Any = tvm_ffi.from_dlpack(self)

    @property
    def address(self) -> int:
        """Where the tensor begins, in bytes."""
        return int(self._managed.dl_tensor.data)

    def __dlpack__(self, **_: object) -> object:
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._managed.dl_tensor.device_type, self._managed.dl_tensor.device_id
