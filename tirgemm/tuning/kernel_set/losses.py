"""Slowdown of each config at each size of m, relative to the fastest config there.

It is measured where the search timed the config at that size; at other sizes it follows from the time that the ranking
model or the analytic estimate predicts, corrected by the measurements at the next sizes.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import family_named
from tirgemm.families.choice import expected_times_us
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.kernel_set.partition import Floats, Loss

# Of each size so many of the fastest are looked at between sizes.
_FAST = 16
# Of the logarithm by which a config took longer than expected at one size, so much is expected at others: on an H200
# 0.27 of it was there at sizes between (189 configs of six layers, each searched there by itself).
CARRIED = 0.3


def fast_configs(measured: Iterable[Mapping[Config, Loss]]) -> list[Config]:
    """What is among the fastest at one of the sizes that were measured, and may be the fastest between two of them."""
    fastest = (sorted(at_size, key=lambda config: at_size[config].ratio)[:_FAST] for at_size in measured)
    return list(dict.fromkeys(config for configs in fastest for config in configs))


def untried(
    problems: Sequence[Gemm], proposed: Mapping[Gemm, Sequence[Config]], measured: Mapping[Gemm, Collection[Config]]
) -> dict[Gemm, list[Config]]:
    """Of what is ``proposed`` for those of ``problems``, by rising m, that were not ``measured`` what was measured
    neither at the next such size below nor above."""
    places = [place for place, gemm in enumerate(problems) if gemm in measured]
    left = {}
    for place, gemm in enumerate(problems):
        if gemm not in measured:
            above = bisect(places, place)
            beside = [measured[problems[near]] for near in places[max(0, above - 1) : above + 1]]
            left[gemm] = [config for config in proposed.get(gemm, ()) if not any(config in known for known in beside)]
    return left


def losses_everywhere(
    problems: Sequence[Gemm],
    configs: Sequence[Config],
    measured: Mapping[Gemm, Mapping[Config, Loss]],
    device: Device,
    regime: Regime,
    untried: Mapping[Gemm, Collection[Config]] | None = None,
) -> list[dict[Config, Loss]]:
    """What ``configs`` lose at each of ``problems``, which are by rising m: at those ``measured`` what they lost there;
    at others, by times that are estimated.

    Where nothing was measured the estimate is what the model expects. Else a config is estimated where it was measured
    at the next size below or above, to take what the model expects and longer by a share, ``CARRIED``, of what it took
    longer there, beside the others: of the logarithm, between two such sizes of the interpolated one. What is
    ``untried`` at a size, and one of ``configs``, is estimated to take what the model expects there.
    """
    if not configs:
        return [dict(measured.get(gemm, {})) for gemm in problems]
    expected = expected_times_us(problems, {c: family_named(c.family) for c in configs}, device, regime)
    gains = np.array(
        [
            [measured[gemm][config].ratio if config in measured.get(gemm, ()) else np.nan for config in configs]
            for gemm in problems
        ]
    )
    times = expected
    if measured:
        corrections = _corrections(np.log(gains) - np.log(expected))
        for row, gemm in zip(corrections, problems, strict=True):
            row[[config in (untried or {}).get(gemm, ()) for config in configs]] = 0.0
        times = expected * np.exp(CARRIED * corrections)
    losses = []
    for gemm, row in zip(problems, times, strict=True):
        if gemm in measured:
            losses.append(dict(measured[gemm]))
            continue
        known = {config: us for config, us in zip(configs, row.tolist(), strict=True) if not math.isnan(us)}
        best = min(known.values(), default=0.0)
        losses.append({config: Loss(us / best, us / best) for config, us in known.items()})
    return losses


def _corrections(errors: Floats) -> Floats:
    """The logarithms of ``errors``, a row for each size, NaN where nothing is known, beside the median of their row; in
    rows of which nothing is known those of the next rows of which something is."""
    rows = np.flatnonzero(~np.isnan(errors).all(axis=1))
    beside = errors[rows] - np.nanmedian(errors[rows], axis=1, keepdims=True)
    places = np.arange(len(errors))
    after = np.clip(np.searchsorted(rows, places), 0, len(rows) - 1)
    before = np.clip(np.searchsorted(rows, places, side="right") - 1, 0, len(rows) - 1)
    apart = rows[after] - rows[before]
    share = np.where(apart > 0, (places - rows[before]) / np.maximum(apart, 1), 0.0)[:, None]
    low, high = beside[before], beside[after]
    both = (1 - share) * low + share * high
    return np.where(np.isnan(low), high, np.where(np.isnan(high), low, both))
