"""``linear`` on real kernels, beside PyTorch's own: shapes, dtypes, activations, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.torch.linear.integer_operands import K, N, integers

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch

F: Any = torch.nn.functional if torch else None


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


@pytest.mark.parametrize("act", ["none", "relu"])
@pytest.mark.parametrize("shrunk", [1, 2], ids=["weight", "bias"])
def test_a_storage_that_is_smaller_than_its_tensor_raises_what_pytorch_raises(shrunk: int, act: str) -> None:
    from tirgemm.torch import linear
    from tirgemm.torch.served_calls import SERVED

    given = [integers(5, K), integers(N, K), integers(N)]
    x, weight, bias = given
    SERVED.clear()  # what is kept of calls does not look at storages
    given[shrunk].untyped_storage().resize_(given[shrunk].numel() * 4 - 4)
    with pytest.raises(RuntimeError, match="setStorage: ") as theirs:
        F.linear(x, weight, bias)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="setStorage: ") as ours:
            linear(x, weight, bias, act=act)
        assert str(ours.value) == str(theirs.value)
    given[shrunk].untyped_storage().resize_(given[shrunk].numel() * 4)
    assert linear(x, weight, bias, act=act).shape == (5, N)


def test_views_of_a_larger_storage_are_within_it() -> None:
    from tirgemm.torch.problems import within_storage

    flat = integers(N * K)
    views = flat, flat[3:], flat[::2], flat.view(N, K)[1:, 2:], flat.view(N, K).mT, flat[:1].expand(7), flat[:0]
    assert all(map(within_storage, views))
    flat.untyped_storage().resize_(flat.numel() * 4 - 4)
    assert [within_storage(view) for view in views] == [False] * 5 + [True] * 2


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
