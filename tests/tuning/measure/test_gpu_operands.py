"""How many sets of operands a GPU's memory holds, and what is said where it holds none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tirgemm.errors import DoesNotFit
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.measure.gpu_operands import sets_that_fit

_GEMM = Gemm.parse("1000x1000x1000:f32:nn")
_ONE = 3 * 4_000_000  # A, B and D, whole multiples of 256 bytes


def sets(free: int, contenders: int) -> int:
    gpu: Any = SimpleNamespace(device=named_device("sm_90a"), free_bytes=lambda: free)
    backend: Any = SimpleNamespace(forget=lambda: None)
    return sets_that_fit(_GEMM, contenders, gpu, backend)


def test_three_quarters_of_the_free_memory_are_shared_out() -> None:
    assert sets(free=8 * _ONE, contenders=1) == 6
    assert sets(free=8 * _ONE, contenders=3) == 2


@pytest.mark.parametrize(
    ("contenders", "advice"), [(1, "12,000,000 bytes.*smaller problem"), (3, "beside 2 others.*fewer opponents")]
)
def test_what_does_not_fit_is_told_what_to_do(contenders: int, advice: str) -> None:
    with pytest.raises(DoesNotFit, match=advice):
        sets(free=_ONE, contenders=contenders)
