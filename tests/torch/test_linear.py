"""``linear``, ``Linear`` and ``matmul`` on real kernels, beside PyTorch's own."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers.artifact_samples import kernel
from tests.observed_calls import observed
from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch
F: Any = torch.nn.functional if torch else None

N, K = 29, 31


@pytest.fixture(scope="module", autouse=True)
def single_thread() -> None:
    """The tensors are tiny: more threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[Any]:
    """The kernels of this module, which no other test meets."""
    from tirgemm.torch import register
    from tirgemm.torch.kernel_table import TABLE

    texts = [
        f"1..64x{N}x{K}:f32:nt",
        f"1..64x{N}x{K}:f32:nt:bias",
        f"5x{N}x{K}:f32:nt:bias",
        f"1..64x{N}x{K}:f16:nt",
        f"1..64x{N}x{K}:f32:nn",
        f"7x{N}x{K}:f32:tn",
        f"7x{N}x{K}:f32:nt:batch=3",
        f"7x{N}x{K}:f32:nn:lda=40:ldb=37",
    ]
    kernels = [kernel(Gemm.parse(text)) for text in texts]
    for each in kernels:
        register(each)
    yield TABLE
    for each in kernels:
        TABLE.remove(each)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many calls of ``F.linear`` and ``torch.matmul`` PyTorch has computed so far."""
    calls: list[str] = []
    for owner, name in ((F, "linear"), (torch, "matmul")):
        real = getattr(owner, name)

        def spy(*args: Any, _real: Any = real, _name: str = name, **more: Any) -> Any:
            calls.append(_name)
            return _real(*args, **more)

        monkeypatch.setattr(owner, name, spy)
    return lambda: len(calls)


def integers(*shape: int, dtype: Any = None) -> Any:
    return torch.randint(-3, 4, shape).to(dtype or torch.float32)


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("shape", [(5, K), (1, K), (64, K), (K,), (2, 3, K), (1, 2, 3, K)], ids=str)
def test_linear_is_pytorchs_for_any_leading_dimensions(
    shape: tuple[int, ...], bias: bool, counted: Callable[[], int]
) -> None:
    from tirgemm.torch import linear

    x, weight, b = integers(*shape), integers(N, K), integers(N) if bias else None
    wanted = F.linear(x, weight, b)
    before = counted()
    for _ in range(2):  # chosen, then remembered
        result = linear(x, weight, b)
        assert torch.equal(result, wanted)
        assert result.shape == wanted.shape
        assert result.is_contiguous()
    assert counted() == before, "PyTorch computed what a kernel serves"


def odd_calls() -> list[Any]:
    """Calls that no kernel here serves, or that lie in memory as none reads it: (what is special, x, weight, bias)."""
    x, weight, bias = integers(5, K), integers(N, K), integers(N)
    base = integers(64, 2 * K)
    complex_rows = torch.complex(x, x).conj()
    return [
        ("no rows", integers(0, K), weight, bias),
        ("no rows of three dimensions", integers(2, 0, K), weight, None),
        ("65 rows", integers(65, K), weight, None),
        ("k of 0", integers(5, 0), integers(N, 0), bias),
        ("every second column", base[:5, ::2], weight, None),
        ("a slice", base[3:8, 5 : K + 5], weight, None),
        ("one row for all", x[:1].expand(5, K), weight, bias),
        ("one value for all", integers(1, 1).expand(5, K), weight, None),
        ("by columns", integers(K, 5).t(), weight, bias),
        ("permuted leading dimensions", integers(3, 2, K).transpose(0, 1), weight, None),
        ("weight by columns", x, integers(K, N).t(), bias),
        ("weight that is a slice", x, base[:N, 1 : K + 1], bias),
        ("bias that is a slice", x, weight, integers(2 * N)[::2]),
        ("a bias of one", x, weight, integers(1).expand(N)),
        ("lazily negated", torch._neg_view(x), weight, bias),
        ("lazily negated weight", x, torch._neg_view(weight), bias),
        ("imaginary part", complex_rows.imag, weight, None),
        ("double", x.double(), weight.double(), None),
        ("half", x.half(), weight.half(), None),
        ("bfloat16", x.bfloat16(), weight.bfloat16(), bias.bfloat16()),
        ("meta", x.to("meta"), weight.to("meta"), None),
    ]


@pytest.mark.parametrize("number", range(len(odd_calls())), ids=[call[0] for call in odd_calls()])
def test_whatever_is_odd_is_pytorchs_own(number: int) -> None:
    from tirgemm.torch import linear, matmul

    _, x, weight, bias = odd_calls()[number]
    assert torch.equal(linear(integers(5, K), integers(N, K)), linear(integers(5, K) * 0, integers(N, K))) is False
    wanted = F.linear(x, weight, bias)
    for _ in range(2):
        result = linear(x, weight, bias)
        assert result.shape == wanted.shape
        assert result.dtype == wanted.dtype
        assert result.device == wanted.device
        assert wanted.is_meta or torch.equal(result, wanted)
    if bias is None and not wanted.is_meta:
        assert torch.equal(matmul(x, weight.t()), torch.matmul(x, weight.t()))


@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [
        ((5, K + 1), (N, K), None),
        ((5, K), (N, K), (N + 1,)),
        ((5, K), (2, N, K), None),
        ((), (N, K), None),
    ],
)
def test_wrong_shapes_raise_what_pytorch_raises(x: Any, weight: Any, bias: Any) -> None:
    from tirgemm.torch import linear

    given = integers(*x), integers(*weight), None if bias is None else integers(*bias)
    with pytest.raises(RuntimeError) as theirs:
        F.linear(*given)
    with pytest.raises(RuntimeError) as ours:
        linear(*given)
    assert str(ours.value) == str(theirs.value)


def test_dtypes_that_differ_raise_what_pytorch_raises_and_the_next_call_is_right() -> None:
    from tirgemm.torch import linear

    x, weight = integers(5, K), integers(N, K)
    wanted = F.linear(x, weight)
    assert torch.equal(linear(x, weight), wanted)
    with pytest.raises(RuntimeError, match="dtype"):
        linear(x, weight.double())
    with pytest.raises(RuntimeError, match="dtype"):
        linear(x.half(), weight)
    assert torch.equal(linear(x.half(), weight.half()).float(), wanted)
    assert torch.equal(linear(x.double(), weight.double()).float(), wanted)
    assert linear(x.to("meta"), weight.to("meta")).is_meta
    assert torch.equal(linear(x, weight), wanted)


@pytest.mark.parametrize("act", ["relu", "gelu", "gelu_tanh", "silu"])
def test_an_activation_follows_whoever_computes(act: str) -> None:
    from tirgemm.torch import linear

    x, weight = torch.randn(5, K), torch.randn(N, K)
    wanted = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}.get(act, lambda y: F.gelu(y, approximate="tanh"))
    assert torch.equal(linear(x, weight, act=act), wanted(F.linear(x, weight)))


def test_an_unknown_activation_is_refused() -> None:
    from tirgemm.errors import InvalidRequest
    from tirgemm.torch import Linear, linear

    with pytest.raises(InvalidRequest, match="act is 'tanh'; it must be one of none, relu"):
        linear(integers(5, K), integers(N, K), act="tanh")
    with pytest.raises(InvalidRequest, match="act is 'tanh'"):
        Linear(K, N, act="tanh")


@pytest.mark.parametrize(
    "given", [{"invariant": "yes"}, {"invariant": 2, "dependent_launch": True}, {"dependent_launch": 1}]
)
def test_a_flag_that_is_no_bool_is_refused_at_every_call(given: dict[str, Any]) -> None:
    from tirgemm.errors import InvalidRequest
    from tirgemm.torch import linear

    for _ in range(2):
        with pytest.raises(InvalidRequest, match=rf"^{next(iter(given))} is .*; it must be True or False$"):
            linear(integers(5, K), integers(N, K), **given)


@pytest.mark.parametrize("name", ["prepack", "invariant"])
def test_a_flag_of_a_layer_that_is_no_bool_is_refused(name: str) -> None:
    from tirgemm.errors import InvalidRequest
    from tirgemm.torch import Linear

    wrong: dict[str, Any] = {name: "yes"}
    with pytest.raises(InvalidRequest, match=f"{name} is 'yes'; it must be True or False"):
        Linear(K, N, **wrong)
    with pytest.raises(InvalidRequest, match=f"{name} is 'yes'; it must be True or False"):
        Linear.of(torch.nn.Linear(K, N), **wrong)


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
