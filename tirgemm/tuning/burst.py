"""A burst: several built configs of one gemm, verified one by one, then timed together in a few tens of milliseconds each.

What the search over many problems measures with. All share one set of operands; a reference (``torch.matmul``) runs
among them, so that bursts under different clocks can be compared. A kernel that hangs or crashes costs itself and not
the others: it is caught in its verification, or when those of a burst that died are timed alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tirgemm.config import Config
from tirgemm.errors import MeasurementFailed
from tirgemm.tuning.evaluate import wrong_message
from tirgemm.tuning.measure import MeasurementTimedOut, Measurer
from tirgemm.tuning.measured_configs import Entry
from tirgemm.tuning.records import SampleSet, Status

MIN_SAMPLES = {"sustained": 6, "isolated": 20}


@dataclass(frozen=True)
class Contender:
    """A built config: its package, and the entry that it will become. ``verified`` skips its verification."""

    entry: Entry
    package: bytes
    verified: bool = False

    @property
    def config(self) -> Config:
        return self.entry.config


@dataclass(frozen=True)
class Burst:
    """What one regime gave: entries of the contenders that took part, the reference's median, the clock and power."""

    regime: str
    entries: tuple[Entry, ...]
    reference_us: float | None
    clock_mhz: int | None
    power_w: float | None


def verified(measurer: Measurer, contender: Contender, seed: int = 0) -> Contender:
    """The contender, its entry's status and error as verification at level ``candidate`` found them."""
    if contender.verified:
        return contender
    try:
        found = measurer.verify(contender.package, level="candidate", seed=seed)
    except MeasurementFailed as error:
        return replace(contender, entry=_failed(contender.entry, error))
    status, message = (Status.MEASURED, "") if found.passed else (Status.WRONG, wrong_message(found))
    return replace(contender, entry=replace(contender.entry, status=status, error=found.error, message=message))


def burst(
    measurer: Measurer,
    contenders: Sequence[Contender],
    regime: str,
    *,
    reference: str | None,
    seconds: float,
    seed: int = 0,
) -> Burst:
    """Time contenders that are right, ``seconds`` each. One that cannot be timed has a status that says so."""
    try:
        return _together(measurer, contenders, regime, reference, seconds, seed)
    except MeasurementFailed as error:
        if len(contenders) == 1 and reference is not None:  # it may have been the reference that died
            return burst(measurer, contenders, regime, reference=None, seconds=seconds, seed=seed)
        if len(contenders) == 1:
            return Burst(regime, (_failed(contenders[0].entry, error),), None, None, None)
    alone = [
        burst(measurer, [contender], regime, reference=reference, seconds=seconds, seed=seed)
        for contender in contenders
    ]
    references = [one.reference_us for one in alone if one.reference_us is not None]
    shared = statistics.median(references) if references else None
    entries = [_scaled(one.entries[0], shared, one.reference_us) for one in alone]
    last = next((one for one in reversed(alone) if one.clock_mhz is not None), alone[-1])
    return Burst(regime, tuple(entries), shared, last.clock_mhz, last.power_w)


def _together(
    measurer: Measurer, contenders: Sequence[Contender], regime: str, reference: str | None, seconds: float, seed: int
) -> Burst:
    first, *rest = contenders
    against = {contender.config.digest: contender.package for contender in rest}
    found = measurer.time(
        first.package, regime, against=against, baselines=(reference,) if reference else (), reason="search", seed=seed,
        min_samples=MIN_SAMPLES[regime], budget_s=seconds * (len(contenders) + bool(reference)), shared=True,
    )  # fmt: skip
    samples = [found.samples_us, *(found.baselines[digest] for digest in against)]
    entries = tuple(_timed(c.entry, raw) for c, raw in zip(contenders, samples, strict=True))
    beside = found.baselines.get(reference or "", ())
    return Burst(regime, entries, statistics.median(beside) if beside else None, *_conditions(found))


def _timed(entry: Entry, samples: Sequence[float]) -> Entry:
    low, _, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else (samples[0],) * 3
    return replace(entry, us=statistics.median(samples), spread_us=high - low, samples=len(samples))


def _scaled(entry: Entry, shared: float | None, own: float | None) -> Entry:
    """The entry as if it had run beside the shared reference."""
    if entry.us is None or not shared or not own:
        return entry
    return replace(entry, us=entry.us * shared / own)


def _failed(entry: Entry, error: MeasurementFailed) -> Entry:
    status = Status.TIMED_OUT if isinstance(error, MeasurementTimedOut) else Status.CRASHED
    return replace(entry, status=status, message=str(error))


def _conditions(found: SampleSet) -> tuple[int | None, float | None]:
    conditions: Mapping[str, object] = found.conditions
    clock, power = conditions.get("clock_mhz"), conditions.get("power_w")
    return (
        clock if isinstance(clock, int) else None,
        float(power) if isinstance(power, (int, float)) else None,
    )  # fmt: skip
