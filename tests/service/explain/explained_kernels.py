"""Explanations of small kernels, for the tests of reports and pages."""

from __future__ import annotations

from typing import Any

from tirgemm.analysis.explanation import Explanation
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.explain import chosen, explain

SMALL = Gemm.parse("129x67x31:f16:nt")

A100 = named_device("sm_80")

H200 = named_device("sm_90a")


def explained(gemm: Gemm = SMALL, family: str = "simt", knobs: str = "", **options: Any) -> Explanation:
    device = H200 if family == "wgmma" else A100
    return explain(gemm, chosen(gemm, device, family, knobs), device, **options)
