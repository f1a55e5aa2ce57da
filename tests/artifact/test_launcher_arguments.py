"""Arguments that the launcher refuses before anything runs, and the reason that it gives."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.helpers.artifact_samples import kernel, operands, raw_kernel, rows_launch, shared_object
from tirgemm.errors import CallError, CallTypeError, CorruptArtifact
from tirgemm.gemm import Gemm, Range
from tirgemm.launch import KernelLaunch, Launch, Pointer, TensorMap, tensor_args

GEMM = Gemm(7, 9, 5, dtype="f32", layout="nn", align=16)
RANGE = Gemm(Range(2, 7), 9, 5, dtype="f32", layout="nn", align=16, alpha=True)
NOTHING = shared_object("KERNEL(rows) { return 0; }")


def function(gemm: Gemm = GEMM) -> Any:
    return raw_kernel(gemm, rows_launch(gemm), NOTHING)


def tensors(m: int = 7) -> list[Any]:
    return [aligned((m, 5)), aligned((5, 9)), aligned((m, 9))]


def aligned(shape: tuple[int, ...], offset: int = 0, dtype: Any = np.float32) -> Any:
    """Zeros whose address is ``offset`` past a multiple of 64."""
    memory = np.zeros(int(np.prod(shape)) * 8 + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return np.ndarray(shape, dtype, memory, start)


def transposed(shape: tuple[int, int]) -> Any:
    return aligned(shape[::-1]).T


@pytest.mark.parametrize(
    ("index", "value", "error", "words"),
    [
        (0, aligned((7, 5), dtype=np.float16), CallTypeError, "a has dtype float16; it must be float32 (f32)"),
        (1, aligned((5, 9), dtype=np.int32), CallTypeError, "b has dtype int32"),
        (2, aligned((7, 9), dtype=np.float64), CallTypeError, "out has dtype float64"),
        (0, aligned((7, 5), dtype=np.complex64), CallTypeError, "a has dtype complex64; it must be float32 (f32)"),
        (0, aligned((8, 5)), CallError, "a has shape (8, 5); it must be (7, 5)"),
        (0, aligned((35,)), CallError, "a has shape (35,); it must be (7, 5)"),
        (1, aligned((1, 5, 9)), CallError, "b has shape (1, 5, 9); it must be (5, 9)"),
        (1, aligned((9, 5)), CallError, "b has shape (9, 5); it must be (5, 9)"),
        (1, transposed((5, 9)), CallError, "b has strides (1, 5) in elements; they must be (9, 1)"),
        (1, aligned((5, 18))[:, ::2], CallError, "b has strides (18, 2)"),
        (1, aligned((5, 9))[::-1], CallError, "b"),
        (2, aligned((7, 10))[:, :9], CallError, "out has strides (10, 1) in elements; they must be (9, 1)"),
        (
            0,
            aligned((7, 5), offset=4),
            CallError,
            "a lies at an address that is 4 past a multiple of 16; it must be aligned to 16",
        ),
        (2, 3.0, CallTypeError, "out must be a tensor, not float"),
        (0, "text", CallTypeError, "a must be a tensor"),
        (0, None, CallTypeError, "a must be a tensor"),
    ],
)
def test_a_wrong_tensor_is_named_with_what_it_must_be(index: int, value: Any, error: type, words: str) -> None:
    args = tensors()
    args[index] = value
    with pytest.raises(error, match=re.escape(words)) as actual:
        function()(*args)
    assert (type(actual.value) is CallTypeError) == (error is CallTypeError)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_wrong_count_lists_the_arguments(count: int) -> None:
    with pytest.raises(CallTypeError, match=rf"takes 3 arguments \(a, b, out\), not {count}"):
        function()(*(tensors() * 2)[:count])


@pytest.mark.parametrize("m", [1, 8])
def test_an_m_outside_the_range_is_refused(m: int) -> None:
    with pytest.raises(CallError, match=rf"so that m is {m}; this kernel takes m from 2 to 7"):
        function(RANGE)(*tensors(m), 1.0)


def test_operands_of_two_different_m_are_refused() -> None:
    a, b, _ = tensors(3)
    with pytest.raises(CallError, match=r"out has shape \(4, 9\); it must be \(3, 9\)"):
        function(RANGE)(a, b, aligned((4, 9)), 1.0)


def test_a_scalar_must_be_a_number() -> None:
    for good in (1, 2.5, np.float32(1.5), True):
        function(RANGE)(*tensors(), good if good is not True else 1)
    with pytest.raises(CallTypeError, match="alpha must be a number"):
        function(RANGE)(*tensors(), "one")
    with pytest.raises(CallTypeError, match=r"takes 4 arguments \(a, b, out, alpha\), not 3"):
        function(RANGE)(*tensors())


def test_strides_of_axes_of_one_element_do_not_matter() -> None:
    gemm = Gemm(1, 9, 5, dtype="f32", layout="nn", align=4)
    a = np.ones((5, 1), np.float32).T  # strides (1, 1), not (5, 1)
    actual = kernel(gemm)(a, np.ones((5, 9), np.float32), out=np.zeros((9, 1), np.float32).T)
    assert (actual == 5).all()


@pytest.mark.parametrize("other", ["a", "b", "c", "bias"])
def test_an_output_over_an_input_is_refused(other: str) -> None:
    gemm = Gemm(4, 4, 4, dtype="f32", layout="nn", align=4, beta=True, bias=True)
    arrays, _ = operands(gemm)
    memory = np.zeros(64, np.float32)
    arrays[other] = memory[: arrays[other].size].reshape(arrays[other].shape)
    call = kernel(gemm)
    touching = memory[arrays[other].size - 1 :][:16].reshape(4, 4)
    with pytest.raises(CallError, match=f"out overlaps {other} in memory"):
        call(**arrays, beta=1.0, out=touching)
    beside = memory[arrays[other].size :][:16].reshape(4, 4)
    call(**arrays, beta=1.0, out=beside)


@pytest.mark.parametrize(("start", "refused"), [(5, False), (7, False), (4, True), (8, True), (0, True)])
def test_columns_of_one_matrix_may_be_input_and_output(start: int, refused: bool) -> None:
    gemm = Gemm(6, 4, 5, dtype="f32", layout="nn", lda=11, ldd=11, align=4)
    memory = np.ones((6, 11), np.float32)
    b, call = np.ones((5, 4), np.float32), kernel(gemm)
    wide = memory.reshape(-1)[start : start + 5 * 11 + 4]
    out = np.lib.stride_tricks.as_strided(wide, (6, 4), (44, 4))
    if refused:
        with pytest.raises(CallError, match="out overlaps a"):
            call(memory[:, :5], b, out=out)
    else:
        assert (call(memory[:, :5], b, out=out) == 5).all()


def test_calls_work_after_every_refusal() -> None:
    gemm = Gemm(7, 9, 5, dtype="f32", layout="nn", align=4)
    call, (arrays, expected) = kernel(gemm), operands(gemm)
    for wrong in ((arrays["b"], arrays["a"]), (arrays["a"], 3), (arrays["a"],)):
        with pytest.raises((CallError, TypeError)):
            call.raw(*wrong, np.zeros((7, 9), np.float32))
    np.testing.assert_array_equal(call(**arrays), expected)


POINTER = Pointer("d")


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ((KernelLaunch("rows", (Pointer("e"),)),), "names 'e'"),
        ((KernelLaunch("rows", (POINTER,) * 33),), "'params' has 33 entries; the limit is 32"),
        ((KernelLaunch("rows", (POINTER,), block=(0, 1, 1)),), "'block' is 0"),
        ((KernelLaunch("rows", (POINTER,), attributes=(("colour", 1),)),), "unknown attribute 'colour'"),
        (
            (KernelLaunch("rows", (TensorMap("a", "f32", (4, 4), (), (4, 4), (1, 1)),)),),
            "rank 2 needs one stride fewer",
        ),
        ((KernelLaunch("rows", (TensorMap("a", "f32", (4,), (), (4,), (1,)),)),), "takes a tensor map"),
        ((), "has no kernel"),
    ],
)
def test_a_launch_that_cannot_be_is_refused_at_load(kernels: tuple[KernelLaunch, ...], words: str) -> None:
    with pytest.raises(CorruptArtifact, match=words):
        raw_kernel(GEMM, Launch(tensor_args(GEMM), (), kernels), NOTHING)
