"""The GPU's baselines ``cublaslt_best`` and ``cublaslt_unsplit``: every algorithm that cuBLASLt's heuristics offer for
a problem, and those that do not split k."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tirgemm.gemm import Gemm
from tirgemm.tuning.driver.cuda import Memory
from tirgemm.tuning.driver.tensors import View
from tirgemm.tuning.measure.baselines import cublaslt as lt
from tirgemm.tuning.measure.baselines.cublaslt import Algo, CublasLt, CublasLtError, Descriptor, cublaslt
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.tuned_baseline import BaselineOption, Call, Refused
from tirgemm.tuning.verify.plan import OperandPlacement, layout_of

# More than cuBLASLt is known to offer for any problem. The workspace is what PyTorch gives it on Hopper.
MOST_HEURISTICS = 128
WORKSPACE_BYTES = 32 << 20
_ALIGNED = 256


def unsupported(gemm: Gemm) -> str:
    """Why cuBLASLt does not compute a problem in one call; empty where it may."""
    if gemm.act not in lt.EPILOGUE:
        return f"cuBLASLt has no epilogue {gemm.act}; it has bias, relu and gelu_tanh"
    if gemm.acc == "f16" and gemm.out != "f16":
        return f"cuBLASLt accumulates in fp16 only where it writes fp16, not {gemm.out}"
    return ""


def epilogue(gemm: Gemm) -> int:
    """The problem's ``cublasLtEpilogue_t``."""
    mode = lt.EPILOGUE[gemm.act]
    if not gemm.bias:
        return mode
    return lt.EPILOGUE_BIAS | (0 if gemm.act == "none" else mode)


@dataclass(frozen=True)
class CublasProblem:
    """A gemm as cuBLASLt sees it.

    The library's matrices are column-major. A row-major matrix is its transpose, column-major, so D = A B becomes
    D^T = B^T A^T: the library's A is our B, its rows are our columns, and its bias, one value a row, is our bias[n].
    """

    description: Descriptor
    a: Descriptor
    b: Descriptor
    c: Descriptor
    d: Descriptor

    @classmethod
    def of(cls, library: CublasLt, gemm: Gemm) -> CublasProblem:
        """Raises CublasLtError for what cannot be described."""
        scale = gemm.acc
        description = Descriptor(library, "MatmulDesc", lt.COMPUTE_TYPE[gemm.acc], lt.DATA_TYPE[scale])
        description.set(lt.TRANSA, lt.OP_T if gemm.trans_b else lt.OP_N)
        description.set(lt.TRANSB, lt.OP_T if gemm.trans_a else lt.OP_N)
        description.set(lt.EPILOGUE_MODE, epilogue(gemm))
        a, b, c, d = (
            _layout(library, layout_of(gemm, name, gemm.m_max)) for name in ("b", "a", "c" if gemm.beta else "d", "d")
        )
        return cls(description, a, b, c, d)


class CublasLtBaseline:
    """``cublasLtMatmul`` with each algorithm that the heuristics offer. Raises BaselineUnavailable."""

    def __init__(self, gemm: Gemm, ordinal: int, stream: int) -> None:
        del ordinal  # the library works in the current context
        if reason := unsupported(gemm):
            raise BaselineUnavailable(reason)
        try:
            self._lt = cublaslt()
            self._problem = CublasProblem.of(self._lt, gemm)
        except OSError as error:
            raise BaselineUnavailable(f"cuBLASLt was not found: {error}") from error
        except CublasLtError as error:
            raise BaselineUnavailable(f"cuBLASLt cannot describe this problem: {error}") from error
        self._gemm = gemm
        self._stream = stream
        self._workspace = Memory(WORKSPACE_BYTES)
        self._one, self._beta = _scalar(gemm, 1.0), _scalar(gemm, 1.0 if gemm.beta else 0.0)

    def context(self) -> AbstractContextManager[Any]:
        """Nothing: the stream is an argument of every call."""
        return contextlib.nullcontext()

    def candidates(self, sets: list[dict[str, View]]) -> list[BaselineOption]:
        """One for each algorithm; index 0 is the one that the library prefers."""
        preference = Descriptor(self._lt, "MatmulPreference")
        preference.set(lt.MAX_WORKSPACE_BYTES, WORKSPACE_BYTES)
        for theirs, ours in {"a": "b", "b": "a", "c": "c" if self._gemm.beta else "d", "d": "d"}.items():
            preference.set(lt.MIN_ALIGNMENT_BYTES[theirs], alignment(one[ours].address for one in sets))
        if self._gemm.bias:  # the heuristics go by its alignment
            self._problem.description.set(lt.BIAS_POINTER, sets[0]["bias"].address)
        self._restrict(preference)
        p = self._problem
        try:
            heuristics = self._lt.heuristics(p.description, p.a, p.b, p.c, p.d, preference, most=MOST_HEURISTICS)
        except CublasLtError as error:
            raise BaselineUnavailable(f"cuBLASLt does not offer this problem: {error}") from error
        if not heuristics:
            raise BaselineUnavailable("cuBLASLt offers no algorithm for this problem")
        version = self._lt.version
        return [
            BaselineOption(
                self._lt.config(x.algo) | {"workspace_bytes": x.workspace_bytes, "version": version},
                functools.partial(self._call, x.algo, sets),
            )
            for x in heuristics
        ]

    def _restrict(self, preference: Descriptor) -> None:
        """Nothing but the workspace and the alignment bounds what is offered."""

    def _call(self, algo: Algo, sets: list[dict[str, View]], number: int) -> Call:
        gemm, p, library, views = self._gemm, self._problem, self._lt, sets[number]
        bias = views["bias"].address if gemm.bias else None
        c = views["c" if gemm.beta else "d"].address
        arguments = (
            library.handle,
            p.description.pointer,
            ctypes.byref(self._one),
            views["b"].address,
            p.a.pointer,
            views["a"].address,
            p.b.pointer,
            ctypes.byref(self._beta),
            c,
            p.c.pointer,
            views["d"].address,
            p.d.pointer,
            ctypes.byref(algo),
            self._workspace.address,
            self._workspace.nbytes,
            self._stream,
        )

        def run() -> None:
            if bias is not None:  # part of the description, which is read at the call
                p.description.set(lt.BIAS_POINTER, bias)
            try:
                library.call("cublasLtMatmul", *arguments)
            except CublasLtError as error:
                raise Refused(str(error)) from error

        return run


class CublasLtUnsplitBaseline(CublasLtBaseline):
    """The algorithms that add all of k in one block, beside invariant problems. Raises BaselineUnavailable, also for
    others.

    How tiles of other sizes add is not told, so that a row may still have other bits at another m.
    """

    def __init__(self, gemm: Gemm, ordinal: int, stream: int) -> None:
        if not gemm.invariant:
            raise BaselineUnavailable(
                "cuBLASLt held to no split of k is beside invariant kernels; this problem is not invariant"
            )
        super().__init__(gemm, ordinal, stream)

    def _restrict(self, preference: Descriptor) -> None:
        preference.set(lt.REDUCTION_SCHEMES, 0)


def alignment(addresses: Iterable[int]) -> int:
    """The largest power of two, at most 256, that divides every address: what the heuristics may rely on."""
    bits = functools.reduce(operator.or_, addresses, _ALIGNED)
    return bits & -bits


def _layout(library: CublasLt, at: OperandPlacement) -> Descriptor:
    layout = Descriptor(library, "MatrixLayout", lt.DATA_TYPE[at.dtype], at.cols, at.rows, at.ld)
    if at.batch > 1:
        layout.set(lt.BATCH_COUNT, at.batch)
        layout.set(lt.STRIDED_BATCH_OFFSET, at.stride)
    return layout


def _scalar(gemm: Gemm, value: float) -> Any:
    """alpha or beta in the dtype of the sums, on the host."""
    if gemm.acc == "f32":
        return ctypes.c_float(value)
    return ctypes.c_uint16(int(np.float16(value).view(np.uint16)))
