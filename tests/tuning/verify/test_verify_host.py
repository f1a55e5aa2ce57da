"""Verification on the CPU: right kernels pass whatever the problem, every mutant is caught.

The kernels here are NumPy functions; test_measure_cpu has the same mutants as packaged shared objects.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tuning.verify.tensor_bits import bits_of
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.reference.bound import INTEGERS, TRANSCENDENTAL
from tirgemm.reference.numbers import activate, decode, encode
from tirgemm.tuning.verify import flow as flow_module
from tirgemm.tuning.verify.flow import verify
from tirgemm.tuning.verify.host import HostBackend
from tirgemm.tuning.verify.plan import GemmTest, exact_plan, layout_of, sizes
from tirgemm.tuning.verify.result import ComparedElements, Verification

Mutation = Callable[[dict[str, Any]], None]


def kernel(gemm: Gemm, mutate: Mutation | None = None, half_sums: bool = False) -> Callable[..., None]:
    """A right kernel in NumPy, with fp32 products; ``mutate`` may spoil what it works on."""

    def run(*arguments: Any) -> None:
        names = (*gemm.inputs, "d")
        tensors = dict(zip(names, arguments, strict=False))
        scalars = dict(zip(gemm.scalars, arguments[len(names) :], strict=True))
        raw = {name: bits_of(t, gemm.dtype if name in "ab" else gemm.out) for name, t in tensors.items()}
        a, b = (decode(raw[name], gemm.dtype).astype(np.float32) for name in "ab")
        a = np.swapaxes(a, -1, -2) if gemm.trans_a else a
        b = np.swapaxes(b, -1, -2) if gemm.trans_b else b
        work: dict[str, Any] = {
            "a": a,
            "b": b,
            "alpha": scalars.get("alpha", 1.0),
            "beta": scalars.get("beta", 0.0),
            "raw": raw,
        }
        before = (mutate or (lambda _: None)).__name__
        if mutate and before.startswith("inputs"):
            mutate(work)
        product = work["a"] @ work["b"]
        if half_sums:
            product = sum(
                ((work["a"][..., i : i + 1] * work["b"][..., i : i + 1, :]).astype(np.float16) for i in range(gemm.k)),
                np.float16(0),
            ).astype(np.float32)
        x = np.float32(work["alpha"]) * product
        if gemm.beta:
            x = x + np.float32(work["beta"]) * decode(raw["c"], gemm.out).astype(np.float32)
        if gemm.bias:
            x = x + decode(raw["bias"], gemm.out).astype(np.float32)
        work["out"] = encode(activate(x.astype(np.float64), gemm.act).astype(np.float32), gemm.out).reshape(x.shape)
        work["skip"] = np.zeros(x.shape, bool)
        if mutate and not before.startswith("inputs"):
            mutate(work)
        raw["d"][~work["skip"]] = work["out"][~work["skip"]]

    return run


def check(gemm: Gemm | str, mutate: Mutation | None = None, level: str = "candidate", **options: Any) -> Verification:
    problem = Gemm.parse(gemm) if isinstance(gemm, str) else gemm
    return verify(
        HostBackend(), problem, kernel(problem, mutate, **options), kernel_sha256="0" * 64, level=level, seed=7
    )


@pytest.mark.parametrize(
    "gemm",
    [
        "37x41x43:f32:nn",
        "1x1x1:f16:nt",
        "1x67x4104:f16:nt",
        "65x129x1023:bf16:tn",
        "33x47x95:f16:tt:out=f32:alpha:beta:bias:act=relu",
        "31x29x53:f16:nn:batch=3:lda=61:ldb=33:ldc=37:ldd=40:stride_a=2000:stride_d=1301:align=2:alpha:beta",
        "17x19x700:bf16:nt:align=2:bias:act=gelu:ldb=701",
        "23x31x77:f32:nt:align=4:beta:act=silu",
        "23x31x77:f16:nn:act=gelu_tanh:alpha",
        "3..90x31x77:f16:tn:batch=2:beta",
        "1..200x31x19:f16:nt",
    ],
)
@pytest.mark.parametrize("level", ["candidate", "certificate"])
def test_a_right_kernel_passes(gemm: str, level: str) -> None:
    problems = check(gemm, level=level)
    assert problems.passed, problems.tests
    assert 0 <= problems.error < 1  # near 1 for 16-bit outputs: the last rounding may cost all that it is allowed
    assert {t["name"] for t in problems.tests} == {"exact", "normal"}
    problem = Gemm.parse(gemm)
    assert {t["m"] for t in problems.tests} == set(sizes(problem, level))
    assert all(t["checked"] == t["m"] * problem.n * problem.batch for t in problems.tests)


def test_half_precision_accumulation_passes_only_where_it_is_asked_for() -> None:
    assert check("19x23x310:f16:nt:acc=f16", half_sums=True).passed
    wrong = check("19x23x310:f16:nt:out=f32", half_sums=True)
    assert not wrong.passed
    assert wrong.tests[-1]["name"] == "normal"  # small integers are exact in fp16 too


def inputs_last_k_dropped(work: dict[str, Any]) -> None:
    work["a"], work["b"] = work["a"][..., :-1], work["b"][..., :-1, :]


def inputs_two_columns_of_b_swapped(work: dict[str, Any]) -> None:
    work["b"] = work["b"].copy()
    work["b"][..., [0, -1]] = work["b"][..., [-1, 0]]


def inputs_beta_ignored(work: dict[str, Any]) -> None:
    work["beta"] = 0.0


def inputs_alpha_ignored(work: dict[str, Any]) -> None:
    work["alpha"] = 1.0


def one_element_unwritten(work: dict[str, Any]) -> None:
    work["skip"][..., -1, -2] = True


def tile_edge_off_by_one(work: dict[str, Any]) -> None:
    work["skip"][..., 16, :] = True


def one_ulp_wrong(work: dict[str, Any]) -> None:
    work["out"][..., 3, 5] += 1


MUTANTS = [
    inputs_last_k_dropped,
    inputs_two_columns_of_b_swapped,
    inputs_beta_ignored,
    inputs_alpha_ignored,
    one_element_unwritten,
    tile_edge_off_by_one,
    one_ulp_wrong,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("gemm", ["67x45x129:f16:nt:alpha:beta", "33x37x4104:bf16:nn:alpha:beta:bias:act=gelu"])
def test_every_mutant_is_caught(gemm: str, mutate: Mutation) -> None:
    problems = check(gemm, mutate)
    assert not problems.passed
    assert problems.error > 1
    assert "wrong" in problems.tests[-1]["message"]


def test_reading_a_gap_between_rows_poisons_the_result() -> None:
    gemm = Gemm.parse("9x11x13:f32:nn:lda=14")

    def inputs_one_column_too_many(work: dict[str, Any]) -> None:
        a = work["raw"]["a"]
        wide = np.lib.stride_tricks.as_strided(a, (9, 14), a.strides)
        extra = decode(wide, "f32").astype(np.float32)[:, 13:]
        work["a"] = np.concatenate([work["a"], extra], axis=1)
        work["b"] = np.concatenate([work["b"], np.zeros((1, 11), np.float32)])

    assert not check(gemm, inputs_one_column_too_many).passed


@pytest.mark.parametrize(("name", "index"), [("d", 11), ("d", -1), ("d", 300), ("a", 0), ("b", 5)])
def test_writing_where_no_element_of_d_lies_is_caught(name: str, index: int) -> None:
    gemm = Gemm.parse("9x11x13:f32:nn:ldd=12")

    def write_elsewhere(work: dict[str, Any]) -> None:
        ctypes.c_uint32.from_address(work["raw"][name].ctypes.data + 4 * index).value = 7

    problems = check(gemm, write_elsewhere)
    assert not problems.passed
    assert problems.tests[-1]["message"].endswith(f"into {name}")


def test_a_second_verification_is_not_spoiled_by_inputs_that_the_first_kernel_overwrote() -> None:
    gemm, backend = Gemm.parse("9x11x13:f32:nn"), HostBackend()

    def overwrite(work: dict[str, Any]) -> None:
        work["raw"]["a"][0, 0] = 0

    options: dict[str, Any] = {"kernel_sha256": "0" * 64, "level": "candidate", "seed": 7}
    assert not verify(backend, gemm, kernel(gemm, overwrite), **options).passed
    assert verify(backend, gemm, kernel(gemm), **options).passed


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("k", [1, 7, 255, 2049, 50_000])
def test_exact_operands_stay_within_the_integers_of_accumulator_and_output(dtype: str, k: int) -> None:
    gemm = Gemm(5, 7, k, dtype, alpha=True, beta=True, bias=True, acc="f16" if dtype == "f16" else "f32")
    case = HostBackend().prepare(GemmTest(gemm, 5, "exact", 3))
    a, b = (decode(case.operands[name].product[0], dtype) for name in "ab")
    alpha, beta = case.problem.scalars
    plan = exact_plan(gemm)
    largest = abs(alpha) * (np.abs(a) @ np.abs(b)).max() + abs(beta) * plan.addend + plan.addend
    assert largest <= min(INTEGERS[gemm.acc], INTEGERS[gemm.out])
    assert (np.count_nonzero(a, axis=1) <= plan.tail + -(-(k - plan.tail) // plan.period)).all()
    assert np.all(a[:, -min(k, 50) :] != 0)
    assert np.all(b != 0)


def test_operands_are_aligned_to_what_the_problem_says_and_no_more() -> None:
    for align in (2, 16, 64):
        case = HostBackend().prepare(GemmTest(Gemm(5, 7, 9, align=align), 5, "normal", 0))
        for operand in case.operands.values():
            assert operand.view.tensor.data_ptr() % (2 * align) == align


def test_layouts_of_a_range_follow_m() -> None:
    gemm = Gemm.parse("3..90x31x77:f16:tn:batch=2")
    assert (layout_of(gemm, "a", 5).ld, layout_of(gemm, "a", 5).stride) == (5, 5 * 77)
    assert sizes(gemm, "candidate")[0] == 3
    assert sizes(gemm, "candidate")[-1] == 90
    assert all(m % 2 for m in sizes(gemm, "certificate")[1:-1])


# -- large problems: a smaller limit stands for 2^36 -----------------------------------------------


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_module, "EDGE", 16)
    monkeypatch.setattr(flow_module, "compares_in_full", lambda _, level: level == "certificate")


LARGE = "150x130x90:f16:nt:alpha:beta:bias:batch=2"


@pytest.mark.usefixtures("small_limit")
def test_a_large_problem_is_checked_by_edges_samples_and_random_vectors() -> None:
    problems = check(LARGE)
    assert problems.passed, problems.tests
    assert {t["method"] for t in problems.tests} == {"edges, sampled, freivalds"}
    assert {t["method"] for t in check(LARGE, level="certificate").tests} == {"full"}
    assert {t["method"] for t in check(LARGE + ":act=relu").tests} == {"edges, sampled"}


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda m: m.__name__)
def test_every_mutant_is_caught_without_a_full_comparison(mutate: Mutation) -> None:
    assert not check(LARGE, mutate).passed


@pytest.mark.usefixtures("small_limit")
def test_random_vectors_alone_catch_one_wrong_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostBackend, "compare_random", lambda *_: ComparedElements(0))
    problems = check(LARGE, one_ulp_wrong)
    assert not problems.passed
    assert problems.tests[-1]["name"] == "exact"
    assert "row 3 of matrix" in problems.tests[-1]["message"]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'thorough'; it must be one of candidate, certificate"):
        check("3x3x3", level="thorough")


@pytest.mark.parametrize("act", TRANSCENDENTAL)
def test_activations_agree_with_their_definitions(act: str) -> None:
    x = np.array([-30.0, -1.0, 0.0, 0.5, 30.0])
    want = {
        "gelu": [0, -0.15865525, 0, 0.34573123, 30],
        "gelu_tanh": [0, -0.15880801, 0, 0.34571401, 30],
        "silu": [0, -0.26894142, 0, 0.31122967, 30],
    }[act]
    assert np.allclose(activate(x, act), want, atol=1e-8)
