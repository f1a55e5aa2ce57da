"""Kernels as users call them: which arrays come in, what comes out, what is refused."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.helpers.artifact_samples import kernel, operands
from tirgemm.errors import CallError, CallTypeError
from tirgemm.gemm import Gemm, Range

GEMM = Gemm(7, 9, 5, dtype="f32", align=4)
FULL = Gemm(7, 9, 5, dtype="f32", align=4, alpha=True, beta=True, bias=True)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_numpy_arrays_give_numpy_arrays_of_the_output_dtype(dtype: str) -> None:
    gemm = Gemm(7, 9, 5, dtype=dtype, align=4)
    arrays, expected = operands(gemm)
    out = kernel(gemm)(**arrays)
    assert type(out) is np.ndarray
    assert out.dtype == {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}[dtype]
    np.testing.assert_array_equal(out.astype(np.float64), expected)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_pytorch_tensors_give_pytorch_tensors(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    gemm = Gemm(Range(2, 7), 9, 5, dtype=dtype, ldd=12, align=4)
    kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    a, b = torch.randint(-3, 4, (6, 5)).to(kind), torch.randint(-3, 4, (9, 5)).to(kind)
    actual = kernel(gemm)(a, b)
    assert (actual.dtype, actual.stride(), actual.shape) == (kind, (12, 1), (6, 9))
    assert torch.equal(actual.double(), a.double() @ b.double().T)
    out = torch.empty(6, 12, dtype=kind)[:, :9]
    assert kernel(gemm)(a, b, out=out) is out
    assert torch.equal(out, actual)


@pytest.mark.torch
def test_a_tensor_that_requires_grad_is_refused_where_grad_is_recorded() -> None:
    torch = pytest.importorskip("torch")
    a, b, out = torch.ones(7, 5), torch.ones(9, 5, requires_grad=True), torch.zeros(7, 9)
    call = kernel(GEMM)
    with pytest.raises(CallError, match=r"b requires grad.*torch\.no_grad\(\), or detach b"):
        call(a, b)
    assert (call(a, b.detach()) == 5).all()
    with torch.no_grad():
        assert (call(a, torch.nn.Parameter(b.detach())) == 5).all()
    with pytest.raises(CallError, match="out requires grad"):
        call(a, b.detach(), out=out.requires_grad_())


def test_out_is_filled_and_returned() -> None:
    arrays, expected = operands(GEMM)
    out = np.full((7, 9), np.nan, np.float32)
    assert kernel(GEMM)(**arrays, out=out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("align", [4, 64, 256])
@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_a_new_output_has_the_strides_and_the_alignment_of_the_gemm(align: int, kind: str) -> None:
    gemm = Gemm(7, 9, 5, dtype="f32", batch=2, ldd=13, stride_d=101, align=align)
    a, b = aligned((2, 7, 5), align), aligned((2, 9, 5), align)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        a, b = torch.from_numpy(a), torch.from_numpy(b)
    out = kernel(gemm, binary=nothing())(a, b)
    strides = out.stride() if kind == "torch" else tuple(s // 4 for s in out.strides)
    address = out.data_ptr() if kind == "torch" else out.ctypes.data
    assert (tuple(out.shape), strides, address % align) == ((2, 7, 9), (101, 13, 1), 0)


def nothing() -> bytes:
    from tests.helpers.artifact_samples import shared_object

    return shared_object("KERNEL(rows) { return 0; }")


def aligned(shape: tuple[int, ...], align: int) -> Any:
    memory = np.zeros(int(np.prod(shape)) * 4 + align, np.uint8)
    return np.ndarray(shape, np.float32, memory, -memory.ctypes.data % align)


def test_read_only_inputs_are_taken_and_read_only_outputs_are_not() -> None:
    arrays, expected = operands(GEMM)
    for array in arrays.values():
        array.flags.writeable = False
    np.testing.assert_array_equal(kernel(GEMM)(**arrays), expected)
    out = np.zeros((7, 9), np.float32)
    out.flags.writeable = False
    with pytest.raises(CallError, match="out is a read-only array"):
        kernel(GEMM)(**arrays, out=out)


def test_read_only_bfloat16_is_taken_too() -> None:
    gemm = Gemm(7, 9, 5, dtype="bf16", align=2)
    arrays, expected = operands(gemm)
    arrays["a"].flags.writeable = False
    np.testing.assert_array_equal(kernel(gemm)(**arrays).astype(np.float64), expected)


def test_any_dlpack_array_is_taken_with_an_output() -> None:
    from tirgemm.artifact import native

    arrays, expected = operands(GEMM)
    out = np.zeros((7, 9), np.float32)
    a, b, d = (native.tvm_ffi().from_dlpack(array) for array in (arrays["a"], arrays["b"], out))
    assert kernel(GEMM)(a, b, out=d) is d
    np.testing.assert_array_equal(out, expected)
    with pytest.raises(CallTypeError, match="needs out="):
        kernel(GEMM)(a, b)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"a": [[1.0]]}, CallTypeError, "a is a list; kernels take NumPy"),
        ({"b": 3}, CallTypeError, "b is a int; it must be a NumPy array as a is"),
        ({"out": "here"}, CallTypeError, "out is a str; it must be a NumPy array"),
        ({"c": None}, CallTypeError, "c is missing: 7x9x5:f32:nt:align=4:alpha:beta:bias has beta"),
        ({"bias": None}, CallTypeError, "bias is missing"),
        ({"alpha": None}, CallTypeError, "alpha= is missing"),
        ({"beta": None}, CallTypeError, "beta= is missing"),
        ({"beta": "much"}, CallTypeError, "beta is 'much'; it must be a number"),
        ({"alpha": 10**5000}, CallTypeError, "alpha is an integer beyond what a float holds"),
        ({"a": np.zeros((7, 5), np.complex64)}, CallTypeError, "a has dtype complex64"),
        ({"a": np.zeros((7, 5), ">f4")}, CallTypeError, "a has dtype >f4"),
        ({"a": np.zeros((7, 5), np.float64)}, CallTypeError, "a has dtype float64; it must be float32"),
        ({"c": np.zeros((9, 7), np.float32)}, CallError, "c has shape (9, 7); it must be (7, 9)"),
        ({"bias": np.zeros((7,), np.float32)}, CallError, "bias has shape (7,); it must be (9,)"),
        ({"out": np.zeros((7, 8), np.float32)}, CallError, "out has shape (7, 8); it must be (7, 9)"),
        ({"a": np.zeros((5, 7), np.float32).T}, CallError, "a has strides (1, 7)"),
        ({"a": np.ndarray((7, 5), np.float32, bytes(7 * 44), 1)}, CallError, "a lies at an address"),
        (
            {"a": np.ndarray((7, 5), np.float32, bytes(7 * 60), 0, (42, 4))},
            CallTypeError,
            "a cannot be passed by DLPack",
        ),
    ],
)
def test_a_wrong_call_is_refused_with_the_argument_and_what_it_must_be(
    change: dict[str, Any], error: type[CallError], words: str
) -> None:
    arrays, _ = operands(FULL)
    with pytest.raises(error, match=re.escape(words)) as actual:
        kernel(FULL)(**{**arrays, "alpha": 1.0, "beta": 1.0, **change})
    assert isinstance(actual.value, TypeError if error is CallTypeError else ValueError)


@pytest.mark.parametrize("name", ["c", "bias", "alpha", "beta"])
def test_what_the_gemm_does_not_have_is_refused_and_not_ignored(name: str) -> None:
    arrays, _ = operands(FULL)
    given = {name: arrays.get(name, 1.0)}
    with pytest.raises(CallTypeError, match=f"{name} is given, but 7x9x5:f32:nt:align=4 has no"):
        kernel(GEMM)(arrays["a"], arrays["b"], **given)


@pytest.mark.parametrize(
    ("shape", "words"), [((8, 5), "m is 8"), ((1, 5), "m is 1"), ((5,), "2 dimensions"), ((2, 7, 5), "2 dim")]
)
def test_an_m_that_the_range_does_not_hold_is_refused_before_an_output_is_made(
    shape: tuple[int, ...], words: str
) -> None:
    gemm = Gemm(Range(2, 7), 9, 5, dtype="f32", align=4)
    with pytest.raises(CallError, match=words):
        kernel(gemm)(np.zeros(shape, np.float32), np.zeros((9, 5), np.float32))
    with pytest.raises(CallError):
        kernel(gemm)(np.zeros(shape, np.float32), np.zeros((9, 5), np.float32), out=np.zeros((7, 9), np.float32))


@pytest.mark.torch
def test_tensors_that_dlpack_cannot_carry_are_refused() -> None:
    torch = pytest.importorskip("torch")
    a, b, out = torch.ones(7, 5), torch.ones(9, 5), torch.zeros(7, 9)
    for wrong in (a.to_sparse(), a.to("meta")):
        with pytest.raises(CallTypeError, match="cannot be passed by DLPack") as refused:
            kernel(GEMM)(wrong, b, out=out)
        assert "\n" not in str(refused.value), "frames of C++"
    for given in ((torch._neg_view(a), b), (a, torch._neg_view(b))):
        with pytest.raises(CallError, match=r"is negated or conjugated lazily; give \w\.resolve_neg\(\)"):
            kernel(GEMM)(*given, out=out)


@pytest.mark.torch
def test_arrays_of_two_libraries_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(CallTypeError, match="b is a Tensor; it must be a NumPy array as a is"):
        kernel(GEMM)(np.ones((7, 5), np.float32), torch.ones(9, 5))


def test_raw_takes_the_launchs_order_and_allocates_nothing() -> None:
    arrays, expected = operands(FULL)
    out = np.zeros((7, 9), np.float32)
    assert kernel(FULL).raw(arrays["a"], arrays["b"], arrays["c"], arrays["bias"], out, 0.0, 1.0) is None
    np.testing.assert_array_equal(out, arrays["c"] + arrays["bias"] + 0 * expected)
