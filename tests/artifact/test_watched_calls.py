"""Kernels that are called directly on PyTorch's tensors, and what of PyTorch watches: change counters of outputs,
tracers, modes and derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers.artifact_samples import kernel
from tirgemm.artifact import Kernel
from tirgemm.errors import CallError
from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

M, N, K = 4, 7, 5


@pytest.fixture
def called() -> Kernel:
    """A kernel that has met PyTorch's tensors: the launcher takes its calls apart."""
    loaded = kernel(Gemm(M, N, K, "f32", "nt"))
    loaded(torch.ones(M, K), torch.ones(N, K))
    return loaded


@pytest.fixture
def a() -> Any:
    return torch.randint(-3, 4, (M, K)).float()


@pytest.fixture
def b() -> Any:
    return torch.randint(-3, 4, (N, K)).float()


@pytest.fixture(params=["launcher", "python", "first call"])
def run(request: pytest.FixtureRequest, called: Kernel) -> Iterator[Kernel]:
    """A kernel whose call asks PyTorch's C++ functions, its Python functions, or is the first one."""
    from tirgemm.artifact import private_torch, tensor_calls

    library = tensor_calls._library()
    assert library is not None
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(private_torch, "NATIVE_TRACERS", (None, None))
            tensor_calls._set_mode_checks(library)
        yield kernel(called.gemm) if request.param == "first call" else called
    tensor_calls._set_mode_checks(library)


def test_pytorch_has_the_functions_that_the_launcher_asks() -> None:
    from tirgemm.artifact.private_torch import NATIVE_TRACERS

    assert None not in NATIVE_TRACERS


def test_a_backward_pass_is_told_that_a_kernel_has_overwritten_what_it_needs(called: Kernel, a: Any, b: Any) -> None:
    for call in (called, kernel(called.gemm)):
        out, x = torch.ones(M, N), torch.ones(M, N, requires_grad=True)
        loss = (out * x).sum()
        call(a, b, out=out)
        assert out._version == 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_changes_of_parameters_count_where_no_gradients_are_recorded(called: Kernel, a: Any, b: Any) -> None:
    parameter, plain = torch.nn.Parameter(torch.zeros(M, N)), torch.zeros(M, N)
    for inference in (False, True):
        with torch.inference_mode(inference), torch.no_grad():
            before = parameter._version, plain._version
            called(a, b, out=parameter)
            called(a, b, out=plain)
            assert (parameter._version - before[0], plain._version - before[1]) == (1, 0)
    with torch.inference_mode():
        unversioned = torch.zeros(M, N)
        assert torch.equal(called(a, b, out=unversioned), a @ b.t())


def jit_traced(call: Callable[[Any], Any], a: Any) -> None:
    torch.jit.trace(call, a, check_trace=False)


def fx_traced(call: Callable[[Any], Any], a: Any) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    make_fx(call)(a)


def counted(call: Callable[[Any], Any], a: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        call(a)


def dual(call: Callable[[Any], Any], a: Any) -> None:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        call(forward_ad.make_dual(a, torch.ones_like(a)))


def mapped(call: Callable[[Any], Any], a: Any) -> None:
    torch.vmap(call)(a.expand(2, *a.shape))


WATCHED = {
    jit_traced: r"traced by torch\.jit\.trace",
    fx_traced: "within a TorchDispatchMode",
    counted: "within a TorchDispatchMode",
    dual: "differentiated in forward mode",
    mapped: r"within a transform of torch\.func",
}


@pytest.mark.parametrize("given", [True, False], ids=["out", "new"])
@pytest.mark.parametrize("watch", WATCHED)
def test_what_would_not_see_a_kernel_is_told_of_it(watch: Any, given: bool, run: Kernel, a: Any, b: Any) -> None:
    out = torch.full((M, N), 0.5)
    with torch.no_grad(), pytest.raises(CallError, match=WATCHED[watch]):
        watch(lambda x: run(x, b, out=out) if given else run(x, b), a)
    assert (out == 0.5).all(), "nothing has run"
    assert torch.equal(run(a, b, out=out), a @ b.t()), "and afterwards all is as before"


def test_within_a_level_without_tangents_a_kernel_runs(run: Kernel, a: Any, b: Any) -> None:
    from torch.autograd import forward_ad

    with torch.no_grad(), forward_ad.dual_level():
        assert torch.equal(run(a, b, out=torch.empty(M, N)), a @ b.t())


def test_the_operator_of_a_kernel_is_seen_by_all_of_these(called: Kernel, a: Any, b: Any) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from tirgemm.torch import matmul_op

    product, other = matmul_op(called), a + 1
    with torch.no_grad():
        traced = torch.jit.trace(lambda x: product(x, b), a, check_trace=False)
        assert torch.equal(traced(other), other @ b.t())
        assert torch.equal(make_fx(lambda x: product(x, b))(a)(other), other @ b.t())
        mapped_result = torch.vmap(lambda x: product(x, b))(torch.stack((a, other)))
        assert torch.equal(mapped_result, torch.stack((a @ b.t(), other @ b.t())))
        counted(lambda x: product(x, b), a)
