"""Headroom of a problem: what a search may gain, before anything is measured and after."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.contract.storage.databases import kernel
from tirgemm.detect import device
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.timings import SearchSummary, Timing, Timings
from tirgemm.tuning.search.headroom import MOST, bound_us, headroom, headrooms

CPU = device("cpu")
SMALL, LARGE = Gemm(129, 67, 31), Gemm(1023, 1021, 1027)


def test_no_kernel_is_faster_than_its_arithmetic_its_bytes_and_a_launch() -> None:
    hopper = named_device("sm_90a")
    assert bound_us(LARGE, hopper) > LARGE.flops / (dict(hopper.peak_tflops)["f16"] * 1e6)
    narrow = Gemm(1, 4096, 4096)
    assert bound_us(narrow, hopper) > narrow.nbytes / (hopper.peak_gbps * 1e3) > narrow.flops / 1e9
    assert bound_us(Gemm(1, 1, 1), CPU) >= 1.0


def test_without_a_kernel_the_default_is_compared_with_the_bound() -> None:
    small, large = (headroom(gemm, CPU, "sustained") for gemm in (SMALL, LARGE))
    assert 0 < large < small <= MOST, "a launch and the edges weigh more where there is little to do"


def test_what_was_measured_counts_before_what_is_estimated() -> None:
    twice = Timings({"sustained": Timing(2 * bound_us(LARGE, CPU))})
    assert headroom(LARGE, CPU, "sustained", kernel(timings=twice)) == pytest.approx(1.0)
    said = Timings(search=SearchSummary(expected_gain=0.03))
    assert headroom(LARGE, CPU, "sustained", kernel(timings=said)) == 0.03
    unknown = replace(twice, search=SearchSummary(expected_gain=math.nan))
    assert headroom(LARGE, CPU, "sustained", kernel(timings=unknown)) == pytest.approx(1.0)


def test_what_is_not_reached_in_time_counts_as_the_median() -> None:
    gains = headrooms([(SMALL, None), (LARGE, None), (LARGE, None)], CPU, "sustained", 0.0)
    assert gains == [headroom(SMALL, CPU, "sustained")] * 3
    assert headrooms([], CPU, "sustained", 0.0) == []
