"""Random cases of wgmma, and the CUDA source of one small kernel."""

from __future__ import annotations

from functools import cache

from tests.helpers.named_config import named_config
from tirgemm.families.wgmma import Wgmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from verification.altered import lowered
from verification.cases import Case, random_cases

FAMILY = Wgmma()

H200 = named_device("sm_90a")

STAGED_PINGPONG = (
    "777x1003x136:bf16:nt",
    "tile_m=64 tile_n=32 stages=3 schedule=pingpong cluster_m=2 epilogue=staged group=4",
)


@cache
def cases() -> list[Case]:
    return random_cases(FAMILY, H200, 90, seed=5)


@cache
def source() -> str:
    """The CUDA source of a small kernel: pingpong in a cluster."""
    text, knobs = STAGED_PINGPONG
    gemm = Gemm.parse(text)
    return lowered(gemm, named_config(FAMILY, gemm, H200, knobs), H200)[1]
