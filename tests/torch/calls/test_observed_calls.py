"""Calls that somebody watches, records or compiles otherwise, and tensors of special kinds: as PyTorch's own."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.artifact_samples import kernel
from tests.observed_calls import observed
from tests.torch.restored_table import restored_table
from tirgemm.errors import CallTypeError
from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*(nested tensors|torch.jit).*")]
F: Any = torch.nn.functional if torch else None

N, K = 29, 31


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    from tirgemm.torch import register

    with restored_table():
        for layout in ("nt", "nt:bias", "nn"):
            register(kernel(Gemm.parse(f"1..64x{N}x{K}:f32:{layout}")))
        yield
        torch.compiler.reset()


@pytest.fixture
def by_pytorch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each call of ``F.linear``."""
    seen: list[int] = []
    real = F.linear
    monkeypatch.setattr(F, "linear", observed(real, lambda x, *_: seen.append(len(x))))
    return seen


def whole(*shape: int) -> Any:
    return torch.randint(-3, 4, shape).float()


def layer(**more: Any) -> Any:
    """A layer that a kernel has served."""
    from tirgemm.torch import Linear

    made = Linear(K, N, **more)
    made.weight.copy_(whole(N, K))
    made.bias.copy_(whole(N))
    made(whole(5, K))
    return made


def doubling() -> Any:
    """A mode under which ``F.linear`` and ``torch.matmul`` give twice the product."""

    def torch_function(_: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = function(*args, **(kwargs or {}))
        return 2 * result if function in (F.linear, torch.matmul) else result

    mode: Any = type("Doubling", (torch.overrides.TorchFunctionMode,), {"__torch_function__": torch_function})
    return mode()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_function_mode_sees_pytorchs_functions(compiled: bool) -> None:
    from tirgemm.torch import matmul

    made, x, weight = layer(), whole(5, K), whole(K, N)
    for call in (made, lambda y: matmul(y, weight)):
        # The operators of a graph of the backend "eager" go through the mode again, PyTorch's own too.
        run = torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call
        wanted = call(x)
        with doubling():
            assert torch.equal(run(x), 2 * wanted)
        assert torch.equal(run(x), wanted)


def test_a_default_device_leaves_calls_to_kernels(by_pytorch: list[int]) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    made, x, graphs = layer(), whole(5, K), CompileCounterWithBackend("eager")
    by_pytorch.clear()
    with torch.device("cpu"):
        made(x)
        made(x)
    torch.set_default_device("cpu")
    try:
        made(x)
        assert not by_pytorch
        with doubling():
            made(x)
        assert by_pytorch == [5]
        torch.compile(made, backend=graphs, fullgraph=True)(x)
    finally:
        torch.set_default_device(None)
    assert "tirgemm" in str(graphs.graphs[0].graph)


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_records_the_product(pre_dispatch: bool) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from tirgemm.torch import matmul

    made, weight, x, other = layer(), whole(K, N), whole(5, K), whole(5, K)
    for call in (made, lambda y: matmul(y, weight)):
        assert torch.equal(make_fx(call, pre_dispatch=pre_dispatch)(x)(other), call(other))


@pytest.mark.parametrize("prepack", [False, True])
def test_a_nested_tensor_is_pytorchs(prepack: bool) -> None:
    from tirgemm.torch import linear, matmul

    made, rows = layer(prepack=prepack), [whole(3, K), whole(2, K)]
    wanted = F.linear(torch.cat(rows), made.weight, made.bias)
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(rows, layout=layout)
        for call in (made, lambda x: linear(x, made.weight, made.bias, invariant=True)):
            result = call(nested)
            assert result.is_nested
            assert torch.equal(torch.cat(result.unbind()), wanted)
        pairs = torch.nested.nested_tensor(rows, layout=torch.strided)
        by_columns = torch.nested.nested_tensor([made.weight.t()] * 2, layout=torch.strided)
        assert torch.equal(torch.cat(matmul(pairs, by_columns).unbind()), wanted - made.bias)
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    assert torch.equal(torch.cat(compiled(nested).unbind()), wanted)


def test_a_subclass_computes_for_itself_in_an_exported_graph() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    made, x = layer(), whole(5, K)
    exported = torch.export.export(made, (TwoTensor(x, x),))
    assert "tirgemm" not in str(exported.graph)
    assert "tirgemm.linear" in str(torch.export.export(made, (x,)).graph)


def test_a_parameter_made_within_a_graph_is_a_plain_weight() -> None:
    from tirgemm.torch import linear

    x, weight = whole(5, K), whole(N, K)
    compiled = torch.compile(lambda y: linear(y, torch.nn.Parameter(weight)), backend="eager")
    assert torch.equal(compiled(x), F.linear(x, weight))


def test_complex_numbers_are_pytorchs() -> None:
    made, x = layer(), whole(5, K)
    turned = x.to(torch.complex64)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="same dtype"):
            made(turned)
    with pytest.warns(UserWarning, match="Complex modules"):
        made.to(torch.complex64)
    wanted = F.linear(turned, made.weight, made.bias)
    for _ in range(2):
        assert torch.equal(made(turned), wanted)


def test_a_kernel_refuses_complex_numbers() -> None:
    loaded, x, weight = kernel(Gemm.parse(f"5x{N}x{K}:f32:nt")), whole(5, K), whole(N, K)
    for dtype, name in ((torch.complex64, "complex64"), (torch.complex128, "complex128")):
        with pytest.raises(CallTypeError, match=rf"a has dtype {name}; it must be float32 \(f32\)"):
            loaded(x.to(dtype), weight)
    assert torch.equal(loaded(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("act", ["none", "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("more", [{}, {"prepack": True}, {"invariant": True}], ids=str)
def test_a_scripted_layer_computes_as_pytorch(act: str, more: dict[str, Any]) -> None:
    made, x = layer(act=act, **more), whole(5, K)
    scripted = torch.jit.script(torch.nn.Sequential(made))
    wanted = made(x)
    assert torch.allclose(scripted(x), wanted, atol=1e-5)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    assert torch.allclose(torch.jit.load(file)(x), wanted, atol=1e-5)
    assert torch.equal(made(x), wanted), "the layer itself is as it was"


def test_a_call_by_a_kernel_is_in_a_profile_by_its_python_functions_alone(by_pytorch: list[int]) -> None:
    from tirgemm.torch import matmul_op

    made, x = layer(), whole(5, K)
    for with_stack in (False, True):
        with torch.profiler.profile(with_stack=with_stack) as profile, torch.profiler.record_function("mine"):
            made(x)
        names = {event.name for event in profile.events()}
        assert "mine" in names
        assert not [name for name in names if name.startswith(("aten::linear", "aten::addmm", "tirgemm::"))]
        assert any(name.startswith("nn.Module: Linear") for name in names) == with_stack
    assert by_pytorch == []
    operator = matmul_op(kernel(f"5x{N}x{K}:f32:nt"))
    with torch.profiler.profile() as profile:
        operator(x, made.weight)
    assert "tirgemm::gemm" in {event.name for event in profile.events()}
