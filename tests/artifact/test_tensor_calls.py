"""Calls whose tensors the launcher takes apart itself: what they take, what they leave to the other functions, and that
nothing is kept of either."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.artifact_samples import kernel
from tests.waiting import PATIENCE_S
from tirgemm.artifact import Kernel
from tirgemm.errors import CallError, CallTypeError
from tirgemm.gemm import Gemm, Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

N, K = 7, 5


@pytest.fixture(scope="module")
def served() -> Kernel:
    return kernel(Gemm(Range(1, 9), N, K, "f32", "nt"))


@pytest.fixture
def x() -> Any:
    return torch.randint(-3, 4, (3, K)).float()


@pytest.fixture
def weight() -> Any:
    return torch.nn.Parameter(torch.randint(-3, 4, (N, K)).float())


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def new(served: Kernel, shape: tuple[int, ...], *, rows: bool = False, empty: Any = None) -> Any:
    import tirgemm.torch  # noqa: F401 - it sets the questions
    from tirgemm.artifact import tensor_calls

    def allocate(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        return torch.empty_strided(shape, strides, dtype=dtype)

    strides = torch.empty(shape).stride()
    return tensor_calls.call_new(served.functions, empty or allocate, shape, strides, torch.float32, rows=rows)


def into(served: Kernel) -> Any:
    from tirgemm.artifact import tensor_calls

    return tensor_calls.call_into(served.functions)


def test_results_are_right_and_nothing_is_kept(served: Kernel, x: Any, weight: Any) -> None:
    wanted, out = x @ weight.t(), torch.empty(3, N)
    call, write = new(served, (3, N)), into(served)
    before = [sys.getrefcount(each) for each in (x, weight, out, call, write, None, True)]
    for _ in range(100):
        assert torch.equal(call(x, weight, None), wanted)
        assert write(x, weight, out.zero_())
        assert call(x[:, 1:], weight, None) is None
    assert torch.equal(out, wanted)
    after = [sys.getrefcount(each) for each in (x, weight, out, call, write, None, True)]
    assert all(abs(now - then) < 50 for now, then in zip(after, before, strict=True))
    del served, write
    assert torch.equal(call(x, weight, None), wanted), "a call holds its kernel"


def test_the_dimensions_before_the_last_are_rows(served: Kernel, weight: Any) -> None:
    x = torch.randint(-3, 4, (2, 1, 3, K)).float()
    assert torch.equal(new(served, (2, 1, 3, N), rows=True)(x, weight, None), x @ weight.t())
    assert new(served, (2, 1, 3, N))(x, weight, None) is None


def test_what_the_kernel_does_not_take_is_left(served: Kernel, x: Any, weight: Any) -> None:
    write, out = into(served), torch.full((3, N), 7.0)
    negated = torch._neg_view(x)
    left = [
        (x, weight),
        (x, weight, weight, out),
        (x.double(), weight, out),
        (x.t().contiguous().t(), weight, out),
        (x, weight, x),
        (x.to("meta"), weight, out),
        (negated, weight, out),
        (x, torch._neg_view(weight), out),
        (x.to_sparse(), weight, out),
        (torch.zeros(12, K), weight, torch.zeros(12, N)),
    ]
    for given in left:
        assert write(*given) is False
        assert write() is False
    with torch.enable_grad():
        assert write(x, weight, out) is False, "it requires grad"
        assert write(x, weight.detach(), out.clone()) is True
    assert (out == 7).all()
    call = new(served, (3, N))
    assert call(x, weight) is None
    assert call(negated, weight, None) is None
    with torch.enable_grad():
        assert call(x, weight, None) is None
    assert new(served, (3, N), empty=lambda *_: 1 / 0)(x, weight, None) is None


def test_a_tensor_that_becomes_negated_is_left_and_so_is_one_in_the_place_of_another(
    served: Kernel, x: Any, weight: Any
) -> None:
    write, out = into(served), torch.zeros(3, N)
    for _ in range(3):
        assert write(x, weight, out)
    x.data = torch._neg_view(torch.ones(3, K))
    assert write(x, weight, out) is False
    taken = []
    for turn in range(600):
        each = torch.ones(3, K)  # where the last one was
        taken.append(write(torch._neg_view(each) if turn % 3 == 0 else each, weight, out))
    assert taken == [turn % 3 != 0 for turn in range(600)]


def test_what_pytorch_wants_to_see_is_left_to_it(served: Kernel, x: Any, weight: Any) -> None:
    from torch.autograd import forward_ad
    from torch.utils.flop_counter import FlopCounterMode

    import tirgemm.torch  # noqa: F401 - its questions are asked

    call = new(served, (3, N))
    assert call(x, weight, None) is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert call(x, weight, None) is None
    with FlopCounterMode(display=False):
        assert call(x, weight, None) is None
    with forward_ad.dual_level():
        assert call(x, weight, None) is None
    torch.use_deterministic_algorithms(True)
    try:
        assert call(x, weight, None) is None
    finally:
        torch.use_deterministic_algorithms(False)
    assert call(x, weight, None) is not None


def test_a_kernel_takes_pytorchs_tensors_by_it_and_says_what_is_wrong_as_before(
    served: Kernel, x: Any, weight: Any
) -> None:
    wanted, out = x @ weight.t(), torch.empty(3, N)
    called = kernel(served.gemm)
    assert torch.equal(called(x, weight), wanted)
    raw, called.raw = called.raw, None
    assert called(x, weight, out=out) is out
    assert torch.equal(out, wanted)
    held = [sys.getrefcount(each) for each in (x, weight, out, called, None, True)]
    for _ in range(100):
        assert called(x, weight, out=out.zero_()) is out
    assert torch.equal(out, wanted)
    now = [sys.getrefcount(each) for each in (x, weight, out, called, None, True)]
    assert all(abs(count - before) < 50 for count, before in zip(now, held, strict=True))
    called.raw = raw
    with pytest.raises(CallTypeError, match="a has dtype float64"):
        called(x.double(), weight, out=out)
    with pytest.raises(CallError, match=r"out has shape \(3, 5\)"):
        called(x, weight, out=x)
    with torch.enable_grad(), pytest.raises(CallError, match="b requires grad"):
        called(x, weight, out=out)
    with pytest.raises(CallTypeError, match="bias is given"):
        called(x, weight, bias=out, out=out)


def test_threads_call_at_once(served: Kernel, weight: Any) -> None:
    call, wrong = new(served, (3, N)), []

    def run(seed: int) -> None:
        x = torch.full((3, K), float(seed))
        wanted = x @ weight.t()
        for _ in range(300):
            if not torch.equal(call(x, weight, None), wanted):
                wrong.append(seed)

    with torch.no_grad():
        threads = [threading.Thread(target=lambda seed=seed: torch.no_grad()(run)(seed)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert wrong == []


def test_calls_are_kept_by_identity_and_shape_until_they_are_forgotten(served: Kernel, x: Any, weight: Any) -> None:
    from tirgemm.artifact import tensor_calls

    tensor_calls.forget_all()
    kept, wanted, other = tensor_calls.kept_call(), x @ weight.t(), weight.clone()
    call, how = new(served, (3, N)), ("none", False)
    held = sys.getrefcount(call)
    tensor_calls.keep(0, (x, weight, None), how, call)
    tensor_calls.keep(1, (x, other, None), how, lambda x, weight, bias: (x.shape, weight is other, bias))
    assert torch.equal(kept(x, weight, None, *how), wanted)
    assert kept(x, other, None, *how) == (x.shape, True, None)
    for given in (
        (x[:2], weight, None, *how),
        (x[None], weight, None, *how),
        (weight, weight, None, *how),
        (x.as_subclass(type("Other", (torch.Tensor,), {})), weight, None, *how),
        (x, x, None, *how),
        (x, weight, weight, *how),
        (x, weight, None, "relu", False),
        (x, weight, None, "none", True),
        (x.double(), weight, None, *how),
        (object(), weight, None, *how),
        (x, weight, None),
    ):
        assert kept(*given) is None
    tensor_calls.keep(0, (x, weight, None), how, lambda *_: 1 / 0)
    assert sys.getrefcount(call) == held, "another took its place"
    with pytest.raises(ZeroDivisionError):
        kept(x, weight, None, *how)
    tensor_calls.forget(id(weight))
    assert kept(x, weight, None, *how) is None

    def forgetful(x: Any, weight: Any, bias: Any) -> str:
        del x, weight, bias
        tensor_calls.forget_all()
        return "forgotten within"

    tensor_calls.keep(1, (x, other, None), how, forgetful)
    assert kept(x, other, None, *how) == "forgotten within"
    assert kept(x, other, None, *how) is None


def test_of_a_kind_so_many_shapes_are_kept(weight: Any) -> None:
    from tirgemm.artifact import tensor_calls

    tensor_calls.forget_all()
    kept, how = tensor_calls.kept_call(), ("none", False)
    for rows in range(4097):
        tensor_calls.keep(0, (weight.new_empty(rows, 1), weight, None), how, lambda *_: "kept")
    answers = [kept(weight.new_empty(rows, 1), weight, None, *how) for rows in (0, 4095, 4096)]
    tensor_calls.forget_all()
    assert answers == [None, None, "kept"]
