"""The array libraries that kernels are called with: how each one's arrays come in, and how an output is made.

Neither NumPy nor any other library is imported here before one of its arrays is seen.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from tirgemm.artifact import native
from tirgemm.errors import CallError, CallTypeError, MissingExtra
from tirgemm.gemm import DTYPE_BYTES, DTYPE_NAMES

# What every allocator here gives without being asked.
_NATURAL_ALIGN = 16


class Arrays:
    """Any library whose arrays offer DLPack; its outputs must be passed in."""

    name = "DLPack"

    def take(self, name: str, array: Any, writes: bool) -> Any:
        """``array`` in a form that the launcher takes. Raises CallError and CallTypeError naming the argument."""
        try:
            return native.tvm_ffi().from_dlpack(array)
        except (BufferError, TypeError, RuntimeError, ValueError) as error:
            raise CallTypeError(f"{name} cannot be passed by DLPack: {error}") from error

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, align: int, like: Any) -> Any:
        """A new output. Raises CallTypeError where this library has no way to make one."""
        raise CallTypeError(
            f"a kernel called with {type(like).__name__} needs out=: only NumPy, PyTorch and CuPy outputs are made"
        )

    def run(self, raw: Any, args: list[Any]) -> None:
        raw(*args)

    def check_seen(self, tensors: tuple[Any, ...]) -> None:
        """Raise CallError where something that is to see all computations would not see a kernel that takes these."""

    def count_change(self, out: Any) -> None:
        """Have the library know that a kernel has changed an array."""


class NumPy(Arrays):
    """NumPy arrays; bfloat16 is that of ml_dtypes, which DLPack cannot name."""

    name = "NumPy"

    def take(self, name: str, array: Any, writes: bool) -> Any:
        dtype = array.dtype
        if writes and not array.flags.writeable:
            raise CallError(f"{name} is a read-only array; the output must be writeable")
        if dtype.kind == "f" and dtype.isnative:
            if array.flags.writeable:
                return array  # the launcher's own conversion is the fastest
            return self._import(name, array)
        if dtype.name == "bfloat16":
            import numpy

            return native.reinterpret(self._import(name, array.view(numpy.uint16)), "bfloat16")
        raise CallTypeError(f"{name} has dtype {dtype}; kernels take float16, bfloat16 and float32")

    def _import(self, name: str, array: Any) -> Any:
        try:
            # A version from 1.0 on says that an array is read-only, where older ones refuse it.
            return native.tvm_ffi().from_dlpack(array.__dlpack__(max_version=(1, 0)))
        except BufferError as error:
            raise CallTypeError(f"{name} cannot be passed by DLPack: {error}") from error

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, align: int, like: Any) -> Any:
        import numpy

        kind = self._dtype(dtype)
        if align <= _NATURAL_ALIGN and strides == dense(shape):
            return numpy.empty(shape, kind)
        size = DTYPE_BYTES[dtype]
        memory = numpy.empty(span(shape, strides) * size + align, numpy.uint8)
        offset = -memory.__array_interface__["data"][0] % align
        return numpy.ndarray(shape, kind, memory, offset, tuple(stride * size for stride in strides))

    @staticmethod
    def _dtype(dtype: str) -> Any:
        import numpy

        if dtype != "bf16":
            return numpy.dtype(DTYPE_NAMES[dtype])
        try:
            import ml_dtypes
        except ImportError as error:
            raise MissingExtra("bfloat16 outputs in NumPy need the package ml_dtypes: pip install ml_dtypes") from error
        return numpy.dtype(ml_dtypes.bfloat16)


class PyTorch(Arrays):
    """PyTorch tensors; the launcher follows PyTorch's current stream and allocates workspaces from its pool."""

    name = "PyTorch"
    _unseen: Callable[[tuple[Any, ...]], str] | None = None

    def take(self, name: str, array: Any, writes: bool) -> Any:
        if array.requires_grad and sys.modules["torch"].is_grad_enabled():
            raise CallError(
                f"{name} requires grad, and this kernel has no backward: call it under torch.no_grad(), or detach "
                f"{name}"
            )
        if array.is_neg() or array.is_conj():  # DLPack would pass the memory without its sign
            raise CallError(f"{name} is negated or conjugated lazily; give {name}.resolve_neg().resolve_conj()")
        return array

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, align: int, like: Any) -> Any:
        torch = sys.modules["torch"]
        kind = getattr(torch, DTYPE_NAMES[dtype])
        if like.is_cuda or align <= _NATURAL_ALIGN:  # CUDA memory starts at multiples of 512
            return torch.empty_strided(shape, strides, dtype=kind, device=like.device)
        size = DTYPE_BYTES[dtype]
        memory = torch.empty(span(shape, strides) + align // size, dtype=kind, device=like.device)
        offset = -memory.data_ptr() % align // size
        return memory.as_strided(shape, strides, offset)

    def check_seen(self, tensors: tuple[Any, ...]) -> None:
        if self._unseen is None:
            from tirgemm.artifact.private_torch import unseen  # it imports PyTorch

            self._unseen = unseen
        if refusal := self._unseen(tensors):
            raise CallError(refusal)

    def count_change(self, out: Any) -> None:
        sys.modules["torch"].autograd.graph.increment_version(out)


class CuPy(Arrays):
    """CuPy arrays, on CuPy's current stream."""

    name = "CuPy"

    def take(self, name: str, array: Any, writes: bool) -> Any:
        ffi = native.tvm_ffi()
        try:
            # -1: no synchronisation, as the kernel is queued on the very stream that CuPy works on.
            if array.dtype.name == "bfloat16":
                return native.reinterpret(ffi.from_dlpack(array.view("uint16").__dlpack__(stream=-1)), "bfloat16")
            return ffi.from_dlpack(array.__dlpack__(stream=-1))
        except (BufferError, TypeError, ValueError) as error:
            raise CallTypeError(f"{name} cannot be passed by DLPack: {error}") from error

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, align: int, like: Any) -> Any:
        cupy = sys.modules["cupy"]
        with like.device:
            if strides == dense(shape):
                return cupy.empty(shape, NumPy._dtype(dtype))
            size = DTYPE_BYTES[dtype]
            memory = cupy.empty(span(shape, strides), NumPy._dtype(dtype))
            return cupy.ndarray(shape, memory.dtype, memory.data, tuple(stride * size for stride in strides))

    def run(self, raw: Any, args: list[Any]) -> None:
        cupy, ffi = sys.modules["cupy"], native.tvm_ffi()
        device = args[0].device
        stream = cupy.cuda.get_current_stream(device.index)
        with ffi.use_raw_stream(device, stream.ptr):
            raw(*args)


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a row-major array without gaps."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to one past the last."""
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1


_LIBRARIES = {"numpy": NumPy(), "torch": PyTorch(), "cupy": CuPy()}
_FALLBACK = Arrays()
_BY_TYPE: dict[type, Arrays | None] = {}


def library_of(array: Any) -> Arrays | None:
    """The library whose array this is, or None for what is no array."""
    cls = type(array)
    if cls not in _BY_TYPE:
        roots = (base.__module__.partition(".")[0] for base in cls.__mro__)
        known = next((_LIBRARIES[root] for root in roots if root in _LIBRARIES), None)
        dlpack = hasattr(cls, "__dlpack__")
        _BY_TYPE[cls] = (known or _FALLBACK) if dlpack else None
    return _BY_TYPE[cls]
