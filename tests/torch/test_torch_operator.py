"""``tirgemm::gemm`` on real kernels: PyTorch's own checks, torch.compile, and what is refused."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from tests.helpers.artifact_samples import kernel, operands
from tests.torch.restored_table import restored_table
from tirgemm.artifact import Kernel
from tirgemm.errors import CallError, CallTypeError, InvalidRequest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

PLAIN = "37x29x31:f16:nt"
RANGED = "1..64x29x31:f16:tn:ldd=40:alpha:beta:bias"


def tensors(loaded: Kernel, m: int | None = None) -> tuple[dict[str, Any], Any]:
    """The operands of a call as PyTorch tensors with the same strides, and the product in fp64."""
    arrays, product = operands(loaded.gemm, m)
    bf16 = loaded.gemm.dtype == "bf16"
    return {
        name: torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if bf16 else torch.from_numpy(array)
        for name, array in arrays.items()
    }, torch.from_numpy(product)


@pytest.fixture(scope="module")
def plain() -> Kernel:
    return kernel(PLAIN)


@pytest.fixture(scope="module")
def ranged() -> Kernel:
    return kernel(RANGED)


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[Any]:
    """The table, which is as it was once these tests are over; gradients are on."""
    with restored_table() as kept, torch.enable_grad():
        yield kept


@pytest.mark.parametrize("text", [PLAIN, RANGED, "3x5x7:bf16:tt:batch=2", "1x1x1:f32:nn:alpha"])
def test_it_passes_opcheck(text: str) -> None:
    from tirgemm.torch import register

    loaded = kernel(text)
    given, _ = tensors(loaded)
    alpha, beta = 2.0 if loaded.gemm.alpha else 1.0, 0.5 if loaded.gemm.beta else 1.0
    arguments = (given["a"], given["b"], given.get("c"), given.get("bias"), register(loaded), alpha, beta)
    torch.library.opcheck(torch.ops.tirgemm.gemm.default, arguments)


def test_it_computes_what_the_kernel_computes(plain: Kernel, ranged: Kernel) -> None:
    from tirgemm.torch import matmul_op

    given, product = tensors(plain)
    result = matmul_op(plain)(given["a"], given["b"])
    assert result.dtype == torch.float16
    assert torch.equal(result.double(), product)
    given, product = tensors(ranged, 17)
    result = matmul_op(ranged)(*given.values(), alpha=2.0, beta=0.5)
    assert torch.equal(result.double(), 2.0 * product + 0.5 * given["c"].double() + given["bias"].double())
    assert result.stride() == (40, 1), "the result has the problem's leading dimension"


SUBSETS = [
    tuple(name for name, occurs in zip(("alpha", "beta", "bias"), chosen, strict=True) if occurs)
    for chosen in itertools.product((False, True), repeat=3)
]


@pytest.fixture(scope="module")
def of_subset() -> Callable[[tuple[str, ...]], Kernel]:
    """The kernel of a problem with these of alpha, beta (and with it C) and bias, built once for the module."""
    return functools.cache(lambda occurring: kernel(":".join((PLAIN, *occurring))))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("occurring", SUBSETS, ids=lambda names: "+".join(names) or "plain")
def test_every_subset_of_operands_is_passed_as_what_it_is(
    of_subset: Callable[[tuple[str, ...]], Kernel], occurring: tuple[str, ...], compiled: bool
) -> None:
    from tirgemm.torch import matmul_op

    loaded = of_subset(occurring)
    gemm = matmul_op(loaded)
    given, product = tensors(loaded)
    assert set(given) == {"a", "b"} | ({"c"} if "beta" in occurring else set()) | ({"bias"} & set(occurring))
    scalars = {name: value for name, value in (("alpha", 2.0), ("beta", 0.5)) if name in occurring}
    wanted = scalars.get("alpha", 1.0) * product
    wanted = wanted + (0.5 * given["c"].double() if "c" in given else 0) + given.get("bias", torch.zeros(())).double()

    def call(operands: dict[str, Any]) -> Any:
        return gemm(**operands, **scalars)

    if compiled:
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(call(given).double(), wanted)
    for name in ("c", "bias"):
        with pytest.raises(CallTypeError, match=f"{name} {'is missing' if name in given else 'was given'}"):
            gemm(**({k: v for k, v in given.items() if k != name} | ({} if name in given else {name: given["a"]})))
    called = torch.compile(gemm, fullgraph=True, backend="aot_eager") if compiled else gemm
    for name in {"alpha", "beta"} - set(occurring):
        says = rf"{name} is 0\.5, but {loaded.gemm} has no {name}"
        with pytest.raises(Exception if compiled else CallTypeError, match=says):
            called(**given, **{name: 0.5})


def test_it_compiles_into_one_graph(plain: Kernel) -> None:
    from tirgemm.torch import matmul_op

    gemm = matmul_op(plain)
    given, product = tensors(plain)
    compiled = torch.compile(lambda a, b: torch.relu(gemm(a + 1 - 1, b)) * 2, fullgraph=True)
    assert torch.equal(compiled(given["a"], given["b"]).double(), 2 * product.clamp(min=0))


def test_one_compiled_graph_serves_a_range_of_m(ranged: Kernel) -> None:
    from tirgemm.torch import matmul_op

    gemm = matmul_op(ranged)
    compiled = torch.compile(
        lambda a, b, c, bias: gemm(a, b, c, bias, alpha=1.0, beta=2.0) - c,
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for m in (17, 33, 64):
        given, product = tensors(ranged, m)
        wanted = product + given["c"].double() + given["bias"].double()
        assert torch.equal(compiled(*given.values()).double(), wanted), f"m = {m}"


def test_an_input_that_requires_grad_is_refused_while_gradients_are_recorded(plain: Kernel) -> None:
    from tirgemm.torch import matmul_op

    gemm = matmul_op(plain)
    given, product = tensors(plain)
    a = given["a"].clone().requires_grad_()
    with pytest.raises(CallError, match="for inference and has no gradient"):
        gemm(a, given["b"])
    with pytest.raises(Exception, match="for inference and has no gradient"):
        torch.compile(gemm, fullgraph=True, backend="aot_eager")(a, given["b"])
    for guard in (torch.no_grad, torch.inference_mode):
        with guard():
            assert torch.equal(gemm(a, given["b"]).double(), product)


def test_wrong_tensors_are_refused_with_the_argument_named(plain: Kernel, ranged: Kernel) -> None:
    from tirgemm.torch import matmul_op

    given, _ = tensors(plain)
    a, b = given["a"], given["b"]
    gemm = matmul_op(plain)
    with pytest.raises(CallTypeError, match="c was given"):
        gemm(a, b, a)
    with pytest.raises(CallTypeError, match="c is missing"):
        matmul_op(ranged)(a, b)
    with pytest.raises(CallError, match="a"):
        gemm(a[:, :5], b)
    with pytest.raises(CallTypeError, match="a"):
        gemm(a.float(), b)
    with pytest.raises(CallError, match="a has 1 dimensions"):
        matmul_op(ranged)(a[0], b, a, b[0])


@pytest.mark.parametrize(
    ("change", "scalars", "says"),
    [
        (lambda a: a[:, :5], {}, "a has shape"),
        (lambda a: a.float(), {}, "a has dtype"),
        (lambda a: a, {"alpha": 2.0}, "alpha is 2.0, but .* has no alpha"),
    ],
)
def test_wrong_arguments_are_refused_while_tracing(
    plain: Kernel, change: Any, scalars: dict[str, float], says: str
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tirgemm.torch import matmul_op

    given, _ = tensors(plain)
    wrong = change(given["a"])
    with FakeTensorMode() as mode, pytest.raises(CallError, match=says):
        matmul_op(plain)(mode.from_tensor(wrong), mode.from_tensor(given["b"]), **scalars)


def test_a_kernel_is_named_by_its_hash_so_that_a_kept_graph_cannot_meet_another(plain: Kernel) -> None:
    from tirgemm.torch import register, registered

    assert register(plain) == plain.kernel_sha256
    assert registered(plain.kernel_sha256) is plain
    given, _ = tensors(plain)
    with pytest.raises(InvalidRequest, match="is registered with tirgemm::gemm"):
        torch.ops.tirgemm.gemm(given["a"], given["b"], None, None, "0" * 64, 1.0, 1.0)


def test_what_is_no_loaded_kernel_is_refused() -> None:
    from tirgemm.torch import matmul_op, register

    for make in (matmul_op, register):
        with pytest.raises(InvalidRequest, match=r"kernel is 'k.tirgemm'; give a loaded kernel, such as tirgemm\.load"):
            make(cast(Any, "k.tirgemm"))


def test_the_operator_agrees_with_numpy_on_shared_memory(plain: Kernel) -> None:
    from tirgemm.torch import matmul_op

    given, _ = tensors(plain)
    assert np.array_equal(
        plain(given["a"].numpy(), given["b"].numpy()), matmul_op(plain)(given["a"], given["b"]).numpy()
    )
