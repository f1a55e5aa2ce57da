"""Loads in a choice whose condition is data, as relu is: each is counted where it is known which lanes load, and named
where it is not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.analysis import handmade
from tests.analysis.memory_accesses import memory_of, memory_of_program
from tirgemm.analysis.memory_traffic import AccessReport, KernelAnalysis
from tirgemm.families import FAMILIES
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device

_H200 = named_device("sm_90a")
_PLACE = "bx * 64 + tx"


def chosen(condition: str, otherwise: str, *, vector: bool = False, compiled: bool = False) -> KernelAnalysis:
    """The analysis of ``d[_PLACE] = 0 if condition < 0 else otherwise``; ``vector``: of four elements at a time, where
    ``i`` counts them."""
    place = f"({_PLACE}) * 4 + i" if vector else _PLACE
    body = f"d[{place}] = T.Select({condition} < T.float32(0), T.float32(0), {otherwise})"
    if vector:
        body = f"for i in T.vectorized(4):\n    {body}"
    (analysis,) = memory_of_program(handmade.program(body), Gemm.parse("64x64x64:f32:nn"), _H200, compiled=compiled)
    return analysis


def loads(analysis: KernelAnalysis) -> list[AccessReport]:
    return [access for access in analysis.accesses if access.op == "load"]


# Two blocks of two warps: four requests.
def test_what_the_condition_reads_too_is_counted_as_written_and_once_when_compiled() -> None:
    value = f"a[{_PLACE}]"
    written, compiled = (chosen(value, value, compiled=c) for c in (False, True))
    assert not written.unknown
    assert not compiled.unknown
    assert [(a.requests, a.lanes, a.sectors) for a in loads(written)] == [(8, 256, 32)]
    assert [(a.requests, a.lanes, a.fate) for a in loads(compiled)] == [(4, 128, "1 of 2 equal loads removed")]


def test_edges_within_the_choice_still_count() -> None:
    value = f"T.if_then_else({_PLACE} < 72, a[{_PLACE}], T.float32(0))"
    analysis = chosen(value, value)
    assert not analysis.unknown
    # The first block whole, and eight lanes of the second.
    assert [(a.requests, a.lanes) for a in loads(analysis)] == [(2 * 3, 2 * 72)]


def test_choices_within_choices_are_followed() -> None:
    value = f"a[{_PLACE}]"
    analysis = chosen(value, f"T.Select({value} < T.float32(1), {value}, T.float32(1))")
    assert not analysis.unknown
    assert [(a.requests, a.lanes) for a in loads(analysis)] == [(3 * 4, 3 * 128)]


@pytest.mark.parametrize("other", [f"a[{_PLACE} + 1024]", f"T.Select(a[{_PLACE}] < T.float32(1), a[tx], T.float32(1))"])
def test_what_only_one_of_the_values_reads_is_named(other: str) -> None:
    analysis = chosen(f"a[{_PLACE}]", other)
    assert [str(u) for u in analysis.unknown] == ["load of a: a value read from a"]


def test_a_choice_of_elements_reads_both_vectors_whole() -> None:
    analysis = chosen(f"a[({_PLACE}) * 4 + i]", f"a[({_PLACE}) * 4 + i + 1024]", vector=True)
    assert not analysis.unknown
    assert {(a.width, a.lanes) for a in loads(analysis)} == {(16, 256)}


@pytest.mark.parametrize("size", ["104x200x72", "101x99x73"])
@pytest.mark.parametrize("family", ["simt", "mma", "wmma", "wgmma"])
def test_relu_of_an_epilogue_hides_no_load(family: str, size: str) -> None:
    """The default kernel reads C, the bias and its own sums as it does without relu, or each of them twice."""

    def read(act: str) -> Counter[str]:
        gemm = Gemm.parse(f"{size}:{'f32' if family == 'simt' else 'f16'}:nn:beta:bias:act={act}")
        config = FAMILIES[family].default(gemm.with_(act="relu"), _H200, "sustained")
        kernels = memory_of(gemm, config, _H200, compiled=False)
        assert [str(u) for kernel in kernels for u in kernel.unknown] == []
        bytes_read: Counter[str] = Counter()
        for access in loads(kernels[-1]):
            bytes_read[access.operand] += access.lanes * access.width
        return bytes_read

    without, relu = read("none"), read("relu")
    m, n = map(int, size.split("x")[:2])
    assert without["c"] == m * n * (4 if family == "simt" else 2)
    assert without["bias"]
    # wgmma puts a sum into a register before it compares.
    times = 1 if family == "wgmma" else 2
    assert {name: relu[name] for name in ("c", "bias")} == {name: times * without[name] for name in ("c", "bias")}
