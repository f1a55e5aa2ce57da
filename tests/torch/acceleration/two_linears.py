"""A model of two linears, and how it is accelerated."""

from __future__ import annotations

from typing import Any

from tirgemm.gemm import Gemm, Range

WIDE, NARROW = Gemm(Range(1, 64), 23, 19, "f32", "nt", bias=True), Gemm(Range(1, 64), 19, 23, "f32", "nt")


def model() -> Any:
    import torch

    nn = torch.nn
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(19, 23), nn.ReLU(), nn.Linear(23, 19, bias=False), nn.LayerNorm(19))


def rows(m: int = 5) -> Any:
    import torch

    return torch.randn(m, 19)


def accelerated(made: Any, source: Any, **more: Any) -> Any:
    from tirgemm.torch import accelerate

    return accelerate(made, rows=Range(1, 64), source=source, **more)


def same(one: Any, other: Any) -> bool:
    import torch

    return bool(torch.allclose(one, other, atol=1e-5))


def unchecked(**keywords: Any) -> Any:
    """Keywords that the types would refuse."""
    return keywords
