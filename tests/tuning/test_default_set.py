"""Kernel sets of defaults: where a range of m is cut, and that the parts serve it."""

from __future__ import annotations

import itertools

import pytest

from tirgemm.artifact.manifest import MAX_KERNELS
from tirgemm.detect import device
from tirgemm.errors import Unsupported
from tirgemm.families import family_named
from tirgemm.families.base import require_valid
from tirgemm.gemm import Gemm
from tirgemm.tuning.default_set import default_parts


@pytest.mark.parametrize(
    ("text", "place", "least"),
    [
        ("1..2048x4096x4096:f16:nt", "sm_90a", 4),
        ("3..700x1000x1002:bf16:nt:bias:invariant", "sm_90a", 2),
        ("1..8192x1024x1024:f32:nt", "cpu", 1),
        ("4..5x64x64:f32:nt", "cpu", 1),
    ],
)
def test_parts_follow_one_another_and_their_configs_are_valid(text: str, place: str, least: int) -> None:
    gemm, where = Gemm.parse(text), device(place)
    parts = default_parts(gemm, where, "sustained")
    assert least <= len(parts) <= MAX_KERNELS
    assert parts[0].gemm.m_min == gemm.m_min
    assert parts[-1].gemm.m_max == gemm.m_max
    for before, part in itertools.pairwise(parts):
        assert before.gemm.m_max + 1 == part.gemm.m_min
        assert before.config != part.config
    for part in parts:
        require_valid(family_named(part.config.family), part.gemm, part.config, where)
        assert part.gemm.with_(m=gemm.m) == gemm


def test_what_no_family_writes_is_refused() -> None:
    with pytest.raises(Unsupported):
        default_parts(Gemm.parse("1..64x64x64:f16:nt:acc=f16"), device("cpu"), "sustained")
