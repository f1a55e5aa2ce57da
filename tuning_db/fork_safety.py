"""Open databases in a forked process: the parent's connections are closed there, and it makes its own.

A process that keeps an inherited SQLite connection takes the parent's locks for its own. One that another thread was
using cannot be closed, nor can SQLite's mutexes be relied on then: such a process gets an error, not a wait for ever.
"""

from __future__ import annotations

import os
from weakref import WeakSet

from sqlalchemy import Engine, event
from sqlalchemy.pool import QueuePool

from tirgemm.errors import StoreUnavailable

_engines: WeakSet[Engine] = WeakSet()
_forked_in_use = False


def renew_in_forks(engine: Engine) -> None:
    """Have a forked process use ``engine`` with connections of its own.

    To connect to SQLite raises StoreUnavailable there where a transaction was open as the process was forked.
    """
    _engines.add(engine)
    if _is_sqlite(engine):
        event.listen(engine, "do_connect", lambda *_: _require_idle_fork(engine))


def _require_idle_fork(engine: Engine) -> None:
    if _forked_in_use:
        raise StoreUnavailable(
            f"database {engine.url.render_as_string()} cannot be used in this forked process: a tuning database was in "
            "use in its parent at the fork, which SQLite does not allow; fork while no thread uses one, or start the "
            "process anew ('spawn')"
        )


def _after_fork() -> None:
    global _forked_in_use
    engines = list(_engines)
    _forked_in_use = _forked_in_use or any(_is_sqlite(each) and _is_in_use(each) for each in engines)
    for engine in engines:
        # PostgreSQL's connections are the parent's to end.
        engine.dispose(close=_is_sqlite(engine) and not _forked_in_use)


def _is_sqlite(engine: Engine) -> bool:
    return engine.dialect.name == "sqlite"


def _is_in_use(engine: Engine) -> bool:
    return isinstance(engine.pool, QueuePool) and engine.pool.checkedout() > 0


os.register_at_fork(after_in_child=_after_fork)
