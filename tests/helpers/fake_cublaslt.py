"""A libcublasLt over host memory: what ``cublasLt.h`` says of column-major operands, computed by NumPy in fp64."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, c_int, c_size_t
from typing import Any

import numpy as np

from tirgemm.reference.numbers import BITS, decode, encode
from tirgemm.tuning.measure.baselines import cublaslt as lt

SUCCESS, NOT_SUPPORTED = 0, 15
_TYPES = {number: name for name, number in lt.DATA_TYPE.items()}
_WIDTHS = {
    "MatmulDesc": {3: 4, 4: 4, 7: 4, 8: 8},
    "MatrixLayout": {5: 4, 6: 8},
    "MatmulPreference": {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4},
}


class FakeCublasLt:
    """Descriptors are numbered dictionaries. It offers ``offered`` algorithms; those in ``broken`` do not run."""

    def __init__(self, offered: int = 3, broken: frozenset[int] = frozenset()) -> None:
        self.offered, self.broken = offered, broken
        self.objects: dict[int, dict[Any, Any]] = {}
        self.preference: dict[int, int] = {}
        self.ran: list[int] = []
        for name, arguments in lt._SIGNATURES.items():
            setattr(self, name, CFUNCTYPE(c_int, *arguments)(self._answer(name)))
        self.cublasLtGetVersion = CFUNCTYPE(c_size_t)(lambda: 130100)
        self.cublasLtGetStatusName: Any = lambda _: b"CUBLAS_STATUS_NOT_SUPPORTED"

    def _answer(self, name: str) -> Any:
        for kind in _WIDTHS:
            for end in ("Create", "Destroy", "SetAttribute"):
                if name == f"cublasLt{kind}{end}":
                    return lambda *given: getattr(self, f"_{end.lower()}")(kind, *given)
        return getattr(self, name.removeprefix("cublasLt").lower())

    # -- descriptors ---------------------------------------------------------------------------

    def _create(self, kind: str, out: Any, *values: int) -> int:
        number = len(self.objects) + 1
        self.objects[number] = {"kind": kind, "created": values}
        out[0] = number
        return SUCCESS

    def _destroy(self, kind: str, number: int) -> int:
        assert self.objects.pop(number)["kind"] == kind
        self.objects[-number] = {}
        return SUCCESS

    def _setattribute(self, kind: str, number: int, attribute: int, value: int, size: int) -> int:
        actual = self.objects[number]
        assert actual["kind"] == kind
        assert _WIDTHS[kind][attribute] == size
        actual[attribute] = int.from_bytes(ctypes.string_at(value, size), "little")
        return SUCCESS

    # -- calls ---------------------------------------------------------------------------------

    def create(self, out: Any) -> int:
        out[0] = 77
        return SUCCESS

    def matmulalgogetheuristic(self, handle: int, *given: Any) -> int:
        preference, most, results, count = given[5:]
        assert handle == 77
        assert all(self.objects[number] for number in given[:6])
        self.preference = dict(self.objects[preference])
        for i in range(min(most, self.offered)):
            results[i].algo.data[0] = i
            results[i].state = NOT_SUPPORTED if i == 1 else SUCCESS
        count[0] = min(most, self.offered)
        return SUCCESS if self.offered else NOT_SUPPORTED

    def matmulalgoconfiggetattribute(self, algo: Any, attribute: int, out: int, size: int, written: Any) -> int:
        ctypes.memmove(out, int(10 * algo[0].data[0] + attribute).to_bytes(size, "little"), size)
        written[0] = size
        return SUCCESS

    def matmul(self, handle: int, description: int, *given: Any) -> int:
        alpha, a, a_at, b, b_at, beta, c, c_at, d, d_at, algo, workspace, workspace_bytes, stream = given
        assert (handle, workspace, workspace_bytes, stream) == (77, 4096, 32 << 20, 5)
        self.ran.append(int(algo[0].data[0]))
        if self.ran[-1] in self.broken:
            return NOT_SUPPORTED
        wanted = self.objects[description]
        compute, scale = wanted["created"]
        first, second = self._read(a, a_at, wanted[3]), self._read(b, b_at, wanted[4])
        kind = "f16" if compute == 64 else "f32"
        assert _TYPES[scale] == kind
        actual = _scalar(alpha, kind) * (first @ second)
        if _scalar(beta, kind):
            actual = actual + _scalar(beta, kind) * self._read(c, c_at, 0)
        if wanted[7] & lt.EPILOGUE_BIAS:
            dtype = _TYPES[self.objects[d_at]["created"][0]]
            bias = decode(_memory(wanted[8], actual.shape[1], dtype), dtype)
            actual = actual + bias[None, :, None]
        if wanted[7] & lt.EPILOGUE["relu"]:
            actual = np.maximum(actual, 0)
        self._matrices(d, d_at)[...] = encode(actual.astype(np.float32), _TYPES[self.objects[d_at]["created"][0]])
        return SUCCESS

    def _matrices(self, address: int, number: int) -> Any:
        """The batch as bits, batch x rows x columns."""
        actual = self.objects[number]
        type_, rows, cols, ld = actual["created"]
        batch, stride = actual.get(5, 1), actual.get(6, 0)
        flat = _memory(address, (batch - 1) * stride + (cols - 1) * ld + rows, _TYPES[type_])
        steps = tuple(flat.itemsize * step for step in (stride, 1, ld))
        return np.lib.stride_tricks.as_strided(flat, (batch, rows, cols), steps)

    def _read(self, address: int, number: int, transpose: int) -> Any:
        values = decode(self._matrices(address, number), _TYPES[self.objects[number]["created"][0]])
        return values.swapaxes(1, 2) if transpose == lt.OP_T else values


def _memory(address: int, count: int, dtype: str) -> Any:
    bits = np.dtype(BITS[dtype])
    return np.frombuffer((ctypes.c_char * (count * bits.itemsize)).from_address(address), bits)


def _scalar(address: int, kind: str) -> float:
    return float(np.frombuffer(ctypes.string_at(address, 4), np.float16 if kind == "f16" else np.float32)[0])
