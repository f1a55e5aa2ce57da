"""Measured candidates of the problems most like one: what a search is told of, of a database that may have many."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from tirgemm.errors import DamagedRow
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import Candidate
from tirgemm.tuning.search.similar_problems import nearest
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.models import CandidateRow, GemmRow

# Candidates of other problems that a search is told of: more than its model is trained on, since to read one takes
# longer than to count a hundred.
NEAREST = 1_000


def nearest_candidates(
    connection: Connection, near: Gemm, where: tuple[ColumnElement[bool], ...], newest: int
) -> list[Candidate]:
    """Of the ``newest`` candidates at most ``NEAREST``, those of the problems most like ``near``: all others are
    counted by problem and not read. Raises DamagedRow where one names no problem."""
    recent = select(CandidateRow.id, CandidateRow.gemm_id).where(*where).order_by(CandidateRow.id.desc()).limit(newest)
    counted = recent.subquery()
    counts = func.count().label("candidates"), func.min(counted.c.id).label("oldest")
    columns: tuple[Any, ...] = (GemmRow.id, GemmRow.text, *counts)
    by_problem = select(*columns).join(counted, counted.c.gemm_id == GemmRow.id).group_by(GemmRow.id, GemmRow.text)
    try:
        problems = {rows.parsed_gemm(row.text): row for row in rows.fetch(connection, by_problem)}
    except rows.DAMAGE as error:
        raise DamagedRow(f"a problem's text is damaged ({error}); put a backup back") from error
    candidates: list[Candidate] = []
    whole: list[int] = []
    left = NEAREST
    for gemm in [*([near] if near in problems else []), *nearest(near, problems)]:
        row = problems[gemm]
        if row.candidates > left:
            mine = (*where, CandidateRow.gemm_id == row.id)
            candidates = rows.read_candidates(connection, rows.CandidateQuery.where(mine, left))
            break
        whole.append(row.id)
        left -= row.candidates
    if whole:
        oldest = min(row.oldest for row in problems.values())
        complete = (*where, CandidateRow.gemm_id.in_(whole), CandidateRow.id >= oldest)
        candidates = rows.read_candidates(connection, rows.CandidateQuery.where(complete, NEAREST)) + candidates
    return candidates
