"""Operands of small integers, whose products are exact, for the kernels of these tests."""

from __future__ import annotations

from typing import Any

N, K = 29, 31


def integers(*shape: int, dtype: Any = None) -> Any:
    import torch

    return torch.randint(-3, 4, shape).to(dtype or torch.float32)
