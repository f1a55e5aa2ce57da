"""``CostModel``: which configs look fast, learnt from records of this problem and of others.

The target is the logarithm of a candidate's speed relative to the best known one of its own problem and regime, so
that shapes of any size speak one language. A candidate that failed is taught as far slower than any that works.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tirgemm.config import Config, Space
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig, MissingExtra
from tirgemm.families.base import Family
from tirgemm.gemm import Gemm
from tirgemm.tuning.features import features
from tirgemm.tuning.records import Candidate, Status

Scores = npt.NDArray[np.float64]
_Group = tuple[Gemm, str]

# A failed candidate counts as e**3 = 20 times slower than the best.
FAILED = -3.0
# Below this many rows trees only memorise; the families' analytic estimates rank until then.
MIN_ROWS = 12
# Rows of other problems, newest first, that are trained on: more cost time without ranking better.
MAX_HISTORY = 768
# Features kept for configs that come by again, about 5 KB each, before all are dropped.
_KEPT = 10_000
_ROUNDS = 120
_PARAMETERS: dict[str, Any] = {
    "objective": "reg:squarederror", "tree_method": "hist", "max_depth": 6, "eta": 0.1, "max_bin": 64,
    "min_child_weight": 1.0, "lambda": 1.0, "subsample": 0.9, "colsample_bytree": 0.7, "nthread": 1, "verbosity": 0,
}  # fmt: skip


class CostModel(Protocol):
    """What the search asks of a model. Deterministic for the same candidates, in whatever order they came."""

    @property
    def trained(self) -> bool:
        """Whether measurements, and not only an analytic estimate, are behind the scores."""
        ...

    def learn(self, candidates: Iterable[Candidate]) -> None:
        """Take in candidates of any gemm and regime, measured or failed; a later one of a key replaces the earlier."""
        ...

    def scores(self, configs: Sequence[Config]) -> Scores:
        """For configs of the searched problem: log of the speed relative to the best known; higher is faster."""
        ...


class Uniform:
    """No model: every config scores alike. What the cost model has to beat."""

    trained = False

    def learn(self, candidates: Iterable[Candidate]) -> None:
        pass

    def scores(self, configs: Sequence[Config]) -> Scores:
        return np.zeros(len(configs))


class BoostedTrees:
    """Gradient-boosted trees over ``features``, fitted again when new records came and a score is asked for."""

    def __init__(self, gemm: Gemm, device: Device, regime: str, families: Iterable[Family], *, seed: int = 0) -> None:
        self.gemm = gemm
        self.device = device
        self.regime = regime
        self.families = {family.name: family for family in families}
        self.seed = seed
        self._own: _Group = (gemm, regime)
        self._rows: dict[_Group, dict[Config, tuple[float | None, dict[str, float]]]] = {}
        self._spaces: dict[tuple[Gemm, str], Space | None] = {}
        self._features: dict[Config, dict[str, float]] = {}
        self._columns: list[str] = []
        self._booster: Any = None
        self._stale = False

    @property
    def trained(self) -> bool:
        self._fit()
        return self._booster is not None

    def learn(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            if candidate.status is Status.PRUNED or candidate.device_key != self.device.key:
                continue
            if not self._in_space(candidate):
                continue
            rows = self._rows.setdefault((candidate.gemm, candidate.regime), {})
            family = self.families[candidate.config.family]
            row = rows.get(candidate.config)
            found = row[1] if row else features(candidate.gemm, candidate.config, self.device, candidate.regime, family)
            us = candidate.search_us if candidate.status is Status.MEASURED else None
            rows[candidate.config] = (us, found)
            self._stale = True

    def scores(self, configs: Sequence[Config]) -> Scores:
        self._fit()
        rows = [self._features_of(config) for config in configs]
        if self._booster is None:
            estimates = np.array([-row["log_predicted_us"] for row in rows])
            return estimates - estimates.max(initial=-np.inf) if rows else estimates
        found: Scores = np.asarray(self._booster.inplace_predict(self._matrix(rows)), dtype=np.float64)
        return found

    def _features_of(self, config: Config) -> dict[str, float]:
        found = self._features.get(config)
        if found is None:
            if len(self._features) >= _KEPT:
                self._features.clear()
            found = features(self.gemm, config, self.device, self.regime, self.families[config.family])
            self._features[config] = found
        return found

    def _in_space(self, candidate: Candidate) -> bool:
        """Whether the config is a point of its family's space as that is today."""
        key = (candidate.gemm, candidate.config.family)
        if key not in self._spaces:
            family = self.families.get(candidate.config.family)
            writes = family is not None and family.supports(candidate.gemm, self.device) is None
            self._spaces[key] = family.space(candidate.gemm, self.device) if family and writes else None
        space = self._spaces[key]
        if space is None:
            return False
        try:
            space.check(candidate.config)
        except InvalidConfig:
            return False
        return True

    def _fit(self) -> None:
        if not self._stale:
            return
        self._stale = False
        rows, targets, weights = self._training_set()
        if len(rows) < MIN_ROWS:
            return
        try:
            import xgboost
        except ImportError as error:
            raise MissingExtra(f"the cost model needs xgboost: install tirgemm[tune] ({error})") from error
        self._columns = sorted({name for row in rows for name in row})
        matrix = xgboost.DMatrix(self._matrix(rows), label=np.array(targets), weight=np.array(weights))
        self._booster = xgboost.train(_PARAMETERS | {"seed": self.seed & 0x7FFFFFFF}, matrix, _ROUNDS)

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
            for _, (us, found) in group:
                if us is None and best is None:
                    continue
                rows.append(found)
                targets.append(FAILED if us is None or best is None else max(FAILED, math.log(best / us)))
                weights.append(1.0 if key == self._own else 0.5)
        return rows, targets, weights

    def _matrix(self, rows: Sequence[dict[str, float]]) -> npt.NDArray[np.float32]:
        missing = math.nan
        return np.array([[row.get(name, missing) for name in self._columns] for row in rows], dtype=np.float32)
