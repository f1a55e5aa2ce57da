"""Calls whose weight is made anew each time, and products: looked up by what they are, and never a wrong one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.helpers.artifact_samples import kernel
from tests.torch.restored_table import restored_table
from tests.torch.watched_kernel import watch
from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch
F: Any = torch.nn.functional if torch else None

N, K = 28, 32
SLOW = {"linear_choice", "matmul_choice", "_chosen"}


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    from tirgemm.torch import register

    with restored_table():
        for layout in ("nt", "nn"):
            register(kernel(Gemm.parse(f"1..64x{N}x{K}:f32:{layout}")))
        yield


def integers(*shape: int) -> Any:
    return torch.randint(-3, 4, shape).float()


def looked_at(call: Callable[[], Any]) -> tuple[Any, set[str]]:
    """What a call returns, and the slow functions that it went through."""
    called: set[str] = set()

    def noted(frame: Any, event: str, _: object) -> None:
        if event == "call":
            called.add(frame.f_code.co_name)

    sys.setprofile(noted)
    try:
        out = call()
    finally:
        sys.setprofile(None)
    return out, called & SLOW


@pytest.mark.parametrize("served", [True, False])
def test_experts_of_one_tensor_are_looked_up_once(served: bool) -> None:
    from tirgemm.torch import linear

    experts = integers(5, N if served else N + 4, K)
    x = integers(3, K)
    linear(x, experts[0])
    for index in range(1, 5):
        out, slow = looked_at(partial(linear, x, experts[index]))
        assert torch.equal(out, F.linear(x, experts[index]))
        assert slow == set()


def test_a_kernel_is_chosen_for_each_way_in_which_weights_lie() -> None:
    from tirgemm.torch import linear
    from tirgemm.torch.linear_call import linear_choice
    from tirgemm.torch.prepared_call import PreparedCall

    wide, x = integers(4 * N, 2 * K), integers(3, K)
    by_columns, odd = integers(K, N), integers(N * K + 1)
    for weight in (wide[:N, :K].contiguous(), wide[:N, K:], by_columns.T, odd[1:].view(N, K), wide[::4, ::2]):
        for _ in range(3):
            assert torch.equal(linear(x, weight[:]), F.linear(x, weight))
    assert isinstance(linear_choice(x, wide[:N, :K].contiguous(), None), PreparedCall)


def test_weights_that_are_no_plain_tensors_have_nothing_of_their_kind() -> None:
    from tirgemm.torch import linear

    def torch_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        plain = [arg.as_subclass(torch.Tensor) if isinstance(arg, cls) else arg for arg in args]
        return 2 * func(*plain, **(kwargs or {}))

    Doubled: Any = type("Doubled", (torch.Tensor,), {"__torch_function__": classmethod(torch_function)})
    x, weight = integers(3, K), integers(N, K)
    wanted = linear(x, weight)
    assert torch.equal(linear(x, weight.as_subclass(Doubled)), 2 * wanted)
    negated = torch._neg_view(weight)
    assert negated.is_neg()
    assert torch.equal(linear(x, negated), -wanted)
    with torch.enable_grad():
        recorded = weight[:].requires_grad_()
        linear(x, recorded).sum().backward()
    assert torch.equal(recorded.grad, x.sum(0).expand(N, K))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x, weight[:]).dtype is torch.bfloat16
    stacked = torch.func.vmap(lambda w: linear(x, w))(torch.stack([weight, 2 * weight]))
    assert torch.equal(stacked, torch.stack([wanted, 2 * wanted]))
    assert linear(x.double(), weight[:].double()).dtype is torch.float64


def test_a_bias_counts_where_the_weight_is_made_anew() -> None:
    from tirgemm.torch import linear

    x, weight, bias = integers(3, K), integers(2, N, K), integers(N)
    for index in (0, 1, 0, 1):
        assert torch.equal(linear(x, weight[index]), F.linear(x, weight[index]))
        assert torch.equal(linear(x, weight[index], bias[:]), F.linear(x, weight[index], bias))


def test_what_is_registered_later_serves_weights_that_were_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import linear, register

    x, weights = integers(3, K), integers(2, N + 4, K)
    for _ in range(2):
        linear(x, weights[1])
    seen: list[Any] = []
    register(watch(kernel(Gemm.parse(f"1..64x{N + 4}x{K}:f32:nt")), seen.append, monkeypatch))
    for runs in (1, 2):
        assert torch.equal(linear(x, weights[0]), F.linear(x, weights[0]))
        assert len(seen) == runs


@pytest.mark.parametrize("name", ["rows", "columns", "more dimensions", "no kernel", "a batch"])
def test_products_are_looked_up_once(name: str) -> None:
    from tirgemm.torch import matmul

    a, b = {
        "rows": (integers(3, K), integers(K, N)),
        "columns": (integers(3, K), integers(N, K).T),
        "more dimensions": (integers(2, 3, K), integers(K, N)),
        "no kernel": (integers(3, K + 4), integers(K + 4, N)),
        "a batch": (integers(2, 3, K), integers(2, K, N)),
    }[name]
    matmul(a, b)
    for factor in (1, 2):
        left, right = factor * a, b[:] if b.dim() == 2 else b.clone()
        out, slow = looked_at(partial(matmul, left, right))
        assert torch.equal(out, torch.matmul(left, right))
        assert out.shape == torch.matmul(a, b).shape
        assert slow == set()


def test_products_that_lie_otherwise_or_ask_for_more_are_right() -> None:
    from tirgemm.torch import matmul

    a, b = integers(6, K), integers(K, N)
    matmul(a, b)
    wanted = torch.matmul(a, b)
    for left in (a[::2], integers(K, 6).T, a[:, :K], integers(6, 2 * K)[:, ::2]):
        assert torch.equal(matmul(left, b), torch.matmul(left, b))
    assert torch.equal(matmul(a, torch._neg_view(b)), -wanted)
    assert torch.equal(matmul(torch._neg_view(a), b), -wanted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert matmul(a, b).dtype is torch.bfloat16
    with torch.enable_grad():
        recorded = a[:].requires_grad_()
        matmul(recorded, b).sum().backward()
    assert torch.equal(recorded.grad, b.sum(1).expand(6, K))
    b.resize_(K // 2, N)
    with pytest.raises(RuntimeError):
        matmul(a, b)
    assert torch.equal(matmul(a[:, : K // 2], b), torch.matmul(a[:, : K // 2], b))


@pytest.mark.parametrize("given", [{"act": "product"}, {"invariant": "dependent"}])
def test_what_is_kept_of_other_calls_is_for_no_argument_of_linear(given: dict[str, Any]) -> None:
    from tirgemm.errors import InvalidRequest
    from tirgemm.torch import linear, matmul

    x, weight = integers(16, K), integers(K, K)
    for _ in range(2):
        matmul(x, weight)
        linear(x, weight, dependent_launch=True)
    with pytest.raises(InvalidRequest, match=f"{next(iter(given))} is "):
        linear(x, weight, **given)
