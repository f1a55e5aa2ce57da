"""The history that a search is given: as much of a full database as it learns from, and no more is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from tests.contract.storage.databases import DEVICE, candidate
from tirgemm.gemm import Gemm
from tirgemm.tuning.search.cost_model import MAX_HISTORY
from tirgemm.tuning.search.similar_problems import candidates_of_nearest
from tirgemm.tuning_db import Database, SqlStore, nearest_candidates
from tirgemm.tuning_db.models import CandidateRow, GemmRow
from tirgemm.tuning_db.shipped.layered_store import LayeredStore

NEAR = Gemm(1000, 1024, 1024)
PROBLEMS = (Gemm(1000, 1024, 1000), Gemm(8192, 64, 77), NEAR, Gemm(31, 4096, 4096), Gemm(999, 1024, 1024, "f32"))
EACH = 4


@pytest.fixture(params=[SqlStore, LayeredStore])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    """Some candidates of each problem, recorded in turns."""
    with Database.embedded(tmp_path) as database:
        store: SqlStore = request.param(database)
        for number in range(EACH):
            for gemm in PROBLEMS:
                store.add_candidate(candidate(number, gemm=gemm))
        yield store


@pytest.mark.parametrize("most", [1, 3, EACH, EACH + 1, 2 * EACH + 3, EACH * len(PROBLEMS), 1000])
def test_a_search_is_told_of_the_nearest_problems_as_if_all_had_been_read(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(nearest_candidates, "NEAREST", most)
    told = store.history(DEVICE.key, "sustained", near=NEAR)
    assert len(told) == min(most, EACH * len(PROBLEMS))
    everything = store.history(DEVICE.key, "sustained")
    assert candidates_of_nearest(NEAR, told, most) == candidates_of_nearest(NEAR, everything, most)


def test_only_the_newest_of_all_are_looked_at(store: SqlStore) -> None:
    newest = store.history(DEVICE.key, "sustained", limit=7)
    told = store.history(DEVICE.key, "sustained", limit=7, near=NEAR)
    assert candidates_of_nearest(NEAR, told, 7) == candidates_of_nearest(NEAR, newest, 7)
    assert store.history(DEVICE.key, "sustained", limit=0, near=NEAR) == []


def test_no_candidate_of_a_far_problem_is_read(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    far = PROBLEMS[1]
    with store.db.write() as connection:
        mine = CandidateRow.gemm_id.in_(
            GemmRow.__table__.select().with_only_columns(GemmRow.id).where(GemmRow.text == str(far))
        )
        connection.execute(update(CandidateRow).where(mine).values(status="measured", config={"x": 1}))
    monkeypatch.setattr(nearest_candidates, "NEAREST", EACH)
    assert {c.gemm for c in store.history(DEVICE.key, "sustained", near=NEAR)} == {NEAR}
    assert caplog.messages == []


def test_a_problem_that_makes_no_sense_is_left_out_of_it(store: SqlStore) -> None:
    with store.db.write() as connection:
        connection.execute(update(GemmRow).where(GemmRow.text == str(PROBLEMS[0])).values(text="no problem"))
    told = store.history(DEVICE.key, "sustained", near=NEAR)
    assert {c.gemm for c in told} == {*PROBLEMS} - {PROBLEMS[0]}


def test_the_newest_come_first_where_one_is_damaged_too(store: SqlStore) -> None:
    before = store.history(DEVICE.key, "sustained")
    damaged = before[7]
    with store.db.write() as connection:
        mine = CandidateRow.gemm_id.in_(
            GemmRow.__table__.select().with_only_columns(GemmRow.id).where(GemmRow.text == str(damaged.gemm))
        )
        of_config = CandidateRow.config_digest == damaged.config.digest
        connection.execute(update(CandidateRow).where(mine, of_config).values(config={"x": 1}))
    assert store.history(DEVICE.key, "sustained") == [each for each in before if each != damaged]
    oldest_first = store.candidates(NEAR, DEVICE.key, "sustained")
    assert oldest_first == [each for each in reversed(before) if each.gemm == NEAR and each != damaged]


def test_a_search_is_told_of_no_fewer_than_it_learns_from() -> None:
    assert nearest_candidates.NEAREST >= MAX_HISTORY
