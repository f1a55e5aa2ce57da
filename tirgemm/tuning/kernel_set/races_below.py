"""Races between the sizes that a search of a range compares, as its records keep them.

A kernel that was built for the range up to a compared size is timed at a smaller m there. Those samples are a sample
set of the candidate at the compared size, with the reason ``smaller_m`` and the m in its conditions: they say nothing
of its time at that size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tirgemm.config import Config
from tirgemm.gemm import Gemm
from tirgemm.tuning.kernel_set.losses import losses_at
from tirgemm.tuning.kernel_set.partition import Loss
from tirgemm.tuning.records import SMALLER_M, Candidate, SampleSet

# By m, the samples of each config of one race there.
RacesBelow = dict[int, dict[Config, SampleSet]]


def kept(samples: SampleSet, m: int) -> SampleSet:
    """The sample set that is kept of a candidate that was raced at a smaller m."""
    return replace(samples, reason=SMALLER_M, conditions=samples.conditions | {"m": m})


def races_below(candidates: Iterable[Candidate]) -> RacesBelow:
    """The latest race at each smaller m between the candidates of one compared size."""
    of_m: dict[int, list[tuple[Config, SampleSet]]] = {}
    for candidate in candidates:
        for samples in candidate.sample_sets:
            if samples.reason == SMALLER_M:
                of_m.setdefault(int(samples.conditions["m"]), []).append((candidate.config, samples))
    return {m: latest_race(raced) for m, raced in of_m.items()}


def latest_race(raced: Sequence[tuple[Config, SampleSet]]) -> dict[Config, SampleSet]:
    """Of sample sets of several races those of the latest, all of which began at one time."""
    latest = max((_began(samples) for _, samples in raced), default="")
    return {config: samples for config, samples in raced if _began(samples) == latest}


def with_races(
    problems: Sequence[Gemm], losses: Sequence[Mapping[Config, Loss]], races: RacesBelow, seed: int
) -> list[dict[Config, Loss]]:
    """``losses`` at each of ``problems`` with what the races at their m show in the place of what is estimated, where
    two or more of the configs were raced."""
    shown = []
    for gemm, at_size in zip(problems, losses, strict=True):
        raced = {config: samples for config, samples in races.get(gemm.m_max, {}).items() if config in at_size}
        ratios = {config: loss.ratio for config, loss in at_size.items()}
        shown.append(losses_at(ratios, raced, seed) if len(raced) > 1 else dict(at_size))
    return shown


def _began(samples: SampleSet) -> str:
    return str(samples.conditions.get("at", ""))
