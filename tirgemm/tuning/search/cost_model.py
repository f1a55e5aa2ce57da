"""``CostModel``: which configs look fast or worth a look, learnt from records of this problem and of others.

The target is the logarithm of a candidate's speed relative to the best known one of its own problem and regime, so
that shapes of any size speak one language. A candidate that failed is taught as far slower than any that works.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tirgemm._extras import needed_by
from tirgemm.config import Config, Space
from tirgemm.device import Device
from tirgemm.families.base import Family
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning.search.expected_gain import ModelErrors
from tirgemm.tuning.search.features import features

Scores = npt.NDArray[np.float64]
_ProblemKey = tuple[Gemm, str]

# A failed candidate counts as e**3 = 20 times slower than the best.
FAILED = -3.0
# Below this many rows trees only memorise; the families' analytic estimates rank until then.
MIN_ROWS = 12
# Rows of other problems, the most similar problems' first, that are trained on: more cost time without ranking better.
MAX_HISTORY = 768
# Features kept for configs that come by again, about 5 KB each, before all are dropped.
_KEPT = 10_000
# An ensemble of boosters, each on a bootstrap sample: where they disagree nobody has looked yet. A score is their mean
# and this many of their standard deviations, so that the search does not settle on the first good corner it meets.
_MEMBERS = 8
_OPTIMISM = 2.0
_ROUNDS = 50
_PARAMETERS: dict[str, Any] = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 6,
    "eta": 0.1,
    "max_bin": 64,
    "min_child_weight": 1.0,
    "lambda": 1.0,
    "colsample_bytree": 0.7,
    "nthread": 1,
    "verbosity": 0,
}


class CostModel(Protocol):
    """What the search asks of a model. Deterministic for the same candidates, in whatever order they came."""

    learns: bool
    """Whether what a search measures changes what it says of other configs."""

    @property
    def trained(self) -> bool:
        """Whether measurements, and not only an analytic estimate, are behind the scores."""
        ...

    def learn(self, candidates: Iterable[Candidate]) -> None:
        """Take in candidates of any gemm and regime, measured or failed; a later one of a key replaces the earlier."""
        ...

    def scores(self, configs: Sequence[Config]) -> Scores:
        """For configs of the searched problem: log of the speed relative to the best known, higher is faster, with a
        bonus for what the model is unsure of.
        """
        ...

    def expected(self, configs: Sequence[Config]) -> Scores:
        """The same without the bonus: what the model believes. Only where it is trained."""
        ...

    def errors(self) -> ModelErrors:
        """What the model got wrong of measured candidates of the searched problem. Only where it is trained."""
        ...


class BoostedTrees:
    """Gradient-boosted trees over ``features``, fitted again when new records came and a score is asked for."""

    learns = True

    def __init__(
        self, gemm: Gemm, device: Device, regime: Regime, families: Iterable[Family], *, seed: int = 0
    ) -> None:
        self.gemm = gemm
        self.device = device
        self.regime = regime
        self.families = {family.name: family for family in families}
        self.seed = seed
        self._own: _ProblemKey = (gemm, regime)
        self._rows: dict[_ProblemKey, dict[Config, tuple[float | None, dict[str, float]]]] = {}
        self._spaces: dict[tuple[Gemm, str], Space | None] = {}
        self._features: dict[Config, dict[str, float]] = {}
        self._columns: list[str] = []
        self._boosters: list[Any] = []
        self._out_of_bag = ModelErrors(np.zeros(0), np.zeros(0))
        self._stale = False

    @property
    def trained(self) -> bool:
        self._fit()
        return bool(self._boosters)

    def learn(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            if candidate.status is Status.PRUNED or candidate.device_key != self.device.key:
                continue
            if not self._in_space(candidate):
                continue
            if candidate.status is Status.MEASURED and candidate.search_us is None:
                continue  # what was only raced behind a search says nothing beside what was searched
            rows = self._rows.setdefault((candidate.gemm, candidate.regime), {})
            family = self.families[candidate.config.family]
            row = rows.get(candidate.config)
            feature_values = (
                row[1] if row else features(candidate.gemm, candidate.config, self.device, candidate.regime, family)
            )
            us = candidate.search_us if candidate.status is Status.MEASURED else None
            rows[candidate.config] = (us, feature_values)
            self._stale = True

    def scores(self, configs: Sequence[Config]) -> Scores:
        self._fit()
        rows = [self._features_of(config) for config in configs]
        if not self._boosters:
            estimates = np.array([-row["log_predicted_us"] for row in rows])
            return estimates - estimates.max(initial=-np.inf) if rows else estimates
        votes = self._votes(rows)
        scores: Scores = votes.mean(axis=0) + _OPTIMISM * votes.std(axis=0)
        return scores

    def expected(self, configs: Sequence[Config]) -> Scores:
        self._fit()
        scores: Scores = self._votes([self._features_of(config) for config in configs]).mean(axis=0)
        return scores

    def errors(self) -> ModelErrors:
        self._fit()
        return self._out_of_bag

    def _votes(self, rows: Sequence[dict[str, float]]) -> Scores:
        if not rows:  # XGBoost refuses a matrix without rows
            return np.zeros((len(self._boosters), 0))
        matrix = self._matrix(rows)
        return np.array([booster.inplace_predict(matrix) for booster in self._boosters], dtype=np.float64)

    def _features_of(self, config: Config) -> dict[str, float]:
        feature_values = self._features.get(config)
        if feature_values is None:
            if len(self._features) >= _KEPT:
                self._features.clear()
            feature_values = features(self.gemm, config, self.device, self.regime, self.families[config.family])
            self._features[config] = feature_values
        return feature_values

    def _in_space(self, candidate: Candidate) -> bool:
        """Whether the config is a point of its family's space as that is today."""
        key = (candidate.gemm, candidate.config.family)
        if key not in self._spaces:
            family = self.families.get(candidate.config.family)
            writes = family is not None and family.supports(candidate.gemm, self.device) is None
            self._spaces[key] = family.space(candidate.gemm, self.device) if family and writes else None
        space = self._spaces[key]
        return space is not None and space.has(candidate.config)

    def _fit(self) -> None:
        if not self._stale:
            return
        self._stale = False
        rows, targets, weights = self._training_set()
        if len(rows) < MIN_ROWS:
            return
        with needed_by("the cost model"):
            import xgboost
        self._columns = sorted({name for row in rows for name in row})
        matrix, labels, weight = self._matrix(rows), np.array(targets), np.array(weights)
        draw = np.random.default_rng(self.seed & 0x7FFFFFFF)
        self._boosters = []
        left_out = np.zeros((_MEMBERS, len(rows)), bool)
        for member in range(_MEMBERS):
            sample = weight * draw.poisson(1.0, len(rows))
            sampled = sample if sample.any() else weight
            left_out[member] = sampled == 0
            # A few hundred rows: threads would cost fifty times what they copy.
            data = xgboost.DMatrix(matrix, label=labels, weight=sampled, nthread=_PARAMETERS["nthread"])
            self._boosters.append(xgboost.train(_PARAMETERS | {"seed": member}, data, _ROUNDS))
        # What the boosters say that did not see a row (Breiman, Out-of-bag estimation, 1996), of this problem's own.
        own = (weight == 1.0) & (labels > FAILED) & left_out.any(axis=0)
        votes = np.where(left_out, self._votes(rows), 0.0).sum(axis=0)[own] / left_out.sum(axis=0)[own]
        self._out_of_bag = ModelErrors(labels[own] - votes, labels[own])

    def _training_set(self) -> tuple[list[dict[str, float]], list[float], list[float]]:
        """Rows in an order that does not depend on when the measurements came."""
        rows: list[dict[str, float]] = []
        targets: list[float] = []
        weights: list[float] = []
        left = MAX_HISTORY
        for key in [self._own, *(key for key in self._rows if key != self._own)]:
            group = sorted(self._rows.get(key, {}).items(), key=lambda item: item[0].digest)
            best = min((us for _, (us, _) in group if us is not None), default=None)
            if key != self._own:
                group = group[:left]
                left -= len(group)
            for _, (us, feature_values) in group:
                if us is None and best is None:
                    continue
                rows.append(feature_values)
                targets.append(FAILED if us is None or best is None else max(FAILED, math.log(best / us)))
                weights.append(1.0 if key == self._own else 0.5)
        return rows, targets, weights

    def _matrix(self, rows: Sequence[dict[str, float]]) -> npt.NDArray[np.float32]:
        missing = math.nan
        return np.array([[row.get(name, missing) for name in self._columns] for row in rows], dtype=np.float32)
