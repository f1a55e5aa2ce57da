"""A cost model that knows nothing: what a learning one has to beat, and what leaves a search to chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from tirgemm.config import Config
from tirgemm.tuning.records import Candidate
from tirgemm.tuning.search import evolution
from tirgemm.tuning.search.cost_model import Scores
from tirgemm.tuning.search.expected_gain import ModelErrors


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


@contextmanager
def first_generation() -> Iterator[None]:
    """Rounds of evolution end with the first population, in a quarter of the time. Where all score alike the proposals
    are the same: of two that do, the one that was met first is kept.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evolution, "GENERATIONS", 0)
        yield
