"""ctypes bindings of libcublasLt for a matmul: descriptors, heuristics, the call.

Numbers are those of ``cublasLt.h``, ``cublas_api.h`` and ``library_types.h`` of CUDA 13 (the same in CUDA 12).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from functools import cache
from pathlib import Path
from typing import Any

SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
SUCCESS = 0
DATA_TYPE = {"f32": 0, "f16": 2, "bf16": 14}  # cudaDataType_t: CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF
COMPUTE_TYPE = {"f16": 64, "f32": 68}  # cublasComputeType_t: CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_32F
OP_N, OP_T = 0, 1
# cublasLtEpilogue_t. Its GELU is the approximation by tanh.
EPILOGUE_BIAS = 4
EPILOGUE = {"none": 1, "relu": 2, "gelu_tanh": 32}
# cublasLtMatmulDescAttributes_t and the type of each value.
TRANSA, TRANSB, EPILOGUE_MODE, BIAS_POINTER = (3, c_int32), (4, c_int32), (7, c_uint32), (8, pointer)
# cublasLtMatrixLayoutAttribute_t.
BATCH_COUNT, STRIDED_BATCH_OFFSET = (5, c_int32), (6, c_int64)
# cublasLtMatmulPreferenceAttributes_t.
MAX_WORKSPACE_BYTES, REDUCTION_SCHEMES = (1, c_uint64), (3, c_uint32)
MIN_ALIGNMENT_BYTES = {"a": (5, c_uint32), "b": (6, c_uint32), "c": (7, c_uint32), "d": (8, c_uint32)}
# cublasLtMatmulAlgoConfigAttributes_t.
ALGO_CONFIG = {
    "id": (0, c_int32),
    "tile": (1, c_uint32),
    "splitk": (2, c_int32),
    "reduction": (3, c_uint32),
    "swizzle": (4, c_uint32),
    "custom": (5, c_uint32),
    "stages": (6, c_uint32),
    "inner": (7, c_uint16),
    "cluster": (8, c_uint16),
}

LtAttribute = tuple[int, Any]


class Algo(ctypes.Structure):
    """``cublasLtMatmulAlgo_t``: opaque, copied by value."""

    _fields_ = [("data", c_uint64 * 8)]


class HeuristicResult(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = [
        ("algo", Algo),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


_SIGNATURES: dict[str, list[Any]] = {
    "cublasLtCreate": [POINTER(pointer)],
    "cublasLtMatmulDescCreate": [POINTER(pointer), c_int, c_int],
    "cublasLtMatmulDescDestroy": [pointer],
    "cublasLtMatmulDescSetAttribute": [pointer, c_int, pointer, c_size_t],
    "cublasLtMatrixLayoutCreate": [POINTER(pointer), c_int, c_uint64, c_uint64, c_int64],
    "cublasLtMatrixLayoutDestroy": [pointer],
    "cublasLtMatrixLayoutSetAttribute": [pointer, c_int, pointer, c_size_t],
    "cublasLtMatmulPreferenceCreate": [POINTER(pointer)],
    "cublasLtMatmulPreferenceDestroy": [pointer],
    "cublasLtMatmulPreferenceSetAttribute": [pointer, c_int, pointer, c_size_t],
    "cublasLtMatmulAlgoGetHeuristic": [*[pointer] * 7, c_int, POINTER(HeuristicResult), POINTER(c_int)],
    "cublasLtMatmulAlgoConfigGetAttribute": [POINTER(Algo), c_int, pointer, c_size_t, POINTER(c_size_t)],
    # handle, descriptor, alpha, A, its layout, B, its layout, beta, C, its layout, D, its layout, algo, workspace,
    # its bytes, stream
    "cublasLtMatmul": [*[pointer] * 12, POINTER(Algo), pointer, c_size_t, pointer],
}


class CublasLtError(Exception):
    """A function of the library answered with an error status, which ``status`` holds."""

    def __init__(self, function: str, status: int, name: str) -> None:
        super().__init__(f"{function} answers {name} ({status})")
        self.status = status


class CublasLt:
    """The library with a handle for the current CUDA context, both kept as long as the process."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        library.cublasLtGetVersion.restype = c_size_t
        library.cublasLtGetStatusName.argtypes, library.cublasLtGetStatusName.restype = [c_int], c_char_p
        self._handle: pointer | None = None

    @property
    def version(self) -> int:
        """130100 is 13.1.0."""
        return int(self._library.cublasLtGetVersion())

    @property
    def handle(self) -> pointer:
        if self._handle is None:
            handle = pointer()
            self.call("cublasLtCreate", byref(handle))
            self._handle = handle
        return self._handle

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that answers with a status. Raises CublasLtError."""
        status = getattr(self._library, name)(*arguments)
        if status != SUCCESS:
            raise CublasLtError(name, status, self._library.cublasLtGetStatusName(status).decode())

    def heuristics(self, *given: Descriptor, most: int) -> list[HeuristicResult]:
        """At most ``most`` usable algorithms, the library's own choice first. ``given`` are the product, A, B, C, D and
        the preference. Raises CublasLtError where there is none."""
        results, count = (HeuristicResult * most)(), c_int()
        pointers = (x.pointer for x in given)
        self.call("cublasLtMatmulAlgoGetHeuristic", self.handle, *pointers, most, results, byref(count))
        return [results[i] for i in range(count.value) if results[i].state == SUCCESS]

    def config(self, algo: Algo) -> dict[str, int]:
        """What the library tells about an algorithm, as numbers of its enumerations."""
        values: dict[str, int] = {}
        for name, (number, kind) in ALGO_CONFIG.items():
            value, written = kind(), c_size_t()
            arguments = (byref(algo), number, byref(value), ctypes.sizeof(value), byref(written))
            with contextlib.suppress(CublasLtError):  # one that this version of the library does not know
                self.call("cublasLtMatmulAlgoConfigGetAttribute", *arguments)
                values[name] = int(value.value)
        return values


class Descriptor:
    """A descriptor of the library: ``MatmulDesc``, ``MatrixLayout`` or ``MatmulPreference``; freed with the object."""

    def __init__(self, lt: CublasLt, kind: str, *arguments: Any) -> None:
        self._lt, self._kind = lt, kind
        self.pointer = pointer()
        lt.call(f"cublasLt{kind}Create", byref(self.pointer), *arguments)

    def set(self, attribute: LtAttribute, value: int) -> None:
        """Set one attribute. Raises CublasLtError."""
        number, kind = attribute
        held = kind(value)
        self._lt.call(f"cublasLt{self._kind}SetAttribute", self.pointer, number, byref(held), ctypes.sizeof(held))

    def __del__(self) -> None:
        if self.pointer:
            with contextlib.suppress(CublasLtError):
                self._lt.call(f"cublasLt{self._kind}Destroy", self.pointer)


@cache
def cublaslt() -> CublasLt:
    """The library that PyTorch has loaded, else that of a wheel of NVIDIA's, else the system's. Raises OSError."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    for name, mode in _places():
        with contextlib.suppress(OSError):
            return CublasLt(ctypes.CDLL(name, mode=mode))
    raise OSError(f"none of {', '.join(SONAMES)} is loaded, in a wheel of NVIDIA's or in the linker's path")


def _places() -> Iterator[tuple[str, int]]:
    yield from ((name, os.RTLD_NOLOAD | os.RTLD_NOW) for name in SONAMES)
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for name in SONAMES:
            yield from ((str(path), os.RTLD_NOW) for path in sorted(Path(root).glob(f"*/lib/{name}")))
    yield from ((name, os.RTLD_NOW) for name in SONAMES)
