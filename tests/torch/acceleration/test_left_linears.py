"""Linears that ``accelerate`` leaves alone, each with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.observed_calls import observed
from tests.torch.acceleration.two_linears import NARROW, WIDE, accelerated, model, rows, same
from tirgemm.gemm import Gemm, Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch


def twice(linear: Any, x: Any) -> Any:
    return 2 * torch.nn.Linear.forward(linear, x)


Scaled: Any = type("Scaled", (torch.nn.Linear,), {"forward": twice})


def with_parameters(*parameters: Any) -> Any:
    """A linear with this weight, and this bias or none."""
    made = torch.nn.Linear(19, 23)
    made.weight, made.bias = ([torch.nn.Parameter(each) for each in parameters] + [None])[:2]
    return made


def odd_linears() -> dict[str, tuple[Any, str]]:
    from torch.nn.utils import prune

    nn = torch.nn
    patched = nn.Linear(19, 23)
    patched.forward = lambda x: x
    pruned = prune.l1_unstructured(nn.Linear(19, 23), "weight", 3)
    strided = nn.Linear(19, 23, bias=False)
    strided.weight = nn.Parameter(torch.randn(23, 38)[:, ::2])
    return {
        "subclass": (Scaled(19, 23), "it is a Scaled, which may compute something else"),
        "lazy": (nn.LazyLinear(23), "it is a LazyLinear"),
        "parametrized": (torch.nn.utils.parametrizations.weight_norm(nn.Linear(19, 23)), "it is a ParametrizedLinear"),
        "pruned": (pruned, "its weight or its bias is no parameter"),
        "patched": (patched, "its forward was replaced"),
        "double": (nn.Linear(19, 23).double(), "its parameters are not for kernels: float64"),
        "meta": (nn.Linear(19, 23, device="meta"), "its parameters are not for kernels: meta tensor"),
        "gaps": (strided, "its parameters are not for kernels: strides"),
        "empty": (nn.Linear(0, 23), "gemm field k is 0"),
        "shard": (with_parameters(torch.randn(5)), "its parameters are not for kernels: shapes (5,)"),
        "gathered later": (with_parameters(torch.randn(0)), "its parameters are not for kernels: shapes (0,)"),
        "bias of one": (
            with_parameters(torch.randn(23, 19), torch.randn(1)),
            "its parameters are not for kernels: shapes (23, 19), (1,)",
        ),
        "not written": (nn.Linear(19, 31), "no kernel"),
    }


@pytest.mark.parametrize("kind", odd_linears())
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_plain_linear_is_left_alone_with_the_reason(kind: str) -> None:
    linear, reason = odd_linears()[kind]
    source = SampleSource(refuses=[Gemm(Range(1, 64), 31, 19, "f32", "nt", bias=True)])
    before = type(linear)
    report = accelerated(torch.nn.Sequential(linear), source, policy="default")
    (entry,) = report.linears
    assert not entry.replaced
    assert entry.reason.startswith(reason), entry
    assert type(linear) is before
    assert source.asked == []


def test_a_weight_of_other_sizes_than_the_linear_was_made_with_is_asked_for_by_its_own() -> None:
    linear = with_parameters(torch.randn(7, 19))
    report = accelerated(linear, SampleSource(), policy="default")
    assert report.gemms == (Gemm(Range(1, 64), 7, 19, "f32", "nt"),)


def test_a_linear_in_training_is_left_alone_unless_gradients_are_off() -> None:
    made = model()
    made[2].requires_grad_(False)
    with torch.enable_grad():
        report = accelerated(made, SampleSource(stored=[WIDE, NARROW]))
    assert [linear.replaced for linear in report.linears] == [False, True]
    assert "its parameters require grad and gradients are recorded" in report.linears[0].reason
    assert accelerated(made, SampleSource(stored=[WIDE, NARROW])).linears[0].replaced
    with torch.enable_grad():
        made(rows()).sum().backward()
    assert made[0].weight.grad is not None, "PyTorch computes where gradients are recorded"


def test_tied_weights_hooks_and_modules_that_occur_twice_stay() -> None:
    nn = torch.nn
    made = nn.ModuleDict({"embedding": nn.Embedding(23, 19), "head": nn.Linear(19, 23, bias=False)})
    made["head"].weight = made["embedding"].weight
    made["again"] = made["head"]
    seen: list[str] = []
    hook = observed(lambda _module, _given, result: 2 * result, lambda *_: seen.append("hook"))
    made["head"].register_forward_hook(hook)
    x = rows()
    wanted = made["head"](x)
    tied = Gemm(Range(1, 64), 23, 19, "f32", "nt")
    report = accelerated(made, SampleSource(stored=[tied]))
    assert [linear.names for linear in report.linears] == [("head", "again")]
    assert made["head"].weight is made["embedding"].weight
    assert same(made["head"](x), wanted)
    made["embedding"].weight.mul_(3)
    assert same(made["again"](x), 3 * wanted)
    assert len(seen) == 3
    state = made.state_dict()
    state["embedding.weight"] = state["head.weight"] = state["again.weight"] = torch.ones(23, 19)
    made.load_state_dict(state)
    assert same(made["head"](x), 2 * x.sum(1, keepdim=True).expand(5, 23))
