"""``matmul`` on real kernels, beside PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.torch.linear.integer_operands import K, N, integers

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (lambda: integers(5, K), lambda: integers(K, N)),
        (lambda: integers(5, K), lambda: integers(N, K).t()),
        (lambda: integers(K, 7).t(), lambda: integers(K, N)),
        (lambda: integers(7, 40)[:, :K], lambda: integers(K, 37)[:, :N]),
        (lambda: integers(3, 7, K), lambda: integers(3, N, K).mT),
        (lambda: integers(1, 5, K), lambda: integers(1, K, N)),
        (lambda: integers(4, 3, K), lambda: integers(K, N)),
        (lambda: integers(K), lambda: integers(K, N)),
    ],
    ids=["nn", "nt", "tn", "leading dimensions", "batch", "batch of one", "matrix for all", "vector"],
)
def test_matmul_takes_the_layouts_that_kernels_have(a: Any, b: Any, counted: Callable[[], int]) -> None:
    from tirgemm.torch import matmul

    a, b = a(), b()
    wanted = torch.matmul(a, b)
    before = counted()
    for _ in range(2):
        result = matmul(a, b)
        assert torch.equal(result, wanted)
        assert result.shape == wanted.shape
    assert counted() == before


@pytest.mark.parametrize(
    ("a", "b"),
    [((K,), (K,)), ((2, 3, 5, K), (2, 3, K, N)), ((3, 5, K), (1, K, N)), ((5, K), (3, K, N)), ((5, 0), (0, N))],
)
def test_matmul_of_anything_else_is_pytorchs(a: Any, b: Any) -> None:
    from tirgemm.torch import matmul

    left, right = integers(*a), integers(*b)
    assert torch.equal(matmul(left, right), torch.matmul(left, right))
