"""``RankedModel``: the trained ranking model as the cost model of a search, where it covers the problem.

It is not trained further: what a search measures only says how its expectations lie on the clock. On recorded spaces
that finds good configs sooner than a model that learns within the search, warmed by other problems' records or not
(``benchmarks/proposal_sources.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families.base import Family
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.ranking_model import RankingModel
from tirgemm.families.features import expected_us, features
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning.search.cost_model import Scores
from tirgemm.tuning.search.expected_gain import ModelErrors

# Configs whose expected time is kept before all are dropped.
_KEPT = 100_000


class RankedModel:
    """Implements ``CostModel`` for one problem. Families that ``ranking`` does not cover have their own estimates."""

    learns = False

    def __init__(
        self, gemm: Gemm, device: Device, regime: Regime, families: Iterable[Family], ranking: RankingModel
    ) -> None:
        self.gemm = gemm
        self.device = device
        self.regime = regime
        self.families = {family.name: family for family in families}
        self.ranking = ranking
        self._expected: dict[Config, float] = {}
        self._measured: dict[Config, float] = {}

    @property
    def trained(self) -> bool:
        return True

    def learn(self, candidates: Iterable[Candidate]) -> None:
        problem = self.gemm, self.device.key, self.regime
        for candidate in candidates:
            us = candidate.search_us if candidate.status is Status.MEASURED else None
            own = (candidate.gemm, candidate.device_key, candidate.regime) == problem
            if own and us is not None and candidate.config.family in self.families:
                self._measured[candidate.config] = us

    def scores(self, configs: Sequence[Config]) -> Scores:
        """Logarithms of expected speeds relative to the best measured one; to the best of ``configs`` before that."""
        logs = self._log_us(configs)
        if not self._measured:
            return logs.min(initial=math.inf) - logs if len(logs) else logs
        known = self._log_us(list(self._measured))
        # Of the fastest half: the model was trained to be right about those.
        pairs = sorted(zip(self._measured.values(), known.tolist(), strict=True))
        level = median(math.log(us) - log for us, log in pairs[: (len(pairs) + 1) // 2])
        scores: Scores = math.log(pairs[0][0]) - level - logs
        return scores

    def expected(self, configs: Sequence[Config]) -> Scores:
        """The same: there is no bonus for doubt."""
        return self.scores(configs)

    def errors(self) -> ModelErrors:
        us = np.log(list(self._measured.values()))
        return ModelErrors(self._log_us(list(self._measured)) - us, us.min(initial=math.inf) - us)

    def _log_us(self, configs: Sequence[Config]) -> Scores:
        if len(self._expected) >= _KEPT:
            self._expected.clear()
        new = [config for config in dict.fromkeys(configs) if config not in self._expected]
        for name, family in self.families.items():
            if own := [config for config in new if config.family == name]:
                columns = ConfigColumns.of(own)
                feature_values = features(self.gemm, columns, self.device, self.regime, family)
                us = expected_us(self.gemm, columns, feature_values, self.regime, self.ranking)
                self._expected.update(zip(own, np.log(us).tolist(), strict=True))
        return np.array([self._expected[config] for config in configs])
