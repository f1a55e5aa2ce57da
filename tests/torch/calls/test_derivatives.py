"""Derivatives of calls in graphs: compiled, exported, by the operators themselves. All are PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers.artifact_samples import kernel
from tests.torch.restored_table import restored_table
from tirgemm.errors import CallError
from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch
F: Any = torch.nn.functional if torch else None

N, K = 29, 31


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    from tirgemm.torch import register

    with restored_table(), torch.enable_grad():
        for layout in ("nt", "nt:bias", "nn"):
            register(kernel(Gemm.parse(f"1..64x{N}x{K}:f32:{layout}")))
        yield
        torch.compiler.reset()


def whole(*shape: int) -> Any:
    return torch.randint(-3, 4, shape).float()


def layers() -> tuple[Any, Any]:
    """A layer of ours, and PyTorch's with the same parameters."""
    from tirgemm.torch import Linear

    theirs = torch.nn.Linear(K, N)
    with torch.no_grad():
        theirs.weight.copy_(whole(N, K))
        theirs.bias.copy_(whole(N))
    return Linear.of(copy.deepcopy(theirs)), theirs


def calls() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Functions of x, ours and PyTorch's."""
    from tirgemm.torch import linear, matmul

    weight, layer, frozen = whole(N, K), layers(), layers()
    return {
        "linear": (lambda x: linear(x, weight), lambda x: F.linear(x, weight)),
        "matmul": (lambda x: matmul(x, weight.t()), lambda x: torch.matmul(x, weight.t())),
        "layer": layer,
        "frozen layer": (frozen[0].requires_grad_(False), frozen[1].requires_grad_(False)),
    }


CALLS = ("linear", "matmul", "layer", "frozen layer")
TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (2 * x,))[1],
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).square().sum())(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "vmap": lambda f, x: torch.vmap(f)(x.expand(3, 5, K)),
    "jvp of jvp": lambda f, x: torch.func.jvp(lambda y: torch.func.jvp(f, (y,), (y,))[1], (x,), (x,))[1],
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_transform_is_pytorchs(name: str, transform: str) -> None:
    (ours, theirs), x, apply = calls()[name], whole(5, K), TRANSFORMS[transform]
    wanted = apply(theirs, x)
    with torch.no_grad():
        assert torch.equal(torch.compile(lambda y: apply(ours, y), backend="eager")(x), wanted)
    assert torch.equal(torch.compile(lambda y: apply(ours, y), backend="aot_eager")(x), wanted)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["linear", "matmul", "frozen layer"])
def test_a_compiled_call_takes_tangents_along(name: str, backend: str) -> None:
    from torch.autograd import forward_ad

    (ours, theirs), x, tangent = calls()[name], whole(5, K), whole(5, K)
    compiled = torch.compile(ours, backend=backend)
    assert torch.equal(compiled(x), theirs(x))
    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, tangent))).tangent
        wanted = forward_ad.unpack_dual(theirs(forward_ad.make_dual(x, tangent))).tangent
    assert torch.equal(moved, wanted)
    assert torch.equal(compiled(x), theirs(x))


@pytest.mark.parametrize("strict", [False, True])
def test_what_was_exported_without_gradients_runs_with_them(strict: bool) -> None:
    ours, theirs = layers()
    x = whole(5, K)
    with torch.no_grad():
        exported = torch.export.export(ours, (x,), strict=strict)
    assert "tirgemm.linear" in str(exported.graph)
    module = exported.module()
    for each in (module, theirs):
        each(x).square().sum().backward()
    for name, parameter in theirs.named_parameters():
        assert torch.equal(module.get_parameter(name).grad, parameter.grad)


def test_an_exported_model_with_frozen_weights_has_every_derivative_of_its_input() -> None:
    ours, theirs = (layer.requires_grad_(False) for layer in layers())
    x = whole(5, K)
    exported = torch.export.export(ours, (x,))
    assert "tirgemm.linear" in str(exported.graph)
    module, leaf = exported.module(), x.clone().requires_grad_()

    def twice(f: Any) -> Any:
        (first,) = torch.autograd.grad(f(leaf).pow(3).sum(), leaf, create_graph=True)
        return first.detach(), torch.autograd.grad(first.sum(), leaf)[0]

    for mine, wanted in zip(twice(module), twice(theirs), strict=True):
        assert torch.equal(mine, wanted)
    for apply in TRANSFORMS.values():
        assert torch.equal(apply(module, x), apply(theirs, x))


@pytest.mark.parametrize("act", ["none", "relu", "gelu", "gelu_tanh", "silu"])
def test_the_operators_have_pytorchs_derivatives(act: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, dtype=torch.double, generator=generator, requires_grad=True) for shape in ((3, 4), (2, 4), 2)
    )
    linear, matmul = torch.ops.tirgemm.linear, torch.ops.tirgemm.matmul
    functions: list[tuple[Any, Any]] = [
        (lambda *given: linear(*given, act), (x, weight, bias)),
        (lambda *given: linear(*given, None, act), (x, weight)),
        (lambda a, b: matmul(a, b.mT), (x, weight)),
    ]
    for function, given in functions:
        assert torch.autograd.gradcheck(function, given, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, given)


def test_an_operator_of_one_kernel_refuses_a_tangent_and_takes_the_others() -> None:
    from torch.autograd import forward_ad

    from tirgemm.torch import matmul_op

    gemm = matmul_op(kernel(Gemm.parse(f"5x{N}x{K}:f32:nn")))
    a, b = whole(5, K), whole(K, N)
    with forward_ad.dual_level():
        assert torch.equal(gemm(a, b), a @ b)
        with pytest.raises(CallError, match="for inference and has no gradient"):
            gemm(forward_ad.make_dual(a, a), b)
    with pytest.raises(CallError, match="for inference and has no gradient"):
        torch.func.jvp(lambda x: gemm(x, b), (a,), (a,))


@pytest.mark.parametrize("name", ["linear", "matmul", "packed", "batch of one"])
@pytest.mark.parametrize("shape", [(5, K), (2, 5, K), (1, 5, K), (K,)], ids=str)
def test_a_result_made_without_gradients_may_be_changed_in_place_where_they_are_recorded(
    name: str, shape: tuple[int, ...]
) -> None:
    from tests.helpers.packing_kernel import packing_kernel
    from tirgemm.torch import Linear, linear, matmul, register

    register(packing_kernel(f"1..64x{N + 1}x{K}:f32:nt"))
    x, weight, packed = whole(*shape), whole(N, K), Linear(K, N + 1, bias=False, prepack=True)
    compute: dict[str, Callable[[], Any]] = {
        "linear": lambda: linear(x, weight),
        "matmul": lambda: matmul(x, whole(K, N)),
        "packed": lambda: packed(x),
        "batch of one": lambda: matmul(x.view(1, -1, K), whole(1, K, N)),
    }
    for _ in range(2):  # chosen, then remembered
        with torch.no_grad():
            y = compute[name]()
        assert not y._is_view()
        learned = torch.ones(y.shape[-1], requires_grad=True)
        y.add_(learned).sum().backward()
        assert torch.equal(learned.grad, torch.full_like(learned, y.numel() / y.shape[-1]))
    assert (name == "packed") == (packed.packed_bytes > 0)
