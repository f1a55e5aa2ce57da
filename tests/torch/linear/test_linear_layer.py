"""The layer ``Linear``: its state, copies, exports and compiled graphs, and what was served by its weight."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tests.observed_calls import observed
from tests.torch.linear.integer_operands import K, N, integers

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch

F: Any = torch.nn.functional if torch else None


@pytest.mark.parametrize("name", ["prepack", "invariant"])
def test_a_flag_of_a_layer_that_is_no_bool_is_refused(name: str) -> None:
    from tirgemm.errors import InvalidRequest
    from tirgemm.torch import Linear

    wrong: dict[str, Any] = {name: "yes"}
    with pytest.raises(InvalidRequest, match=f"{name} is 'yes'; it must be True or False"):
        Linear(K, N, **wrong)
    with pytest.raises(InvalidRequest, match=f"{name} is 'yes'; it must be True or False"):
        Linear.of(torch.nn.Linear(K, N), **wrong)


def test_a_linear_is_pytorchs_with_the_same_state() -> None:
    from tirgemm.torch import Linear

    theirs = torch.nn.Linear(K, N)
    ours = Linear(K, N)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(5, K)
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    shared = Linear.of(theirs, act="relu")
    assert shared.weight is theirs.weight
    assert shared.bias is theirs.bias
    assert repr(shared) == f"Linear(in_features={K}, out_features={N}, bias=True, act=relu)"
    assert torch.allclose(shared(x), theirs(x).relu(), atol=1e-5)
    with torch.no_grad():
        theirs.weight.zero_()
    assert torch.allclose(shared(x), theirs.bias.relu().expand(5, N), atol=1e-5)


def test_a_linear_that_shares_those_of_a_linear_computes_the_same_unless_it_is_told() -> None:
    from tirgemm.torch import Linear

    ours, x = Linear(K, N, act="relu", prepack=True, invariant=True), torch.randn(5, K)
    shared = Linear.of(ours)
    assert torch.equal(shared(x), ours(x))
    assert (shared.act, shared.invariant, shared.packed_bytes) == ("relu", True, ours.packed_bytes)
    assert shared._prepack
    other = Linear.of(ours, act="none", prepack=False, invariant=False)
    assert (other.act, other.invariant, other._prepack) == ("none", False, False)
    assert torch.allclose(other(x), F.linear(x, ours.weight, ours.bias), atol=1e-5)


@pytest.mark.parametrize("prepack", [False, True])
def test_a_linear_is_copied_pickled_and_saved(prepack: bool) -> None:
    from tirgemm.torch import Linear

    ours = Linear(K, N, act="relu", prepack=prepack)
    x = torch.randn(5, K)
    wanted = ours(x)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for other in (
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.load(file, weights_only=False),
    ):
        assert other.weight is not ours.weight
        assert torch.equal(other(x), wanted)
        assert other.act == "relu"
        other.weight.zero_()
        assert torch.equal(other(x), other.bias.relu().expand(5, N))
    assert torch.equal(ours(x), wanted)


@pytest.mark.parametrize("shape", [(5, K), (2, 3, K)], ids=str)
def test_it_exports_and_compiles_as_one_operator(shape: tuple[int, ...]) -> None:
    from tirgemm.torch import Linear

    layer = Linear(K, N)
    x = torch.randn(*shape)
    wanted = layer(x)
    exported = torch.export.export(layer, (x,))
    assert "tirgemm.linear" in str(exported.graph)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(x), wanted)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), wanted)


def test_one_graph_serves_every_number_of_rows() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    from tirgemm.torch import linear

    counter = CompileCounterWithBackend("aot_eager")
    weight = integers(N, K)
    compiled = torch.compile(lambda x: linear(x, weight) + 1, dynamic=True, fullgraph=True, backend=counter)
    for m in (5, 17, 33, 64, 65, 100):
        x = integers(m, K)
        assert torch.equal(compiled(x), F.linear(x, weight) + 1)
    assert counter.frame_count == 1


def test_the_operators_pass_opcheck() -> None:
    x, weight = integers(5, K), integers(N, K)
    torch.library.opcheck(torch.ops.tirgemm.linear.default, (x, weight, integers(N), "relu"))
    torch.library.opcheck(torch.ops.tirgemm.matmul.default, (x, weight.t()))
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        torch.library.opcheck(torch.ops.tirgemm.linear.default, (leaf, weight, None, "gelu"))
        torch.library.opcheck(torch.ops.tirgemm.matmul.default, (leaf, weight.t()))


def test_what_was_served_is_known_by_its_weight_and_goes_with_it(
    counted: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.artifact import tensor_calls
    from tirgemm.torch import linear
    from tirgemm.torch.served_calls import SERVED

    forget, forgotten = tensor_calls.forget, set[int]()
    monkeypatch.setattr(tensor_calls, "forget", observed(forget, forgotten.add))
    x, kinds = integers(5, K), len(SERVED._kinds)
    for _ in range(3):  # whose ids may be the same
        weight, bias = torch.nn.Parameter(integers(N, K)), torch.nn.Parameter(integers(N))
        wanted = F.linear(x, weight, bias)
        before = counted()
        assert torch.equal(linear(x, weight, bias), wanted)
        assert torch.equal(linear(x, weight, bias), wanted)
        assert counted() == before
        forgotten.clear()
        address = id(weight)
        del weight
        assert forgotten == {address}
        del bias
    assert len(SERVED._kinds) <= kinds + 1, "layers of a kind share their calls"


def test_a_weight_that_changes_within_is_looked_at_again(counted: Callable[[], int]) -> None:
    from tirgemm.torch import Linear

    x, layer = integers(2, 3, K), Linear(K, N)
    layer.weight.copy_(integers(N, K))
    layer.bias.copy_(integers(N))
    for change in (
        lambda: None,
        lambda: layer.weight.mul_(2),
        lambda: setattr(layer.weight, "data", integers(N, K)),
        lambda: setattr(layer.weight, "data", integers(K, N).t()),
        lambda: setattr(layer, "weight", torch.nn.Parameter(integers(N, 2 * K)[:, ::2])),
        layer.double,
        layer.float,
        lambda: setattr(layer, "bias", None),
    ):
        layer(x.to(layer.weight.dtype))
        change()
        given = x.to(layer.weight.dtype)
        wanted = given @ layer.weight.t() + (0 if layer.bias is None else layer.bias)
        before = counted()
        assert torch.equal(layer(given), wanted)
        assert torch.equal(layer(given), wanted)
        served = layer.weight.dtype == torch.float32 and layer.weight.stride() == (K, 1)
        assert served == (counted() == before)
    del layer.weight
    layer.weight = integers(N, K)  # no parameter any more, as where it is pruned
    assert torch.equal(layer(x), x @ layer.weight.t())
