"""The requests that the analysis evaluates from the IR, against those of the generated source as it runs on the CPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.contract.families.access_log import LoggedSite, logged_sites
from tirgemm.analysis.banks import coalescing
from tirgemm.analysis.banks import wavefronts as model
from tirgemm.analysis.memory_traffic import KernelAnalysis, analyse
from tirgemm.config import Value
from tirgemm.families import FAMILIES
from tirgemm.gemm import DTYPE_BYTES, Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build import cuda
from verification.emulator.operands import KernelCall

_DEVICE = named_device("sm_90a")
_FAMILY = FAMILIES["simt"]


def _logged(sites: list[LoggedSite], gemm: Gemm) -> Counter[tuple[str, bool, str]]:
    """Requests, wavefronts, conflicts and sectors by memory and direction, as the source makes them."""
    counts: Counter[tuple[str, bool, str]] = Counter()
    for site in sites:
        # An element of a tensor: the source does not spell its type.
        width = site.width if site.width > 0 else DTYPE_BYTES[gemm.dtype if site.memory in "ab" else gemm.out]
        counts[site.memory, site.store, "requests"] += len(site.addresses)
        if site.memory == "shared":
            kind = f"{'store' if site.store else 'load'}.{8 * width}"
            report = model.analyze(site.addresses, kind, site.active)
            counts[site.memory, site.store, "wavefronts"] += report.total_wavefronts
            counts[site.memory, site.store, "conflicts"] += report.total_conflicts
        else:
            sectors = coalescing.analyze(site.addresses, width, site.active).sectors
            counts[site.memory, site.store, "sectors"] += int(sectors.sum())
    return +counts


def _evaluated(analysis: KernelAnalysis) -> Counter[tuple[str, bool, str]]:
    counts: Counter[tuple[str, bool, str]] = Counter()
    for access in analysis.accesses:
        shared = access.space == "shared"
        for name in ("requests", "wavefronts", "conflicts") if shared else ("requests", "sectors"):
            counts["shared" if shared else access.operand, access.op == "store", name] += getattr(access, name)
    return +counts


# Edges of rows, columns and k; strides of rows that begin in the middle of a sector; conflicts in stores and in loads.
@pytest.mark.parametrize(
    ("text", "knobs"),
    [
        ("64x64x64:f32:nn", {}),
        ("20x72x88:f16:tn:beta:bias", {}),
        ("37x31x45:f32:nt:alpha", {"pipeline": "double"}),
        ("70x66x70:f32:nt", {"pipeline": "none", "pad": 0, "block_m": 32, "block_n": 32, "lane_order": "row"}),
        ("1..37x50x36:f32:nn:batch=2", {}),
    ],
)
def test_requests_are_those_of_the_running_source(text: str, knobs: dict[str, Value], tmp_path: Path) -> None:
    gemm = Gemm.parse(text)
    config = _FAMILY.default(gemm, _DEVICE, "sustained").with_(**knobs)
    program = _FAMILY.instantiate(gemm, config, _DEVICE)
    host, module, source = cuda.lower_all(program, _DEVICE.arch)
    launch = cuda.checked_launch(program, host)
    sites = logged_sites(source, launch, KernelCall.random(gemm, gemm.m_max, seed=5), tmp_path)
    (analysis,) = analyse(module, launch, gemm, _DEVICE)
    assert not analysis.unknown
    assert _evaluated(analysis) == _logged(sites, gemm)


def test_a_wrong_address_would_show(tmp_path: Path) -> None:
    """The log of a source whose stores to shared memory lie 32 times as far apart is another."""
    gemm = Gemm.parse("64x64x64:f32:nn")
    program = _FAMILY.instantiate(gemm, _FAMILY.default(gemm, _DEVICE, "sustained"), _DEVICE)
    host, module, source = cuda.lower_all(program, _DEVICE.arch)
    launch = cuda.checked_launch(program, host)
    sites = logged_sites(source, launch, KernelCall.random(gemm, gemm.m_max, seed=5), tmp_path)
    changed = [
        LoggedSite(s.memory, s.store, s.width, s.addresses * 32, s.active) if s.memory == "shared" and s.store else s
        for s in sites
    ]
    (analysis,) = analyse(module, launch, gemm, _DEVICE)
    assert _evaluated(analysis) != _logged(changed, gemm)
