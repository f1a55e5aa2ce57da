"""The trained ranking model as a search's cost model, and its first proposals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.ranking import H200, PROBLEMS, made_up, slow_pingpong, trained_on
from tirgemm.families.common.ranking_model import RankingModel, user_file
from tirgemm.families.wgmma import Wgmma
from tirgemm.gemm import Gemm
from tirgemm.tuning.ranking_training import write
from tirgemm.tuning.search.cost_model import BoostedTrees
from tirgemm.tuning.search.ranked_model import RankedModel
from tirgemm.tuning.search.search import Search

GEMM = Gemm.parse("768x1536x2048:f16:nt")
FAMILY = Wgmma()


@pytest.fixture
def own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RankingModel:
    monkeypatch.setenv("TIRGEMM_DATA", str(tmp_path))
    write(trained_on(slow_pingpong), user_file(H200.key))
    return RankingModel.of_json(trained_on(slow_pingpong))


def test_the_first_proposals_are_what_the_model_puts_first_in_its_order(own_model: RankingModel) -> None:
    assert own_model.covers("wgmma", GEMM, "sustained")
    search = Search(GEMM, H200, "sustained", [FAMILY])
    proposed = [proposal.config for proposal in search.ask(4)] + [proposal.config for proposal in search.ask(4)]
    assert proposed == FAMILY.shortlist(GEMM, H200, "sustained", 8)
    assert isinstance(search.model, RankedModel)


@pytest.mark.usefixtures("own_model")
def test_a_problem_that_the_model_does_not_cover_is_searched_by_a_model_that_learns() -> None:
    search = Search(GEMM.with_(layout="nn"), H200, "sustained", [FAMILY])
    assert isinstance(search.model, BoostedTrees)


def test_measurements_set_the_clock_and_not_the_order(own_model: RankingModel) -> None:
    model = RankedModel(GEMM, H200, "sustained", [FAMILY], own_model)
    records = made_up(GEMM, slow_pingpong)
    configs = [candidate.config for candidate in records]
    before = model.scores(configs)
    assert before.max() == 0.0
    model.learn(records)
    after = model.scores(configs)
    assert np.array_equal(np.argsort(before, kind="stable"), np.argsort(after, kind="stable"))
    best = min(candidate.search_us or np.inf for candidate in records)
    predicted = best * np.exp(-after)
    near = [number for number, candidate in enumerate(records) if (candidate.search_us or np.inf) < 1.3 * best]
    for number in near:
        assert predicted[number] == pytest.approx(records[number].search_us, rel=0.2)


def test_what_others_measured_changes_nothing(own_model: RankingModel) -> None:
    model = RankedModel(GEMM, H200, "sustained", [FAMILY], own_model)
    configs = [candidate.config for candidate in made_up(GEMM, slow_pingpong)]
    before = model.scores(configs)
    model.learn(made_up(PROBLEMS[0], slow_pingpong))
    assert np.array_equal(model.scores(configs), before)
