"""``PreparedCall``: the kernel for one kind of call, and how its tensors are passed; chosen once, called many times.

A kind of call is what the shapes, strides, dtypes, devices and alignments of its tensors say. What was chosen is
forgotten when the table of kernels changes.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tirgemm import expr
from tirgemm.artifact import Kernel
from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, InvalidDevice, InvalidGemm
from tirgemm.gemm import DTYPE_BYTES, Gemm
from tirgemm.torch.kernel_table import DEPENDENT_TABLE, TABLE, device_of, table_of
from tirgemm.torch.problems import (
    DTYPES,
    MatrixLayout,
    NotServed,
    aligned,
    check_plain,
    layout_of,
)

NO_KERNEL = "no kernel"
SLOWER = "not faster than PyTorch"
# What the launcher and DLPack raise before anything runs: PyTorch computes such a call, or raises its own error.
REFUSED = (ValueError, TypeError, RuntimeError, BufferError)


@dataclass(frozen=True, slots=True)
class Unserved:
    """Why PyTorch computes a call: ``reason`` in a few words; ``gemm`` and ``device`` where a kernel could be made."""

    reason: str
    gemm: Gemm | None = None
    device: Device | None = None


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """``kernel`` with the shape and strides of its D, and whether A and B lie by columns, as batches of one."""

    kernel: Kernel
    raw: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    columns_a: bool
    columns_b: bool
    batch_of_one: bool

    def run(
        self,
        a: Tensor,
        b: Tensor,
        c: Tensor | None = None,
        bias: Tensor | None = None,
        scalars: tuple[float, ...] = (),
        out: Tensor | None = None,
    ) -> Tensor:
        """``act(alpha * a @ b + beta * c + bias)`` into ``out``, or into a new dense tensor, which is no view: PyTorch
        lets nobody change a view that was made without gradients where they are recorded. Raises what the launcher and
        DLPack raise, then nothing has run."""
        d = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=a.device) if out is None else out
        given = [_lying(a, self.columns_a, self.batch_of_one), _lying(b, self.columns_b, self.batch_of_one)]
        given += [] if c is None else [_lying(c, False, self.batch_of_one)]
        given += [] if bias is None else [bias]
        self.raw(*given, _lying(d, False, self.batch_of_one), *scalars)
        return d

    def run_rows(self, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        """``run`` on all rows of ``a``, a dense result with the dimensions of ``a`` before the last."""
        out = torch.empty((*a.shape[:-1], self.shape[-1]), dtype=self.dtype, device=a.device)
        self.run(a.view(-1, a.shape[-1]), b, bias=bias, out=out.view(-1, out.shape[-1]))
        return out


CallChoice: TypeAlias = "PreparedCall | Unserved"


@dataclass(frozen=True, slots=True)
class ProductOperands:
    """The tensors of one call of ``act(alpha * a @ b + beta * c + bias)``: A (m, k), B (k, n), C and D (m, n), each
    alone or as a batch, bias (n,). ``prefer_b``: the layout of a B that lies by rows and by columns at once.
    ``invariant``: kernels whose bits of a row do not depend on the others, and no other ones; ``dependent_launch``:
    those for dependent launches, and no other ones."""

    a: Tensor
    b: Tensor
    c: Tensor | None = None
    bias: Tensor | None = None
    out: Tensor | None = None
    alpha: bool = False
    act: str = "none"
    prefer_b: str = "n"
    invariant: bool = False
    dependent_launch: bool = False

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for tensor in (self.a, self.b, self.c, self.bias, self.out) if tensor is not None]

    @property
    def signature(self) -> Hashable:
        """What a choice depends on."""
        each = tuple((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() & 15, t.is_neg()) for t in self.tensors)
        given = self.c is not None, self.bias is not None, self.out is not None
        return each, given, self.alpha, self.act, self.prefer_b, self.invariant, self.dependent_launch


class TableCache(ABC):
    """What is known until a table of kernels changes, when a new ``generation`` begins. Safe from several threads."""

    LIMIT = 4096

    def __init__(self) -> None:
        self.generation = 0
        # Entered again where memory is collected while it is held.
        self._lock = threading.RLock()
        for table in (TABLE, DEPENDENT_TABLE):
            table.on_change(self.clear)
        os.register_at_fork(after_in_child=self._unlock_in_child)

    def _unlock_in_child(self) -> None:
        """The thread that holds the lock, or was to clear, is the parent's."""
        self._lock = threading.RLock()
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self.generation += 1
            self._forget_all()

    @abstractmethod
    def _forget_all(self) -> None:
        """Forget all, under the lock."""


class ChoiceCache(TableCache):
    """Choices by what they depend on. ``known`` may be read without a lock."""

    def __init__(self) -> None:
        self.known: dict[Hashable, CallChoice] = {}
        super().__init__()

    def _forget_all(self) -> None:
        self.known.clear()

    def keep(self, key: Hashable, choice: CallChoice, generation: int) -> None:
        """Keep what was chosen in that generation, unless the table has changed since."""
        with self._lock:
            if generation == self.generation:
                if len(self.known) >= self.LIMIT:
                    self.known.clear()
                self.known[key] = choice


_CHOICES = ChoiceCache()


def choose(operands: ProductOperands, *, tuned: bool = False) -> CallChoice:
    """The kernel for a call, or why there is none; only ``tuned`` ones where that is asked for."""
    if any(t.layout is not torch.strided or t.is_meta for t in operands.tensors):
        return Unserved("meta tensor" if any(t.is_meta for t in operands.tensors) else "no strided tensor")
    key = (operands.signature, tuned)
    choice = _CHOICES.known.get(key)
    if choice is None:
        generation = _CHOICES.generation
        choice = _chosen(operands, tuned)
        _CHOICES.keep(key, choice, generation)
    return choice


def _chosen(operands: ProductOperands, tuned: bool) -> CallChoice:
    try:
        gemm, a, b = problem_of(operands)
        device = device_of(operands.a.device)
    except NotServed as error:
        return Unserved(str(error))
    except (InvalidDevice, DeviceUnavailable):
        return Unserved(f"device {operands.a.device.type}")
    table = table_of(operands.dependent_launch)
    kernel = table.find(gemm, device, tuned=tuned)
    if kernel is None:
        return Unserved(SLOWER) if table.excluded_rows(gemm, device) else Unserved(NO_KERNEL, gemm, device)
    shape = tuple(expr.evaluate(size, gemm.m_max) for size in kernel.gemm.shape("d"))
    strides = tuple(expr.evaluate(stride, gemm.m_max) for stride in kernel.gemm.strides("d"))
    batch_of_one = operands.a.dim() == 3 and gemm.batch == 1
    if batch_of_one:
        shape, strides = (1, *shape), (gemm.m_max * strides[0], *strides)
    dtype = DTYPES[gemm.out]
    return PreparedCall(kernel, kernel.raw, shape, strides, dtype, a.letter == "t", b.letter == "t", batch_of_one)


def problem_of(operands: ProductOperands) -> tuple[Gemm, MatrixLayout, MatrixLayout]:
    """The problem of a call, and how A and B lie. Raises NotServed."""
    a, b, c, bias, out = operands.a, operands.b, operands.c, operands.bias, operands.out
    if a.dim() != b.dim() or a.dim() not in (2, 3) or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise NotServed("shapes")
    result = (*a.shape[:-1], b.shape[-1])
    if any(tensor is not None and tuple(tensor.shape) != result for tensor in (c, out)):
        raise NotServed("shapes")
    if bias is not None and (tuple(bias.shape) != result[-1:] or (bias.shape[0] > 1 and bias.stride(0) != 1)):
        raise NotServed("bias")
    if 0 in (*a.shape, *b.shape):
        raise NotServed("empty operand")
    dtype = check_plain(operands.tensors)
    of_a = layout_of(a.shape, a.stride())
    of_b = layout_of(b.shape, b.stride(), operands.prefer_b)
    by_rows = [None if tensor is None else layout_of(tensor.shape, tensor.stride()) for tensor in (c, out)]
    if any(layout is not None and layout.letter != "n" for layout in by_rows):
        raise NotServed("strides")
    align = aligned(operands.tensors, DTYPE_BYTES[dtype])
    of_c, of_d = (layout or MatrixLayout("n", 0, 0) for layout in by_rows)
    try:
        gemm = Gemm(
            m=a.shape[-2],
            n=b.shape[-1],
            k=a.shape[-1],
            dtype=dtype,
            layout=of_a.letter + of_b.letter,
            batch=a.shape[0] if a.dim() == 3 else 1,
            lda=of_a.leading,
            ldb=of_b.leading,
            ldc=of_c.leading,
            ldd=of_d.leading,
            stride_a=of_a.batch_stride,
            stride_b=of_b.batch_stride,
            stride_c=of_c.batch_stride,
            stride_d=of_d.batch_stride,
            align=align,
            alpha=operands.alpha,
            beta=c is not None,
            bias=bias is not None,
            act=operands.act,
            invariant=operands.invariant,
        )
    except InvalidGemm as error:
        raise NotServed("sizes beyond a Gemm's limits") from error
    return gemm, of_a, of_b


def _lying(tensor: Tensor, by_columns: bool, batch_of_one: bool) -> Tensor:
    matrix = tensor[0] if batch_of_one else tensor
    return matrix.mT if by_columns else matrix
