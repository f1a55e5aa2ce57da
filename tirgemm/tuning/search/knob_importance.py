"""Permutation importance of knobs: how much worse a model of the times predicts once a knob's values are shuffled.

Breiman, Random Forests, 2001; of kernel tuners' spaces Tørring et al., Towards a Benchmarking Suite for Kernel Tuners,
2023. The model is of boosted trees, and is asked of candidates that it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm._extras import needed_by
from tirgemm.config import Config, Value
from tirgemm.errors import InvalidRequest

# With fewer measured candidates a fold holds too few to tell a knob from luck.
MIN_CANDIDATES = 40
# A model that explains less of what it has not seen knows next to nothing that its knobs could share.
MIN_EXPLAINED = 0.2
# Slower than so many times the fastest is as bad as that: one config that is 300 times slower would be all there is.
SLOWEST = 4.0
_FOLDS = 5
_SHUFFLES = 8
_ROUNDS = 60
_PARAMETERS: dict[str, Any] = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.1,
    "max_bin": 64,
    "lambda": 1.0,
    "seed": 0,
    "nthread": 1,
    "verbosity": 0,
}


@dataclass(frozen=True, slots=True)
class KnobShare:
    """A knob's share of the importance of all."""

    knob: str
    share: float


@dataclass(frozen=True, slots=True)
class KnobImportance:
    """The ``shares`` of a family's knobs, which add up to 1, the largest first: of those that have more than one value
    among the ``candidates`` that were measured. ``explained``: the share of the variance of the times' logarithm that
    the model explains of candidates that it was not fitted to."""

    candidates: int
    explained: float
    shares: tuple[KnobShare, ...]


def knob_importance(times_us: Mapping[Config, float]) -> KnobImportance:
    """The importance of the knobs of one family's measured configs of one problem, whatever order they come in.

    Raises InvalidRequest for fewer than MIN_CANDIDATES, for equal times, and where the model explains less than
    MIN_EXPLAINED; MissingExtra without XGBoost.
    """
    if len(times_us) < MIN_CANDIDATES:
        raise InvalidRequest(f"{len(times_us)} measured candidates are too few: it takes {MIN_CANDIDATES}")
    configs = sorted(times_us, key=lambda config: config.digest)
    columns = _columns(configs)
    times = np.array([times_us[config] for config in configs])
    losses = np.log(np.minimum(times / times.min(), SLOWEST))
    variance = float(losses.var())
    if not columns or not variance:
        raise InvalidRequest(f"the {len(configs)} measured candidates have one time, or no knob in which they differ")
    error, increases = _errors(np.array(list(columns.values()), dtype=np.float32).T, losses)
    explained = 1 - error / variance
    total = float(increases.sum())
    if explained < MIN_EXPLAINED or not total:
        raise InvalidRequest(
            f"a model of the knobs explains {max(explained, 0):.0%} of the differences between candidates that it has "
            f"not seen; it takes {MIN_EXPLAINED:.0%}"
        )
    shares = [KnobShare(knob, float(increase) / total) for knob, increase in zip(columns, increases, strict=True)]
    return KnobImportance(len(configs), explained, tuple(sorted(shares, key=lambda each: -each.share)))


def ordered(values: Sequence[Value]) -> list[Value]:
    """The different values of a knob: numbers by size, then texts by the alphabet."""
    return sorted(dict.fromkeys(values), key=lambda value: (isinstance(value, str), value))


def _columns(configs: Sequence[Config]) -> dict[str, list[int]]:
    """The number of each config's value of each knob that has several. A knob that a config lacks has the number -1."""
    rows = [dict(config.knobs) for config in configs]
    columns: dict[str, list[int]] = {}
    for knob in dict.fromkeys(name for row in rows for name in row):
        numbers = {value: at for at, value in enumerate(ordered([row[knob] for row in rows if knob in row]))}
        column = [numbers[row[knob]] if knob in row else -1 for row in rows]
        if len(set(column)) > 1:
            columns[knob] = column
    return columns


def _errors(matrix: npt.NDArray[np.float32], losses: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
    """The mean squared error of what was left out of each fold, and by how much shuffling each column increases it."""
    with needed_by("the importance of knobs"):
        import xgboost
    rows, knobs = matrix.shape
    draw = np.random.default_rng(0)
    folds = draw.permutation(rows) % _FOLDS
    squares = 0.0
    increases = np.zeros(knobs)
    for fold in range(_FOLDS):
        left_out = folds == fold
        data = xgboost.DMatrix(matrix[~left_out], label=losses[~left_out], nthread=_PARAMETERS["nthread"])
        booster = xgboost.train(_PARAMETERS, data, _ROUNDS)
        known, actual = matrix[left_out], losses[left_out]
        plain = float(np.square(booster.inplace_predict(known) - actual).sum())
        squares += plain
        for knob in range(knobs):
            shuffled = np.tile(known, (_SHUFFLES, 1))
            shuffled[:, knob] = np.concatenate([draw.permutation(known[:, knob]) for _ in range(_SHUFFLES)])
            again = np.square(booster.inplace_predict(shuffled) - np.tile(actual, _SHUFFLES)).sum() / _SHUFFLES
            increases[knob] += float(again) - plain
    return squares / rows, np.maximum(increases, 0.0) / rows
