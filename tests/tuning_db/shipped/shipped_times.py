"""Times of configs, as shipped files have them."""

from __future__ import annotations

from typing import Any

from tests.contract.storage.databases import config
from tirgemm.gemm import Regime

H200 = "cuda:sm_90a:nvidia-h200:132"

REGIME: Regime = "sustained"


def times(*numbers: int) -> list[tuple[Any, float]]:
    return [(config(number), 10.0 + number) for number in numbers]
