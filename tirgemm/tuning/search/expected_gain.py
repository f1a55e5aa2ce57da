"""Expected improvement of a search's next batch, by which it is decided whether the batch is worth its time.

A candidate's time is taken as lognormal: around what the model expects of it, as wide as the model's errors were on
what was measured of this problem, where those near the best count most. The expected improvement (Jones, Schonlau,
Welch, Journal of Global Optimization 13, 1998) of a batch is that of its fastest member over the best that was
measured, members being independent:

    E[max(0, max_i log(best / t_i))] = integral over x > 0 of 1 - prod_i P(log(best / t_i) <= x)

Models are wrong in ways that their errors do not show: what the last batches brought is expected to fade by half from
batch to batch, and counts where it is more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# The error of a model in log time before anything was measured, and for how many candidates that counts.
PRIOR_ERROR, PRIOR_COUNT = 0.02, 4
# An error counts by the candidate's speed beside the best's to this power.
SHARPNESS = 8
# The share of a batch's gain that the next one is expected to bring, if nothing else tells.
FADES = 0.5
# So many measured candidates count as one batch of those that came before.
WINDOW = 8
# Of the integral: steps, and how many errors beyond the best-expected member it ends.
_STEPS, _REACH = 256, 5.0
_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True)
class ModelErrors:
    """What a model got wrong: for measured candidates of a problem the logarithm of the time that it expects of them,
    not having learnt from them, over the measured one (``errors``), and that of their measured speed over the best's
    (``speeds``), never above 0."""

    errors: Floats
    speeds: Floats


def expected_gain(speeds: Floats, errors: ModelErrors, times: Sequence[float]) -> float:
    """The gain in speed that a batch is expected to bring, as a share of today's.

    ``speeds``: of each member the logarithm of its expected speed over the best measured one's. ``errors``: what the
    model got wrong so far. ``times``: what was measured, in its order.
    """
    return math.expm1(max(improvement(speeds, spread(errors)), decayed_gain(gains(times))))


def spread(errors: ModelErrors) -> float:
    """The standard deviation of a model's errors, pulled towards the usual one where they are few."""
    if not len(errors.errors):
        return PRIOR_ERROR
    weights = np.exp(SHARPNESS * errors.speeds)
    centred = errors.errors - np.average(errors.errors, weights=weights)
    squares = float((weights * np.square(centred)).sum()) + PRIOR_COUNT * PRIOR_ERROR**2
    return math.sqrt(squares / (float(weights.sum()) + PRIOR_COUNT))


def improvement(speeds: Floats, error: float) -> float:
    """The expected logarithm of a batch's improvement over the best, never below 0."""
    if not len(speeds):
        return 0.0
    end = max(0.0, float(speeds.max())) + _REACH * error
    x = np.linspace(0.0, end, _STEPS)
    below = 0.5 * (1.0 + _erf((x[:, None] - speeds[None, :]) / (error * math.sqrt(2.0))))
    above = 1.0 - below.prod(axis=1)
    return float((above[1:] + above[:-1]).sum() * (x[1] - x[0]) / 2)  # the trapezoidal rule


def gains(times: Sequence[float]) -> list[float]:
    """The logarithm of what each ``WINDOW`` of measured times, in their order, gained over the best before it."""
    best = [min(times[:end]) for end in range(WINDOW, len(times) + 1, WINDOW)]
    return [math.log(before / after) for before, after in pairwise(best)]


def decayed_gain(gained: Sequence[float]) -> float:
    """What a batch is expected to bring by what those before it gained, the latest last."""
    return max((gain * FADES**age for age, gain in enumerate(reversed(gained), start=1)), default=0.0)
