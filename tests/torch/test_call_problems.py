"""Which problem a call is, on GPUs too: by fake CUDA tensors, of which only the addresses are made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tirgemm.torch import prepared_call

    monkeypatch.setattr(prepared_call, "aligned", lambda _tensors, least: max(16, least))
    with FakeTensorMode():
        yield


def half(*shape: int, dtype: Any = None, device: str = "cuda") -> Any:
    return torch.empty(shape, dtype=dtype or torch.float16, device=device)


def lying(shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    return torch.empty_strided(shape, strides, dtype=torch.float16, device="cuda")


PROBLEMS: dict[str, Callable[[], dict[str, Any]]] = {
    "129x65x40:f16:nn": lambda: {"a": half(129, 40), "b": half(40, 65)},
    "129x65x40:bf16:nt": lambda: {
        "a": half(129, 40, dtype=torch.bfloat16),
        "b": half(65, 40, dtype=torch.bfloat16).t(),
    },
    "129x65x40:f16:tn": lambda: {"a": half(40, 129).t(), "b": half(40, 65)},
    "129x65x40:f16:tt:lda=200:ldb=48": lambda: {"a": lying((129, 40), (1, 200)), "b": lying((40, 65), (1, 48))},
    "1x65x40:f16:nt:bias:act=gelu": lambda: {
        "a": half(1, 40),
        "b": half(65, 40).t(),
        "bias": half(65),
        "act": "gelu",
        "prefer_b": "t",
    },
    "129x1x40:f16:nt": lambda: {"a": half(129, 40), "b": half(1, 40).t(), "prefer_b": "t"},
    "5x7x40:f16:nn:batch=3:alpha:beta": lambda: {
        "a": half(3, 5, 40),
        "b": half(3, 40, 7),
        "c": half(3, 5, 7),
        "alpha": True,
    },
    "5x7x40:f16:nn:batch=3:ldd=8:stride_a=280:stride_d=80": lambda: {
        "a": lying((3, 5, 40), (280, 40, 1)),
        "b": half(3, 40, 7),
        "out": lying((3, 5, 7), (80, 8, 1)),
    },
    "5x7x40:f16:nn": lambda: {"a": half(1, 5, 40), "b": half(1, 40, 7)},
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_strides_make_the_problem(text: str) -> None:
    from tirgemm.torch.prepared_call import ProductOperands, problem_of

    gemm, a, b = problem_of(ProductOperands(**PROBLEMS[text]()))
    assert gemm == Gemm.parse(text)
    assert a.letter + b.letter == gemm.layout


UNREAD: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "every second": lambda: ("strides", {"a": lying((5, 40), (80, 2)), "b": half(40, 7)}),
    "one row for all": lambda: ("strides", {"a": half(1, 40).expand(5, 40), "b": half(40, 7)}),
    "one matrix for all": lambda: ("batch stride", {"a": half(3, 5, 40), "b": half(1, 40, 7).expand(3, 40, 7)}),
    "heads": lambda: ("batch stride", {"a": half(5, 3, 40).transpose(0, 1), "b": half(3, 40, 7)}),
    "empty": lambda: ("empty operand", {"a": half(0, 40), "b": half(40, 7)}),
    "k differs": lambda: ("shapes", {"a": half(5, 40), "b": half(41, 7)}),
    "bias of m": lambda: ("bias", {"a": half(5, 40), "b": half(40, 7), "bias": half(5)}),
    "out by columns": lambda: ("strides", {"a": half(5, 40), "b": half(40, 7), "out": half(7, 5).t()}),
    "two places": lambda: (
        "dtypes or devices that differ",
        {"a": half(5, 40), "b": half(40, 7, device="cpu")},
    ),
    "two GPUs": lambda: (
        "dtypes or devices that differ",
        {"a": half(5, 40, device="cuda:0"), "b": half(40, 7, device="cuda:1")},
    ),
    "two dtypes": lambda: (
        "dtypes or devices that differ",
        {"a": half(5, 40), "b": half(40, 7, dtype=torch.bfloat16)},
    ),
    "integers": lambda: ("int32", {"a": half(5, 40, dtype=torch.int32), "b": half(40, 7, dtype=torch.int32)}),
    "too large": lambda: (
        "sizes beyond a Gemm's limits",
        {"a": half(2**31, 1), "b": half(1, 2)},
    ),
}


@pytest.mark.parametrize("kind", UNREAD)
def test_what_no_kernel_reads_has_a_reason(kind: str) -> None:
    from tirgemm.torch.prepared_call import ProductOperands, problem_of
    from tirgemm.torch.problems import NotServed

    reason, operands = UNREAD[kind]()
    with pytest.raises(NotServed) as refused:
        problem_of(ProductOperands(**operands))
    assert str(refused.value) == reason
