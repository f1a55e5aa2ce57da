"""Gradients, autocast, determinism, fake tensors, transforms and tracers: whatever PyTorch does is PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.torch.linear.integer_operands import K, N, integers

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch

F: Any = torch.nn.functional if torch else None


def test_gradients_are_pytorchs() -> None:
    from tirgemm.torch import Linear, linear, matmul

    with torch.enable_grad():
        for which in ("x", "weight", "bias"):
            leaves = {"x": integers(5, K), "weight": integers(N, K), "bias": integers(N)}
            with torch.no_grad():
                linear(*leaves.values())  # remembered, without gradients
            leaves[which].requires_grad_()
            linear(**leaves).sum().backward()
            ours = leaves[which].grad.clone()
            leaves[which].grad = None
            F.linear(leaves["x"], leaves["weight"], leaves["bias"]).sum().backward()
            assert torch.equal(ours, leaves[which].grad)
        a = integers(5, K).requires_grad_()
        matmul(a, b := integers(K, N)).sum().backward()
        assert torch.equal(a.grad, b.sum(1).expand(5, K))
        layer = Linear(K, N)
        layer(integers(5, K)).sum().backward()
        assert layer.weight.grad is not None
        assert torch.autograd.gradcheck(
            lambda x: linear(x, torch.eye(2, dtype=torch.double)), torch.randn(2, 2).double().requires_grad_()
        )


def test_autocast_casts_as_it_does_for_pytorch() -> None:
    from tirgemm.torch import linear, matmul

    x, weight = torch.randn(5, K), torch.randn(N, K)
    linear(x, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = linear(x, weight), F.linear(x, weight)
        assert ours.dtype == theirs.dtype == torch.bfloat16
        assert torch.equal(ours, theirs)
        assert matmul(x, weight.t()).dtype == torch.bfloat16
        compiled = torch.compile(linear, backend="eager", fullgraph=True)
        assert compiled(x, weight).dtype == torch.bfloat16


def test_deterministic_algorithms_are_pytorchs(counted: Callable[[], int]) -> None:
    from tirgemm.torch import linear, matmul

    x, weight = integers(5, K), integers(N, K)
    linear(x, weight)
    before = counted()
    torch.use_deterministic_algorithms(True)
    try:
        linear(x, weight)
        matmul(x, weight.t())
    finally:
        torch.use_deterministic_algorithms(False)
    assert counted() == before + 2


def test_fake_tensors_modes_and_transforms_see_pytorchs_operators() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    from tirgemm.torch import linear, matmul

    x, weight = integers(5, K), integers(N, K)
    wanted = linear(x, weight)
    with FakeTensorMode() as mode:
        result = linear(mode.from_tensor(x), mode.from_tensor(weight))
        assert isinstance(result, FakeTensor)
        assert result.shape == (5, N)
    with FlopCounterMode(display=False) as flops:
        assert torch.equal(linear(x, weight), wanted)
        matmul(x, weight.t())
    assert flops.get_total_flops() == 2 * 2 * 5 * N * K
    assert torch.equal(torch.vmap(lambda row: linear(row, weight))(x.expand(2, 5, K)), wanted.expand(2, 5, N))
    assert torch.equal(torch.func.functionalize(linear)(x, weight), wanted)


def test_forward_mode_differentiation_is_pytorchs() -> None:
    from torch.autograd import forward_ad

    from tirgemm.torch import linear, matmul

    x, weight, tangent = integers(5, K), integers(N, K), integers(5, K)
    linear(x, weight)
    calls: tuple[Callable[..., Any], ...] = (linear, lambda a, b: matmul(a, b.t()))
    for call in calls:
        with forward_ad.dual_level():
            result = forward_ad.unpack_dual(call(forward_ad.make_dual(x, tangent), weight))
            assert torch.equal(result.tangent, F.linear(tangent, weight))
        primal, moved = torch.func.jvp(lambda a, call=call: call(a, weight), (x,), (tangent,))
        assert torch.equal(primal, F.linear(x, weight))
        assert torch.equal(moved, F.linear(tangent, weight))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_tracer_sees_pytorchs_operators() -> None:
    from tirgemm.torch import Linear, linear, matmul

    x, weight, other = integers(5, K), integers(N, K), integers(5, K)
    linear(x, weight)
    for call in (
        lambda a: linear(a, weight),
        lambda a: matmul(a, weight.t()),
        Linear(K, N),
        Linear(K, N, prepack=True),
    ):
        call(x)
        traced = torch.jit.trace(call, (x,), check_trace=False)
        assert torch.allclose(traced(other), call(other), atol=1e-5)
        symbolic = torch.fx.symbolic_trace(call)
        assert torch.allclose(symbolic(other), call(other), atol=1e-5)


def test_a_tensor_subclass_computes_for_itself() -> None:
    from tirgemm.torch import linear

    def torch_function(cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super(Doubled, cls).__torch_function__(function, types, args, kwargs or {})
        return 2 * result.as_subclass(torch.Tensor) if function is F.linear else result

    Doubled: Any = type("Doubled", (torch.Tensor,), {"__torch_function__": classmethod(torch_function)})
    x, weight = integers(5, K), integers(N, K)
    wanted = linear(x, weight)
    assert torch.equal(linear(x, weight.as_subclass(Doubled)), 2 * wanted)
    assert torch.equal(linear(x.as_subclass(Doubled), weight), 2 * wanted)
