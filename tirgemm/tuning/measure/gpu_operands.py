"""Operands of what is timed on a GPU: as many sets as rotating over four times the L2 takes, in fresh memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tirgemm.errors import DoesNotFit
from tirgemm.gemm import Gemm
from tirgemm.reference.numbers import BITS
from tirgemm.tuning.driver.cuda import Gpu, Memory
from tirgemm.tuning.driver.tensors import CUDA, View
from tirgemm.tuning.verify.cuda import CudaBackend
from tirgemm.tuning.verify.plan import OperandPlacement, layout_of, tensor_shape

_ROTATION = 4
_SETS = 8192
_ALIGN = 256


@dataclass(frozen=True)
class Operands:
    """Sets of operands, each a view by tensor name, in one piece of memory."""

    memory: Memory
    views: list[dict[str, View]]


def sets_that_fit(gemm: Gemm, contenders: int, gpu: Gpu, backend: CudaBackend) -> int:
    """Sets for each of ``contenders`` that own their operands. Raises DoesNotFit where one each is too many."""
    one = sum(_padded(layout) for layout in _layouts(gemm))
    wanted = min(_SETS, max(2, -(-_ROTATION * gpu.device.limits.l2_bytes // one)))
    budget = gpu.free_bytes() * 3 // 4
    if budget < contenders * wanted * one:
        backend.forget()
        budget = gpu.free_bytes() * 3 // 4
    affordable = budget // (contenders * one)
    if not affordable:
        need = f"{contenders * one:,} bytes of operands; {gpu.device.name} has {budget:,} to spare"
        if contenders == 1:
            raise DoesNotFit(f"timing {gemm} needs {need}: take a smaller problem")
        raise DoesNotFit(f"timing {gemm} beside {contenders - 1} others needs {need}: use fewer opponents")
    return min(wanted, affordable)


def filled(gemm: Gemm, sets: int, seed: int, gpu: Gpu, backend: CudaBackend) -> Operands:
    """Fresh memory with ``sets`` sets of random normal operands, each apart."""
    layouts = _layouts(gemm)
    memory = Memory(sets * sum(_padded(layout) for layout in layouts) + max(_ALIGN, gemm.align))
    at = memory.address + -memory.address % max(_ALIGN, gemm.align)
    backend.fill_normal(at, memory.address + memory.nbytes - at, gemm.dtype, seed)
    views = []
    for i in range(sets):
        one: dict[str, View] = {}
        for layout in layouts:
            if layout.dtype != gemm.dtype and layout.name != "d":
                backend.fill_normal(at, _size(layout), layout.dtype, seed + i)
            one[layout.name] = View(at, layout.dtype, *tensor_shape(layout), CUDA, gpu.ordinal)
            at += _padded(layout)
        views.append(one)
    gpu.synchronize()
    return Operands(memory, views)


def _layouts(gemm: Gemm) -> list[OperandPlacement]:
    return [layout_of(gemm, name, gemm.m_max) for name in (*gemm.inputs, "d")]


def _size(layout: OperandPlacement) -> int:
    return layout.span * int(np.dtype(BITS[layout.dtype]).itemsize)


def _padded(layout: OperandPlacement) -> int:
    align = max(_ALIGN, layout.align)
    return -(-_size(layout) // align) * align
