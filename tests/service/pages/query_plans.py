"""Query plans of SQLite: how it would read the tables for each statement that a test's code runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event

from tirgemm.tuning_db import Database


@dataclass(frozen=True)
class QueryPlan:
    """A SELECT and the steps of its plan."""

    statement: str
    steps: tuple[str, ...]


@contextmanager
def query_plans(database: Database) -> Iterator[list[QueryPlan]]:
    """The plans of the SELECTs that run within the block, in their order."""
    plans: list[QueryPlan] = []

    def explain(_: Any, cursor: Any, statement: str, parameters: Any, *__: Any) -> None:
        if statement.startswith("SELECT"):
            steps = cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.append(QueryPlan(statement, tuple(str(row[-1]) for row in steps)))

    event.listen(database.engine, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        event.remove(database.engine, "before_cursor_execute", explain)
