"""Optional members of a kernel's timings, asserted to be there."""

from __future__ import annotations

from tirgemm.gemm import Regime
from tirgemm.timings import ConfigOrigin, SearchSummary, Timing, Timings


def timing_of(timings: Timings, regime: Regime = "sustained") -> Timing:
    timing = timings.of(regime)
    assert timing is not None
    return timing


def search_of(timings: Timings) -> SearchSummary:
    assert timings.search is not None
    return timings.search


def shipped_of(timings: Timings) -> ConfigOrigin:
    shipped = search_of(timings).shipped
    assert shipped is not None
    return shipped
