"""A cost model that knows nothing: what a learning one has to beat, and what leaves a search to chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tirgemm.config import Config
from tirgemm.tuning.records import Candidate
from tirgemm.tuning.search.cost_model import ModelErrors, Scores


class Uniform:
    """Every config scores alike."""

    learns = False
    trained = False

    def learn(self, candidates: Iterable[Candidate]) -> None:
        pass

    def scores(self, configs: Sequence[Config]) -> Scores:
        return np.zeros(len(configs))

    def expected(self, configs: Sequence[Config]) -> Scores:
        return np.zeros(len(configs))

    def errors(self) -> ModelErrors:
        return ModelErrors(np.zeros(0), np.zeros(0))
