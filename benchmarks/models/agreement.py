"""Distances between results of one model computed in several ways, PyTorch's own among them."""

from __future__ import annotations

import itertools
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


def agreement_of_pytorch(call: Callable[[], Tensor], exact: Tensor, kind: str) -> tuple[float, float]:
    """How far the worst of PyTorch's own ways lies from the ``exact`` result, and how far two of them lie apart at
    most. ``kind`` is that of the device."""
    outputs = []
    for way in GPU_WAYS if kind == "cuda" else CPU_WAYS:
        with computed(way):
            outputs.append(call())
    error = max(distance(output, exact) for output in outputs)
    return error, max(distance(one, other) for one, other in itertools.permutations(outputs, 2))


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
