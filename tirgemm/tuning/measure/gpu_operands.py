"""Operands of what is timed on a GPU: so many sets that they are four times the L2, two where the L2 holds all that is
read of one, in fresh memory."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.errors import DoesNotFit
from tirgemm.gemm import Gemm
from tirgemm.tuning.driver.cuda import Gpu, Memory
from tirgemm.tuning.driver.tensors import CUDA, View
from tirgemm.tuning.verify.cuda import CudaBackend
from tirgemm.tuning.verify.plan import operand_layouts, tensor_shape, timed_align, timed_start

_ROTATION = 4
_SETS = 8192


@dataclass(frozen=True)
class Operands:
    """Sets of operands, each a view by tensor name, in one piece of memory."""

    memory: Memory
    views: list[dict[str, View]]


def sets_that_fit(gemm: Gemm, contenders: int, gpu: Gpu, backend: CudaBackend) -> int:
    """Sets for each of ``contenders`` that own their operands. Raises DoesNotFit where one each is too many."""
    layouts, l2 = operand_layouts(gemm), gpu.device.limits.l2_bytes
    one = sum(layout.padded_bytes for layout in layouts)
    read = sum(layout.padded_bytes for layout in layouts if layout.name != "d")
    wanted = min(_SETS, max(1 if read > l2 else 2, -(-_ROTATION * l2 // one)))
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
    layouts = operand_layouts(gemm)
    memory = Memory(sets * sum(layout.padded_bytes for layout in layouts) + 2 * timed_align(gemm.align))
    at = timed_start(gemm, memory.address)
    backend.fill_normal(at, memory.address + memory.nbytes - at, gemm.dtype, seed)
    views = []
    for i in range(sets):
        one: dict[str, View] = {}
        for layout in layouts:
            if layout.dtype != gemm.dtype and layout.name != "d":
                backend.fill_normal(at, layout.nbytes, layout.dtype, seed + i)
            one[layout.name] = View(at, layout.dtype, *tensor_shape(layout), CUDA, gpu.ordinal)
            at += layout.padded_bytes
        views.append(one)
    gpu.synchronize()
    return Operands(memory, views)
