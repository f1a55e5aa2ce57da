"""What a user checks a kernel with: operands as the kernel wants them, the fp64 result, and the bound."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest

from tests.helpers.artifact_samples import kernel
from tirgemm import Gemm
from tirgemm import _trial as trial
from tirgemm._trial import reference
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import ACTIVATIONS, Operand
from tirgemm.reference.result import expected

EVERYTHING = "9x21x13:f16:tt:acc=f16:out=f32:batch=3:lda=17:ldb=16:ldc=24:ldd=22:stride_a=250:align=64:alpha:beta:bias"


@pytest.mark.parametrize("text", [EVERYTHING, "1..9x5x7:f16:tn:lda=11", "3x5x7:bf16:nn", "1x1x1:f32:tn"])
def test_operands_have_the_strides_and_alignment_of_the_problem(text: str) -> None:
    gemm = Gemm.parse(text)
    for name, values in reference.random_operands(gemm, gemm.m_max, 3).items():
        array = reference.stored(values, gemm, name, gemm.m_max)
        assert array.ctypes.data % gemm.align == 0
        assert np.array_equal(array.astype(np.float32), values), "the random values are numbers of the dtype"
        strides = tuple(step // array.itemsize for step in array.strides)
        assert strides == ((1,) if name == "bias" else gemm.strides(cast("Operand", name)))


def test_rounding_to_bf16_is_to_nearest_even() -> None:
    import ml_dtypes

    values = np.concatenate(
        [
            np.random.default_rng(0).standard_normal(999).astype(np.float32),
            np.array([0, -0.0, 1.00390625, 1.01171875, 3e38], np.float32),
        ]
    )
    assert np.array_equal(reference.rounded(values, "bf16"), values.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_the_result_is_the_definition(act: str) -> None:
    gemm = Gemm.parse(f"3x4x5:f32:tn:alpha:beta:bias:act={act}" if act != "none" else "3x4x5:f32:tn:alpha:beta:bias")
    values = reference.random_operands(gemm, 3, 1)
    result, bound = expected(gemm, values, 1.5, -0.25)
    i, j = 2, 1
    x = 1.5 * sum(float(values["a"][k, i]) * float(values["b"][k, j]) for k in range(5))
    x += -0.25 * float(values["c"][i, j]) + float(values["bias"][j])
    definitions = {
        "none": x,
        "relu": max(x, 0.0),
        "gelu": x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
        "silu": x / (1 + math.exp(-x)),
        "gelu_tanh": 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    }
    assert result[i, j] == pytest.approx(definitions[act], rel=1e-12)
    assert reference.error_over_bound(result.astype(np.float32), result, bound) < 1


def mutants(d: np.ndarray[Any, Any], wrong: dict[str, Any]) -> dict[str, Any]:
    swapped, unwritten, shifted = d.copy(), d.copy(), d.copy()
    swapped[:, [0, 1]] = d[:, [1, 0]]
    unwritten[-1, -1] = np.nan
    shifted[-1] = d[-2]
    return wrong | {"two columns swapped": swapped, "an element unwritten": unwritten, "an edge off by one": shifted}


def test_every_mutant_is_far_over_the_bound() -> None:
    gemm = Gemm.parse("65x33x129:f16:nt:beta")
    values = reference.random_operands(gemm, 65, 0)
    result, bound = expected(gemm, values, 1.0, 0.5)
    short = values | {"a": values["a"][:, :-1], "b": values["b"][:, :-1]}
    wrong = {
        "the last k dropped": expected(gemm, short, 1.0, 0.5)[0],
        "beta ignored": expected(gemm, values, 1.0, 0.0)[0],
    }
    assert reference.error_over_bound(result.astype(np.float16), result, bound) <= 1
    for name, mutant in mutants(result, wrong).items():
        assert reference.error_over_bound(mutant.astype(np.float16), result, bound) > 5, name
    assert reference.error_over_bound(result[:-1], result, bound) == math.inf


def test_a_trial_takes_m_from_what_it_is_given() -> None:
    loaded = kernel("1..9x5x7:f32:tn:beta")
    assert trial.run(loaded).m == 9
    assert trial.run(loaded, m=4).m == 4
    assert trial.run(loaded, given={"a": np.ones((7, 3))}).m == 3
    assert trial.run(loaded, given={"c": np.ones((6, 5))}).m == 6
    with pytest.raises(InvalidRequest, match="m is 12"):
        trial.run(loaded, given={"a": np.ones((7, 12))})
    actual = trial.run(loaded, m=2, beta=0.5, seed=9)
    assert actual.passed
    assert actual.result.shape == (2, 5)
    assert actual.median_us > 0


def test_a_trial_passes_a_bias_that_comes_without_c() -> None:
    assert trial.run(kernel("1..9x5x7:f32:nt:bias"), m=3).passed
