"""The version of the schema: read, checked and brought up to date when a database is opened."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from tirgemm.errors import DamagedDatabase, SchemaTooNew, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0014"
KNOWN = tuple(f"{number:04}" for number in range(1, int(HEAD) + 1))
MIGRATIONS = Path(__file__).parent / "migrations"
# What to do about a damaged file of SQLite.
MEND = "`tirgemm serve` repairs that of a data folder by itself, `tirgemm db repair` by hand; or put a backup back"
# Any number, as long as every tirgemm takes the same one.
_ADVISORY_LOCK = 7_415_013


def version(connection: Connection) -> str | None:
    """The revision that a database is at, or None where it has no tables of ours."""
    names = inspect(connection).get_table_names()
    if "alembic_version" not in names:
        if "candidates" in names:
            raise StoreError("the database has tables named as ours but no version; give an empty database")
        return None
    revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return revision


def upgrade(engine: Engine, place: str) -> None:
    """Bring the schema to HEAD, once, whoever else opens the database now. SchemaTooNew touches nothing, nor does
    DamagedDatabase, for a file of SQLite that is to be migrated and is not whole."""
    with engine.begin() as connection:
        revision = _checked(connection, place)
        if revision == HEAD:
            return
        if revision is not None and engine.dialect.name == "sqlite":
            _require_whole(connection, place)
    if engine.dialect.name == "sqlite":
        # Outside of any transaction, and only for a database that is ours or new: it rewrites the file's header.
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode = WAL")
        finally:
            raw.close()
    with engine.execution_options(tirgemm_write=True).begin() as connection, ExitStack() as stack:
        if engine.dialect.name == "postgresql":
            from tirgemm.tuning_db.postgres_limits import unlimited

            stack.enter_context(unlimited(connection))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        if _checked(connection, place) != HEAD:
            migrate(connection)


def require_current(engine: Engine, place: str) -> None:
    """Raise StoreUnavailable for a database of an older schema, which cannot be written, and SchemaTooNew."""
    with engine.begin() as connection:
        revision = _checked(connection, place)
    if revision != HEAD:
        raise StoreUnavailable(
            f"database {place} has schema {revision!r} and cannot be written to be brought to {HEAD!r}; copy its "
            f"folder to where this user can write"
        )


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration of the packaged migrations, for a connection that the caller commits."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def require_known(revision: str, place: str) -> None:
    """Raise SchemaTooNew for a revision that this tirgemm does not know."""
    if revision not in KNOWN:
        raise SchemaTooNew(
            f"database {place} has schema {revision!r}; this tirgemm knows up to {HEAD!r}. "
            "Upgrade tirgemm, or open another database; nothing was changed"
        )


def _checked(connection: Connection, place: str) -> str | None:
    revision = version(connection)
    if revision is not None:
        require_known(revision, place)
    return revision


def _require_whole(connection: Connection, place: str) -> None:
    """Raise DamagedDatabase where SQLite finds a fault: what copies rows could lose more of them."""
    said = connection.exec_driver_sql("PRAGMA quick_check(1)").scalars().first()
    if said != "ok":
        raise DamagedDatabase(f"database {place} is damaged ({said}) and was not brought to schema {HEAD}; {MEND}")


def migrate(connection: Connection, revision: str = HEAD) -> None:
    """Bring the tables, in an empty database all of them, to that version of the schema."""
    from alembic import command

    command.upgrade(alembic_config(connection), revision)
