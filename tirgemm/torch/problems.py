"""Conversion of PyTorch tensors' memory layouts to ``Gemm`` layouts.

Tensors come as they are written in mathematics, A as (m, k) and B as (k, n), a batch in front; how they lie in memory
gives the layout, the leading dimensions and the batch strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tirgemm.artifact.arrays import span
from tirgemm.gemm import USUAL_ALIGN

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
SHORT = {dtype: short for short, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """How a matrix, or a batch of them, lies in memory: ``letter`` ``n`` by rows or ``t`` by columns, the leading
    dimension and the batch stride in elements; 0 is dense."""

    letter: str
    leading: int
    batch_stride: int


class NotServed(Exception):
    """Why no kernel computes a call, in a few words that are counted."""


def layout_of(shape: Sequence[int], strides: Sequence[int], prefer: str = "n") -> MatrixLayout:
    """The layout of a (rows, columns) matrix, or of a batch of them. Where it is both, ``prefer`` decides.

    Raises NotServed for strides that no kernel reads: none of the two is 1, rows overlap, or matrices of a batch do.
    """
    rows, columns = shape[-2:]
    by_rows = _leading(rows, columns, strides[-2], strides[-1])
    by_columns = _leading(columns, rows, strides[-1], strides[-2])
    offered = {"n": by_rows, "t": by_columns}
    letter = prefer if offered[prefer] is not None else {"n": "t", "t": "n"}[prefer]
    leading = offered[letter]
    if leading is None:
        raise NotServed("strides")
    if len(shape) == 2 or shape[0] == 1:
        return MatrixLayout(letter, leading, 0)
    outer, inner = (rows, columns) if letter == "n" else (columns, rows)
    if strides[0] < (outer - 1) * leading + inner:
        raise NotServed("batch stride")
    return MatrixLayout(letter, leading, strides[0])


def _leading(outer: int, inner: int, outer_stride: int, inner_stride: int) -> int | None:
    """Elements from one row to the next of a matrix whose rows are ``inner`` long; None where they are not dense.

    Strides along a dimension of one element mean nothing.
    """
    if inner > 1 and inner_stride != 1:
        return None
    if outer == 1:
        return inner
    return outer_stride if outer_stride >= inner else None


def aligned(tensors: Sequence[Tensor], least: int) -> int:
    """The largest power of two, up to the usual alignment, that divides all addresses. NotServed below ``least``."""
    bits = USUAL_ALIGN
    for tensor in tensors:
        bits |= tensor.data_ptr()
    align = bits & -bits
    if align < least:
        raise NotServed("alignment")
    return align


def check_plain(tensors: Sequence[Tensor]) -> str:
    """The dtype of the tensors in short form. Raises NotServed unless kernels can read all of them where they lie."""
    first = tensors[0]
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "cuda"):
            raise NotServed(f"{tensor.device.type} tensor of layout {str(tensor.layout).removeprefix('torch.')}")
        if tensor.dtype is not first.dtype or tensor.device != first.device:
            raise NotServed("dtypes or devices that differ")
        if tensor.is_neg() or tensor.is_conj():
            raise NotServed("lazily negated tensor")
    if first.dtype not in SHORT:
        raise NotServed(str(first.dtype).removeprefix("torch."))
    return SHORT[first.dtype]


def within_storage(tensor: Tensor) -> bool:
    """Whether the storage of a strided tensor holds all of its elements: it may have been shrunk since."""
    end = (tensor.storage_offset() + span(tensor.shape, tensor.stride())) * tensor.itemsize
    return bool(end <= tensor.untyped_storage().nbytes())
