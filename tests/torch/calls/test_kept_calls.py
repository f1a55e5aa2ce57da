"""What is kept of calls: how much, and that it does not hold PyTorch up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers.artifact_samples import kernel
from tests.observed_calls import observed
from tests.torch.restored_table import restored_table
from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch
F: Any = torch.nn.functional if torch else None

N, K = 29, 31


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    from tirgemm.torch import register

    with restored_table():
        register(kernel(Gemm.parse(f"1..64x{N}x{K}:f32:nt:bias")))
        yield


@pytest.fixture
def _swapped() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def state() -> dict[str, Any]:
    return {"0.weight": torch.randn(N, K), "0.bias": torch.randn(N)}


CHANGES: dict[str, Callable[[Any], Any]] = {
    "to": lambda model: model.to(torch.float64),
    "load_state_dict": lambda model: model.load_state_dict(state()),
}


@pytest.mark.usefixtures("_swapped")
@pytest.mark.parametrize("prepack", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_pytorch_may_swap_the_parameters_of_a_layer_after_calls(change: str, prepack: bool) -> None:
    from tirgemm.torch import Linear

    layer = Linear(K, N, prepack=prepack)
    model, x = torch.nn.Sequential(layer), torch.randn(5, K)
    direct = kernel(Gemm.parse(f"5x{N}x{K}:f32:nt:bias"))
    weight = layer.weight
    for _ in range(2):
        for _ in range(2):
            model(x.to(weight.dtype))
        if weight.dtype is torch.float32:
            direct(x, weight, bias=layer.bias, out=torch.empty(5, N))
        CHANGES[change](model)
        assert layer.weight is weight
        given = x.to(weight.dtype)
        assert torch.allclose(model(given), F.linear(given, layer.weight, layer.bias), atol=1e-5)


@pytest.mark.usefixtures("_swapped")
def test_pytorch_may_swap_the_parameters_of_a_model_that_was_given_back() -> None:
    from tests.helpers.sample_source import SampleSource
    from tirgemm.torch import accelerate

    model, x = torch.nn.Sequential(torch.nn.Linear(K, N)), torch.randn(5, K)
    report = accelerate(model, rows=5, policy="default", source=SampleSource(), wait=True)
    wanted = model(x)
    report.undo()
    assert torch.allclose(model.double()(x.double()).float(), wanted, atol=1e-5)


def test_a_call_that_is_left_to_pytorch_is_hardly_more_than_pytorchs() -> None:
    from tirgemm.torch import linear

    called: list[str] = []

    def noted(frame: Any, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    x, weight = torch.randn(7, 19), torch.randn(11, 19)
    wanted = linear(x, weight)
    sys.setprofile(noted)
    try:
        got = linear(x, weight)
    finally:
        sys.setprofile(None)
    assert torch.equal(got, wanted)
    # Behind these are PyTorch's own, and what was registered with PyTorch.
    assert called[:2] == ["linear", "is_dynamo_compiling"]
    assert not {"_chosen", "reference", "call"} & set(called), "else each of a model's linears costs the host more"
    assert linear(x.double(), weight.double()).dtype is torch.float64, "kept for this dtype alone"


def test_weights_of_ever_other_shapes_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.artifact import tensor_calls
    from tirgemm.torch import linear
    from tirgemm.torch.served_calls import SERVED

    SERVED.clear()
    cleared: list[int] = []
    forget_all = tensor_calls.forget_all
    monkeypatch.setattr(tensor_calls, "forget_all", observed(forget_all, lambda: cleared.append(len(SERVED._kinds))))
    monkeypatch.setattr(type(SERVED), "LIMIT", 5)
    cache, x = torch.randint(-3, 4, (N, K)).float(), torch.randint(-3, 4, (3, K)).float()
    for n in range(1, 13):
        for _ in range(2):
            assert torch.equal(linear(x, cache[:n]), F.linear(x, cache[:n]))
            assert len(SERVED._kinds) <= 5
    assert cleared == [5, 5], "the launcher forgets with it"
