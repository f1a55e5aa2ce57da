"""The problem: its text and JSON forms round-trip, and nothing impossible can be built."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tirgemm import Gemm, Range
from tirgemm.errors import InvalidGemm, TirgemmError
from tirgemm.expr import evaluate
from tirgemm.gemm import ACTIVATIONS, LAYOUTS, MAX_SIZE, OPERANDS, Operand

sizes = st.integers(1, 70_000)


@st.composite
def gemms(draw: st.DrawFn) -> Gemm:
    low = draw(sizes)
    m = draw(st.one_of(st.just(low), st.builds(Range, st.just(low), st.integers(low, 80_000))))
    n, k = draw(sizes), draw(sizes)
    dtype = draw(st.sampled_from(["f16", "bf16", "f32"]))
    beta, batch = draw(st.booleans()), draw(st.sampled_from([1, 1, 3]))
    values: dict[str, Any] = {
        "dtype": dtype,
        "layout": draw(st.sampled_from(LAYOUTS)),
        "beta": beta,
        "batch": batch,
        "acc": draw(st.sampled_from(["f32", "f16"])) if dtype == "f16" else "f32",
        "out": draw(st.sampled_from(["", "f16", "bf16", "f32"])),
        "align": draw(st.sampled_from([4, 8, 16, 128])),
        "alpha": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "act": draw(st.sampled_from(ACTIVATIONS)),
        "deterministic": draw(st.booleans()),
        "invariant": draw(st.booleans()),
    }
    dense = Gemm(m, n, k, **values)
    used: tuple[Operand, ...] = ("a", "b", "d", *(("c",) if beta else ()))
    for operand in used:
        gap = draw(st.sampled_from([0, 0, 1, 8]))
        if gap:
            rows, cols = (evaluate(d, dense.m_max) for d in dense.matrix(operand))
            values[f"ld{operand}"] = cols + gap
            if batch > 1 and draw(st.booleans()):
                values[f"stride_{operand}"] = rows * (cols + gap) + gap
    return Gemm(m, n, k, **values)


@settings(deadline=None)
@given(gemms())
def test_text_form_round_trips(gemm: Gemm) -> None:
    assert Gemm.parse(str(gemm)) == gemm
    assert hash(Gemm.parse(str(gemm))) == hash(gemm)
    assert str(Gemm.parse(str(gemm))) == str(gemm)


@settings(deadline=None)
@given(gemms())
def test_json_form_round_trips(gemm: Gemm) -> None:
    assert Gemm.from_json(gemm.to_json()) == gemm


@settings(deadline=None)
@given(gemms())
def test_operands_lie_inside_their_spans(gemm: Gemm) -> None:
    for operand in OPERANDS:
        rows, cols = (evaluate(d, gemm.m_max) for d in gemm.matrix(operand))
        assert gemm.span(operand) >= rows * cols * gemm.batch


def test_sizes_may_be_numpy_integers() -> None:
    sizes: list[Any] = [np.int64(255), np.int32(253), np.uint16(257), np.int64(3)]
    ends: list[Any] = [np.int64(1), np.uint8(64)]
    m, n, k, batch = sizes
    gemm = Gemm(m, n, k, batch=batch)
    assert gemm == Gemm(255, 253, 257, batch=3)
    assert Gemm(Range(*ends), 8, 8) == Gemm(Range(1, 64), 8, 8)
    assert json.loads(json.dumps(gemm.to_json()))["m"] == 255
    wrong: list[Any] = [True, np.float64(255), np.array([255])]
    for bad in wrong:
        with pytest.raises(InvalidGemm, match=r"gemm field (m|n) is .* it must be an integer"):
            Gemm(255, bad, 257)


def test_all_defaults_is_the_short_text() -> None:
    assert str(Gemm(4096, 4096, 4096)) == "4096x4096x4096:f16:nt"
    assert Gemm.parse("4096x4096x4096") == Gemm(4096, 4096, 4096)


def test_every_field_stands_in_the_text() -> None:
    text = (
        "1..77x33x65:bf16:tn:out=f32:act=gelu:batch=2:lda=90:ldb=40:ldc=41:ldd=42:stride_a=6000:stride_b=3000"
        ":stride_c=4000:stride_d=5000:align=4:alpha:beta:bias:deterministic:invariant"
    )
    gemm = Gemm.parse(text)
    assert str(gemm) == text
    assert (gemm.lda, gemm.stride_d, gemm.align, gemm.deterministic, gemm.invariant) == (90, 5000, 4, True, True)


@settings(deadline=None)
@given(gemms())
def test_row_class_leaves_out_what_the_bits_of_an_invariant_row_may_not_depend_on(gemm: Gemm) -> None:
    here = gemm.with_(m=17, batch=1, lda=0, ldb=0, ldc=0, ldd=0, stride_a=0, stride_b=0, stride_c=0, stride_d=0)
    assert here.with_(align=128, deterministic=True).row_class == gemm.row_class
    for name, other in (("k", gemm.k + 1), ("n", gemm.n + 1), ("bias", not gemm.bias), ("out", "f32")):
        if getattr(gemm, name) != other:
            assert here.with_(**{name: other}).row_class != gemm.row_class


def test_equal_problems_are_equal_values() -> None:
    assert Gemm(5, 7, 9, lda=9, ldb=9, ldd=7, out="f16") == Gemm(5, 7, 9)
    assert Gemm(Range(5, 5), 7, 9) == Gemm(5, 7, 9)
    assert Gemm(5, 7, 9, batch=2, stride_a=45) == Gemm(5, 7, 9, batch=2)


def test_a_dense_transposed_a_with_m_a_range_is_not_a_fixed_leading_dimension() -> None:
    assert Gemm(Range(1, 64), 8, 8, layout="tn", lda=64) != Gemm(Range(1, 64), 8, 8, layout="tn")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"m": 0}, "m is 0"),
    ({"n": -3}, "n is -3"),
    ({"k": MAX_SIZE + 1}, str(MAX_SIZE)),
    ({"m": 4.0}, "m is 4.0"),
    ({"m": True}, "m is True"),
    ({"n": "8"}, "n is '8'"),
    ({"m": Range(9, 3)}, "low end"),
    ({"m": Range(0, 3)}, "m is 0"),
    ({"dtype": "f8"}, "f16, bf16, f32"),
    ({"layout": "nx"}, "nn, nt, tn, tt"),
    ({"acc": "f16", "dtype": "bf16"}, "fp16 accumulation"),
    ({"act": "tanh"}, "gelu_tanh"),
    ({"lda": 31}, "rows of 32 elements"),
    ({"ldd": MAX_SIZE + 1}, str(MAX_SIZE)),
    ({"batch": 2, "stride_d": 10}, "overlap"),
    ({"stride_a": 5000}, "batch > 1"),
    ({"align": 3}, "power of two"),
    ({"align": 1}, "power of two"),
    ({"align": 2, "out": "f32"}, "from 4"),
    ({"ldc": 64}, "beta"),
    ({"m": 2**31 - 1, "n": 2**31 - 1}, "bytes"),
    ({"beta": 1}, "true or false"),
]


@pytest.mark.parametrize(("change", "says"), BAD, ids=[str(change) for change, _ in BAD])
def test_bad_fields_are_refused_with_value_and_limit(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidGemm, match="gemm") as caught:
        Gemm(**{"m": 16, "n": 16, "k": 32} | change)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1x2",
        "1x2x3x4",
        "0x1x1",
        "1.5x2x3",
        "1x2x3:f99",
        "1x2x3:f16:zz",
        "1x2x3:f16:nt:what=3",
        "1x2x3:f16:nt:batch=2:batch=2",
        "1x2x3:f16:nt:batch=x",
        "9" * 600,
        "1e9x1x1",
        "3..2x1x1",
        "1x2x3:f16:nt:alpha=1",
        "1x2x3:f16:nt:out=",
        "1x2x3:f16:nt:out=:out=f32",
        "1x2x3:f16:nt:acc=",
        "1x2x3:f16:nt:act=",
    ],
)
def test_bad_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidGemm):
        Gemm.parse(text)


def test_a_field_without_a_value_is_named() -> None:
    with pytest.raises(InvalidGemm, match=r"^gemm '4x4x4:f16:nt:out=': field out has no value"):
        Gemm.parse("4x4x4:f16:nt:out=")


@pytest.mark.parametrize("digit", ["\u0663", "\uff13", "\u00b3"], ids=["arabic", "fullwidth", "superscript"])
@pytest.mark.parametrize(
    "text", ["{0}x3x3:f16:nt", "3x{0}x3", "1..{0}x3x3", "3x3x3:f16:nt:batch={0}", "3x3x3:f16:nt:lda={0}2"]
)
def test_only_the_digits_0_to_9_are_digits(text: str, digit: str) -> None:
    with pytest.raises(InvalidGemm, match=f"'[^']*{digit}"):
        Gemm.parse(text.format(digit))
    with pytest.raises(InvalidGemm, match=f"'1..{digit}'"):
        Gemm.from_json({"m": f"1..{digit}", "n": 3, "k": 3})


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_text_raises_anything_else(text: str) -> None:
    with contextlib.suppress(TirgemmError):
        Gemm.parse(text)


@pytest.mark.parametrize(
    "value", [None, 3, [], {"m": 1, "n": 1}, {"m": 1, "n": 1, "k": 1, "q": 2}, {"m": "1-2", "n": 1, "k": 1}]
)
def test_bad_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidGemm):
        Gemm.from_json(value)


@pytest.mark.parametrize("m", [[1, 64], {"low": 1, "high": 64}, 1.5, True, None], ids=str)
def test_a_range_in_json_is_a_text(m: object) -> None:
    with pytest.raises(
        InvalidGemm, match=r"^gemm field m is .*; it must be .* or a text LOW\.\.HIGH such as '1\.\.64'"
    ):
        Gemm.from_json({"m": m, "n": 1, "k": 1})
    assert Gemm.from_json({"m": "1..64", "n": 1, "k": 1}).m == Range(1, 64)


def test_changing_the_dtype_changes_a_default_output() -> None:
    assert Gemm(3, 3, 3).with_(dtype="f32").out == "f32"
