"""Operands that are timed on a GPU: how many sets fit, what is said where none does, and where they begin."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tirgemm.errors import DoesNotFit
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.measure import gpu_operands
from tirgemm.tuning.measure.gpu_operands import filled, sets_that_fit
from tirgemm.tuning.verify.plan import operand_layouts, timed_align, timed_start

_GEMM = Gemm.parse("1000x1000x1000:f32:nn")
_ONE = 3 * 4_000_000  # A, B and D, whole multiples of 256 bytes


def sets(free: int, contenders: int, gemm: Gemm = _GEMM) -> int:
    gpu: Any = SimpleNamespace(device=named_device("sm_90a"), free_bytes=lambda: free)
    backend: Any = SimpleNamespace(forget=lambda: None)
    return sets_that_fit(gemm, contenders, gpu, backend)


def test_three_quarters_of_the_free_memory_are_shared_out() -> None:
    assert sets(free=8 * _ONE, contenders=1) == 6
    assert sets(free=8 * _ONE, contenders=3) == 2


@pytest.mark.parametrize(("n", "wanted"), [(1000, 18), (4000, 6), (30_000, 1), (60_000, 1)])
def test_there_are_as_many_sets_as_reach_four_times_the_l2(n: int, wanted: int) -> None:
    gemm = Gemm.parse(f"1000x{n}x1000:f32:nn")
    one, l2 = 4 * (1000 * 1000 + 2 * 1000 * n), named_device("sm_90a").limits.l2_bytes
    assert sets(free=1 << 40, contenders=2, gemm=gemm) == wanted
    assert wanted * one >= 4 * l2 > (wanted - 1) * one


@pytest.mark.parametrize(("k", "wanted"), [(64, 2), (512, 2), (1024, 1)])
def test_what_is_read_of_a_large_problem_is_not_left_in_the_l2(k: int, wanted: int) -> None:
    gemm, l2 = Gemm.parse(f"16384x16384x{k}:f16:nt"), named_device("sm_90a").limits.l2_bytes
    assert (2 * 2 * 16384 * k > l2) == (wanted == 1)
    assert sets(free=1 << 40, contenders=2, gemm=gemm) == wanted


@pytest.mark.parametrize(
    ("contenders", "advice"), [(1, "12,000,000 bytes.*smaller problem"), (3, "beside 2 others.*fewer opponents")]
)
def test_what_does_not_fit_is_told_what_to_do(contenders: int, advice: str) -> None:
    with pytest.raises(DoesNotFit, match=advice):
        sets(free=_ONE, contenders=contenders)


class _Memory:
    """Memory of a GPU that is not there, at an odd multiple of 32 bytes."""

    address = 7 * 4096 + 32

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


@pytest.mark.parametrize(
    ("options", "aligned_to"), [("", 256), (":align=2", 2), (":out=f32:align=8", 8), (":out=f32:align=512", 512)]
)
def test_operands_begin_where_the_problem_promises_and_lie_apart(
    options: str, aligned_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_operands, "Memory", _Memory)
    gpu: Any = SimpleNamespace(ordinal=0, synchronize=lambda: None)
    backend: Any = SimpleNamespace(fill_normal=lambda *_: None)
    gemm = Gemm.parse(f"33x40x56:f16:nt{options}")
    operands = filled(gemm, 3, 0, gpu, backend)
    nbytes = {layout.name: layout.nbytes for layout in operand_layouts(gemm)}
    places = [(view.address, view.address + nbytes[name]) for one in operands.views for name, view in one.items()]
    assert all(start % aligned_to == 0 for start, _ in places)
    assert aligned_to >= 256 or all(start % (2 * aligned_to) for start, _ in places), "no more than was promised"
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
    assert _Memory.address <= places[0][0]
    assert places[-1][1] <= _Memory.address + operands.memory.nbytes


@pytest.mark.parametrize(("align", "behind"), [(2, 2), (4, 4), (8, 8), (16, 0), (64, 0), (512, 0)])
@pytest.mark.parametrize("address", [0, 1, 255, 256, 257, 4095])
def test_the_first_operand_begins_behind_a_multiple_by_what_is_promised(align: int, behind: int, address: int) -> None:
    gemm = Gemm(33, 40, 56, align=align)
    start = timed_start(gemm, address)
    assert address <= start < address + 2 * timed_align(align)
    assert start % timed_align(align) == behind
