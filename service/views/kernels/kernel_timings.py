"""Times of a stored kernel in each regime beside what ran with it in the same run: medians, and the stored samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tirgemm.gemm import REGIMES, Regime
from tirgemm.service.views.kernels.distributions import Quartiles, RatioSpread, ratio_spread
from tirgemm.timings import NotTimed, Timing
from tirgemm.tuning.records import SMALLER_M, KernelRecord, SampleSet

# By how much a median and the same one in a kernel's document may differ: digits.
SAME_MEDIAN = 1e-3


@dataclass(frozen=True, slots=True)
class TimedEntry:
    """What ran: ``name`` is empty for the kernel itself. ``quartiles`` and ``samples_us`` of the stored samples, None
    and empty where there are none; ``speed`` is the time of a baseline over the kernel's."""

    name: str
    median_us: float
    tflops: float
    quartiles: Quartiles | None
    samples_us: tuple[float, ...]
    speed: RatioSpread | None


@dataclass(frozen=True, slots=True)
class RegimeTimes:
    """One run in a regime: the kernel first, then the default, then the other baselines from the fastest on; without
    entries ``missing`` says why. ``busy`` warns where the machine had more to do than CPUs."""

    regime: Regime
    entries: tuple[TimedEntry, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)
    missing: str | None = None
    busy: str | None = None


def regime_times(record: KernelRecord, samples: Sequence[SampleSet]) -> tuple[RegimeTimes, ...]:
    """The kernel's own regime first. ``samples`` are those of its config, see ``kernel_samples``."""
    order = (record.regime, *(regime for regime in REGIMES if regime != record.regime))
    return tuple(_times(record, regime, samples) for regime in order)


def _times(record: KernelRecord, regime: Regime, samples: Sequence[SampleSet]) -> RegimeTimes:
    told = record.timings.regimes.get(regime)
    if isinstance(told, NotTimed):
        return RegimeTimes(regime, missing=told.error)
    if told is None:
        return RegimeTimes(regime, missing="nobody ran this build" if record.role == "unverified" else "not measured")
    taken = _run_of(told, samples)
    ours = taken.samples_us if taken is not None else ()

    def entry(name: str, us: float, samples_us: tuple[float, ...], speed: RatioSpread | None) -> TimedEntry:
        quartiles = Quartiles.of(samples_us) if samples_us else None
        return TimedEntry(name, us, record.gemm.flops / us / 1e6, quartiles, samples_us, speed)

    entries = [entry("", told.median_us, ours, None)]
    for name, time in told.baselines.items():
        theirs = taken.baselines.get(name, ()) if taken is not None else ()
        entries.append(entry(name, time.median_us, theirs, ratio_spread(name, time.ratio, theirs, ours)))
    entries.sort(key=lambda entry: (entry.name != "", entry.name != "default", entry.median_us))
    return RegimeTimes(regime, tuple(entries), told.conditions, busy=told.busy)


def _run_of(timing: Timing, samples: Sequence[SampleSet]) -> SampleSet | None:
    """The newest samples at the problem's own m with this median."""
    own = (s for s in reversed(samples) if s.reason != SMALLER_M)
    same = (s for s in own if abs(s.median_us / timing.median_us - 1) <= SAME_MEDIAN)
    return next(same, None)
