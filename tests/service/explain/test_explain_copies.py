"""Reports on cp.async where it is not served as a store is."""

from __future__ import annotations

import pytest

from tirgemm.analysis.bank_collision import worst_collision
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.explain.drawings import drawings
from tirgemm.service.explain.gather import Report
from tirgemm.service.explain.report_text import sections
from tirgemm.tuning.explain import chosen, explain

H200 = named_device("sm_90a")


@pytest.mark.parametrize(
    ("family", "arch", "through", "past"),
    [
        ("simt", "sm_90a", True, True),
        ("simt", "sm_80", False, False),
        ("mma", "sm_90a", False, True),
    ],
)
def test_what_figures_of_cp_async_mean_on_sm_90a_is_said(family: str, arch: str, through: bool, past: bool) -> None:
    """Copies of A by ``simt`` are of 4 bytes, which go through L1, all others of 16."""
    gemm, device = Gemm.parse("256x256x64:f32:nn" if family == "simt" else "256x256x64:f16:nn"), named_device(arch)
    config = chosen(gemm, device, family, "pipeline=async3" if family == "simt" else "")
    (section,) = [part for part in sections(Report(explain(gemm, config, device))) if part.title == "Shared memory"]
    text = " ".join(section.notes)
    assert ("Conflicts of cp.async through L1" in text) is through
    assert ("of 16 bytes, which go past L1, are the fewest" in text) is past


def test_the_example_of_a_copy_through_l1_has_the_passes_of_what_it_reads() -> None:
    """Rows of B begin within L1's lines: what is written has no conflicts, what is read has two words of some banks."""
    gemm = Gemm.parse("511x513x515:f32:nn")
    explanation = explain(gemm, chosen(gemm, H200, "simt", "pipeline=async3"), H200)
    copies = [a for a in explanation.main.memory.accesses if (a.op, a.space, a.width) == ("copy", "shared", 4)]
    for access in copies:
        assert access.example is not None
        assert sum(passes for *_, passes in access.example.phases) * access.requests >= access.wavefronts
    (reading, *_) = [a for a in copies if a.operand == "b"]
    assert reading.conflicts
    assert reading.example is not None
    assert worst_collision(reading.example) is None
    (picture,) = (each.svg for each in drawings(explanation) if each.title == "Banks: cp.async, 4 bytes of b_tile")
    assert "1 wavefront, as written; its conflicts are of what it reads" in picture
