"""Distances between results of one model computed in several ways, PyTorch's own among them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

# The ways in which PyTorch computes one product: libraries on a GPU, with sums of partial sums in fp16 or not.
GPU_WAYS = ("default", "cublaslt", "no reduced-precision reduction")
CPU_WAYS = ("default", "without oneDNN")


def distance(one: Tensor, other: Tensor) -> float:
    """Root mean square of the difference, over that of ``other``; in fp64."""
    a, b = one.double(), other.double()
    return float((a - b).norm() / b.norm())


def error_of_pytorch(call: Callable[[], Tensor], exact: Tensor, kind: str) -> float:
    """How far the worst of PyTorch's own ways lies from the ``exact`` result. ``kind`` is that of the device.

    Two of them may lie twice as far apart.
    """
    errors = []
    for way in GPU_WAYS if kind == "cuda" else CPU_WAYS:
        with computed(way):
            errors.append(distance(call(), exact))
    return max(errors)


@contextmanager
def computed(way: str) -> Iterator[None]:
    """Within the block PyTorch computes products this way."""
    matmul = torch.backends.cuda.matmul
    if way == "cublaslt":
        before = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library("cublaslt")
        try:
            yield
        finally:
            torch.backends.cuda.preferred_blas_library(before)
    elif way == "no reduced-precision reduction":
        settings = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
        matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
        try:
            yield
        finally:
            matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction = settings
    elif way == "without oneDNN":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of TF32, which it sets back too
            with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
                yield
    else:
        yield
