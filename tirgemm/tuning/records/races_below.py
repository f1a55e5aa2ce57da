"""Races between the sizes that a search of a range compares, as its records keep them.

A kernel that was built for the range up to a compared size is timed at a smaller m there. Those samples are a sample
set of the candidate at the compared size, with the reason ``smaller_m`` and the m in its conditions: they say nothing
of its time at that size. What ran in the race and is no measured candidate there has its samples beside the fastest's,
under its config's digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tirgemm.config import Config
from tirgemm.tuning.records import SMALLER_M, Candidate, SampleSet

# By m, the samples of each config of one race there.
RacesBelow = dict[int, dict[Config, SampleSet]]


def races_below(candidates: Iterable[Candidate], others: Mapping[str, Config] | None = None) -> RacesBelow:
    """The latest race at each smaller m between the candidates of one compared size, and those of ``others``, configs
    by their digests, that ran beside them."""
    own: dict[int, list[tuple[Config, SampleSet]]] = {}
    beside: dict[int, list[tuple[Config, SampleSet]]] = {}
    for candidate in candidates:
        for samples in candidate.sample_sets:
            if samples.reason == SMALLER_M:
                m = int(samples.conditions["m"])
                own.setdefault(m, []).append((candidate.config, samples))
                beside.setdefault(m, []).extend(
                    (others[name], SampleSet(taken, SMALLER_M, conditions=samples.conditions))
                    for name, taken in samples.baselines.items()
                    if others is not None and name in others
                )
    return {m: latest_race([*beside[m], *raced]) for m, raced in own.items()}


def latest_race(raced: Sequence[tuple[Config, SampleSet]]) -> dict[Config, SampleSet]:
    """Of sample sets of several races those of the latest, all of which began at one time, ``conditions["at"]``."""
    latest = max((samples.began for _, samples in raced), default="")
    return {config: samples for config, samples in raced if samples.began == latest}
