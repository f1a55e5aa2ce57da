"""Times of one problem's candidates, made comparable where they were measured under different clocks.

A sample set that has a reference beside it (``torch.matmul``, on a CPU ``numpy_f32``) is taken relative to that, then
scaled by the reference's median over all of them. Those of a search on a GPU have one kernel of the problem beside
them, the yardstick, and are taken relative to that: scaled by its median over all of them, or, where others were timed
without it, by its recorded time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import YARDSTICK, Candidate, SampleSet, Status
from tirgemm.tuning.records.store import Store

REFERENCES = ("torch.matmul", "numpy_f32")
# A reference that is this many times faster or slower than usual was disturbed.
_DISTURBED = 1.6
# Why samples of a problem's own m were taken. Races say more than the search's one after the other, and those that
# chose nothing most.
_STAGES = ("search", "noise", "other_regime", "selection", "report")


def reference_us(candidates: Iterable[Candidate]) -> float | None:
    """Median of the reference over the search's runs; a run that measured several candidates counts once."""
    runs = {
        (samples.conditions.get("at"), reference)
        for candidate in candidates
        for samples in candidate.search_sets
        if (reference := _beside(samples)) is not None
    }
    return statistics.median(us for _, us in runs) if runs else None


def comparable_times(candidates: Sequence[Candidate]) -> dict[Config, float | None]:
    """Microseconds of every candidate that was tried, None where it failed; of several measurements the median.

    ``candidates`` are those of one problem on one device in one regime.
    """
    usual, yardsticks = reference_us(candidates), _yardsticks_us(candidates)
    times: dict[Config, float | None] = {}
    for candidate in candidates:
        measured = [_time(samples, candidate.config, usual, yardsticks) for samples in candidate.search_sets]
        if candidate.status is Status.MEASURED and measured:
            times[candidate.config] = statistics.median(measured)
        elif candidate.status not in (Status.MEASURED, Status.PRUNED):
            times[candidate.config] = None
    return times


def fastest(candidates: Sequence[Candidate], count: int = 1) -> list[Config]:
    """The configs of the fastest, fastest first."""
    times = {config: us for config, us in comparable_times(candidates).items() if us is not None}
    return sorted(times, key=lambda config: times[config])[:count]


def by_stage(sample_sets: Iterable[SampleSet], regime: Regime) -> list[SampleSet]:
    """The sample sets that were taken in ``regime`` at the problem's own m, that which says most of a kernel's speed
    last."""
    staged = [samples for samples in sample_sets if samples.reason in _STAGES]
    mine = [samples for samples in staged if samples.conditions.get("regime", regime) == regime]
    return sorted(mine, key=lambda samples: _STAGES.index(samples.reason))


def known_candidates(store: Store, gemm: Gemm, device: Device, regime: Regime) -> list[Candidate]:
    """The recorded candidates of a problem, and those that were shipped for another driver or TVM: all that may be
    the fastest, for a race that finds out."""
    recorded, offer = store.candidates(gemm, device.key, regime), store.offer(gemm, device, regime)
    known = {candidate.config for candidate in recorded}
    return [*recorded, *(c for c in (offer.candidates if offer else ()) if c.config not in known)]


def _beside(samples: SampleSet) -> float | None:
    """The reference's median in the same run."""
    return next(
        (statistics.median(samples.baselines[name]) for name in REFERENCES if samples.baselines.get(name)), None
    )


def _yardsticks_us(candidates: Iterable[Candidate]) -> dict[str, float]:
    """How long each yardstick took beside candidates, in the median. Nothing where a candidate that is none was timed
    alone: its time is to be compared with the yardsticks' recorded ones."""
    beside: dict[str, list[float]] = {}
    alone: set[str] = set()
    for candidate in candidates:
        for samples in candidate.search_sets:
            if taken := samples.baselines.get(YARDSTICK):
                beside.setdefault(samples.conditions["yardstick"], []).append(statistics.median(taken))
            else:
                alone.add(candidate.config.digest)
    return {} if alone - beside.keys() else {digest: statistics.median(us) for digest, us in beside.items()}


def _time(samples: SampleSet, config: Config, usual: float | None, yardsticks: Mapping[str, float]) -> float:
    """Microseconds of a measurement of ``config``, comparable with others of the problem."""
    beside = samples.baselines.get(YARDSTICK)
    if beside and (us := yardsticks.get(samples.conditions["yardstick"])):
        return samples.median_us / statistics.median(beside) * us
    if not beside and config.digest in yardsticks:
        return yardsticks[config.digest]
    reference = _beside(samples)
    scale = usual / reference if usual and reference else 1.0
    return samples.comparable_us * (scale if 1 / _DISTURBED < scale < _DISTURBED else 1.0)
