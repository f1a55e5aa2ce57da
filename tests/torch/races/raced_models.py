"""A model of three linears of two kinds, its problems, and the seconds that work on it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tirgemm.gemm import Gemm, Range

N, K, M = 23, 19, 5
UP, DOWN = Gemm(M, N, K, "f32", "nt", bias=True), Gemm(M, K, N, "f32", "nt", bias=True)
UP_SET, DOWN_SET = (gemm.with_(m=Range(1, 64)) for gemm in (UP, DOWN))
SLOW_S = 0.003
# What a product takes, by its columns and rows: PyTorch's always as much.
PYTORCH_S = 0.002

Accelerated = Callable[..., "tuple[Any, dict[Gemm, Any]]"]


def block_model() -> Any:
    """Two linears of one kind around one of another, of which PyTorch's product of ``up`` is slow."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.Linear(N, K), torch.nn.Linear(K, N))
