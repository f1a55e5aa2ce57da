"""PostgreSQL connections whose answers are awaited for a limited time only, by the client's clock.

A server that is frozen keeps its own time limits from running, so ``statement_timeout`` alone does not end the wait.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, event, text

CONNECT_SECONDS = 5
V = TypeVar("V")


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that raises OperationalError, and is closed, where an answer takes longer than ``limit_s``."""

    limit_s: float | None = None

    def wait(self, gen: Generator[Any, Any, V], *arguments: Any, **options: Any) -> V:
        limited = gen if self.limit_s is None else self._limited(gen, self.limit_s)
        return super().wait(limited, *arguments, **options)

    def _limited(self, gen: Generator[Any, Any, V], seconds: float) -> Generator[Any, Any, V]:
        deadline = time.monotonic() + seconds
        try:
            state = next(gen)
            while True:
                ready = yield state
                if time.monotonic() > deadline:
                    gen.close()
                    # Its state is unknown, and a rollback would wait again.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {seconds:g} s")
                state = gen.send(ready)
        except StopIteration as ended:
            value: V = ended.value
            return value


def limit(engine: Engine, limit_s: float) -> None:
    """Have every connection of ``engine`` end a statement, and the wait for it, after ``limit_s`` seconds."""

    def connect(_dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
        options = {"connect_timeout": CONNECT_SECONDS} | options
        connection = LimitedConnection.connect(*arguments, **options)
        connection.execute(f"SET statement_timeout = {round(limit_s * 1000)}")
        connection.commit()
        connection.limit_s = limit_s + 1
        return connection

    event.listen(engine, "do_connect", connect)


@contextmanager
def unlimited(connection: Connection) -> Iterator[None]:
    """No limit within the block, for what may take long: it is to end before the transaction does."""
    driver = connection.connection.driver_connection
    if not isinstance(driver, LimitedConnection):
        yield
        return
    limit_s, driver.limit_s = driver.limit_s, None
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    try:
        yield
    finally:
        driver.limit_s = limit_s
