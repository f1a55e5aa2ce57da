"""What a report says of cp.async where it is not served as a store is."""

from __future__ import annotations

import pytest

from service.explain.gather import Report
from service.explain.wording import sections
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.explain import chosen, explain


@pytest.mark.parametrize(("family", "arch", "through", "past"), [
    ("simt", "sm_90a", True, True), ("simt", "sm_80", False, False), ("mma", "sm_90a", False, True),
])  # fmt: skip
def test_what_figures_of_cp_async_mean_on_sm_90a_is_said(family: str, arch: str, through: bool, past: bool) -> None:
    """Copies of A by ``simt`` are of 4 bytes, which go through L1, all others of 16."""
    gemm, device = Gemm.parse("256x256x64:f32:nn" if family == "simt" else "256x256x64:f16:nn"), named_device(arch)
    config = chosen(gemm, device, family, "pipeline=async3" if family == "simt" else "")
    (section,) = [part for part in sections(Report(explain(gemm, config, device))) if part.title == "Shared memory"]
    text = " ".join(section.notes)
    assert ("Conflicts of cp.async through L1" in text) is through
    assert ("of 16 bytes, which go past L1, are the fewest" in text) is past
