"""tvm_ffi tensors over memory that this process owns: any address, dtype, shape and strides, on either device kind.

NumPy has no bfloat16 and nobody here has PyTorch, so the DLPack structures are written by hand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from tirgemm._extras import needed_by

with needed_by("tirgemm.tuning.measure"):
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
_c = ctypes.CDLL(None)
_c.malloc.restype = ctypes.c_void_p
_c.malloc.argtypes = [ctypes.c_size_t]
# What a consumer calls with its description when it is done with it, which may be long after the View is gone.
_FREE = ctypes.cast(_c.free, ctypes.c_void_p)


class View:
    """A tensor over memory at ``address``. Keep the memory, not the View, as long as a tensor made of it is used."""

    def __init__(
        self,
        address: int,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int],
        device_type: int = CPU,
        device_id: int = 0,
    ) -> None:
        self.address = address
        self._dtype = _CODES[dtype]
        self._extents = (*shape, *strides)
        self._device = device_type, device_id
        self.tensor: Any = tvm_ffi.from_dlpack(self)

    def __dlpack__(self, **_: object) -> object:
        """A description of its own for every consumer, in memory that ``free`` takes back."""
        count, (code, bits) = len(self._extents) // 2, self._dtype
        size = ctypes.sizeof(_DLManagedTensor)
        at = int(_c.malloc(size + 16 * count))
        (ctypes.c_int64 * (2 * count)).from_address(at + size)[:] = list(self._extents)
        first, second = (ctypes.cast(at + size + 8 * i, ctypes.POINTER(ctypes.c_int64)) for i in (0, count))
        tensor = _DLTensor(self.address, *self._device, count, code, bits, 1, first, second, 0)
        managed = _DLManagedTensor(tensor, None, _FREE)
        ctypes.memmove(at, ctypes.addressof(managed), size)
        return _new_capsule(at, b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device
