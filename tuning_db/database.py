"""``Database``: one open tuning database, SQL beside a blob folder."""

from __future__ import annotations

import errno
import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from tirgemm._user_folders import DATABASE
from tirgemm.artifact.closing import Closing
from tirgemm.errors import (
    DamagedDatabase,
    DamagedRow,
    InvalidRequest,
    MissingExtra,
    StorageFull,
    StoreError,
    StoreUnavailable,
)
from tirgemm.tuning.records.json_values import dump_json
from tirgemm.tuning_db import schema
from tirgemm.tuning_db.blobs import BlobStore
from tirgemm.tuning_db.disk_space import is_full
from tirgemm.tuning_db.fork_safety import renew_in_forks
from tirgemm.tuning_db.models import Base
from tirgemm.tuning_db.sqlite_file import can_write, reading_uri
from tirgemm.tuning_db.table_list import keep_table_list
from tirgemm.tuning_db.times import Clock

BUSY_SECONDS = 30
READER_CACHE_KIB = 64 * 1024
# What a transaction that changes kernels leaves with its connection.
KERNELS_CHANGED = "tirgemm_kernels_changed"
# What messages tell of a URL's query; other parameters may be secret.
_PLACE_PARAMETERS = ("host", "port")
_SQLITE_NOW = text("SELECT (julianday('now') - 2440587.5) * 86400.0")
_POSTGRES_NOW = text("SELECT extract(epoch FROM clock_timestamp())")


class Database(Closing):
    """SQLite or PostgreSQL with the current schema, and a folder of blobs. Safe from several threads and processes.

    ``url`` is SQLAlchemy's (``sqlite:////data/tirgemm.db``, ``postgresql+psycopg://user@host/name``). Opening creates
    or upgrades the schema. ``limit_s`` ends the wait for an answer of PostgreSQL, which may be frozen, and for other
    writers of SQLite; an ``embedded`` file is the data folder's own, which its service repairs. ``to_read`` opens a
    file that cannot be written, too: ``write`` raises StoreUnavailable then. Raises SchemaTooNew for the database of a
    newer tirgemm, before anything is written, StoreError where it cannot be opened, and MissingExtra where the driver
    is not installed.
    """

    def __init__(
        self,
        url: str,
        data_dir: Path,
        limit_s: float | None = None,
        *,
        embedded: bool = False,
        to_read: bool = False,
    ) -> None:
        self.url = _parse(url)
        self._is_embedded = embedded
        self.data_dir = Path(data_dir)
        self.read_only = to_read and not self.writable and self._file.is_file()
        if not (to_read and self.data_dir.is_dir()):
            make_folder(self.data_dir)
        self.engine = self._connect(limit_s)
        renew_in_forks(self.engine)
        self._readers: list[sqlite3.Connection] = []
        self.on_kernels_changed: Callable[[], None] = lambda: None
        """Called after each transaction of this object that has changed kernels, once others can see that."""
        self._upserts: dict[tuple[Any, ...], Any] = {}
        self._damage = ""
        self._writer = self.engine.execution_options(tirgemm_write=True)
        # Otherwise PostgreSQL shows each statement what others have committed meanwhile.
        one_state = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        self._reader = self.engine.execution_options(**one_state)
        try:
            with self.translating():
                if self.read_only:
                    schema.require_current(self.engine, self.place)
                else:
                    schema.upgrade(self.engine, self.place)
            self.keep_table_list()
            self.blobs = BlobStore(self.data_dir / "blobs")
        except BaseException:
            self.engine.dispose()
            raise

    @classmethod
    def embedded(cls, data_dir: Path, limit_s: float | None = None, *, to_read: bool = False) -> Database:
        """The SQLite database and the blobs of one folder, made where absent."""
        folder = Path(data_dir).absolute()
        url = URL.create("sqlite", database=str(folder / DATABASE)).render_as_string()
        return cls(url, folder, limit_s, embedded=True, to_read=to_read)

    @property
    def place(self) -> str:
        """What error messages call this database; never holds a password, which may be in the query of its URL too."""
        query = {name: value for name, value in self.url.query.items() if name in _PLACE_PARAMETERS}
        return self.url.set(query=query).render_as_string(hide_password=True)

    @contextmanager
    def translating(self) -> Iterator[None]:
        """``translated``, which also leaves ``damage_marker`` in the data folder whose database is damaged."""
        try:
            with translated(self.place):
                yield
        except DamagedDatabase as error:
            self._note_damage(str(error))
            raise

    def _note_damage(self, words: str) -> None:
        self._damage = words
        if self._is_embedded:
            with suppress(OSError):  # the folder may be read-only
                damage_marker(self.data_dir / DATABASE).write_text(f"{words}\n", encoding="utf-8")

    def keep_table_list(self) -> None:
        """Keep the list of tables beside the data folder's file: to be done after each change of it."""
        if self._is_embedded:
            with self.translating():
                raw = self.engine.raw_connection()
                try:
                    connection = cast("sqlite3.Connection", raw.driver_connection)
                    if not keep_table_list(connection, self.data_dir / DATABASE):
                        self._note_damage(f"database {self.place} is damaged (its list of tables); {schema.MEND}")
                finally:
                    raw.close()

    @property
    def damage(self) -> str:
        """What was wrong with the file when this object last found it to be damaged, or, where it is the data folder's,
        any process since it was last repaired; else empty."""
        if self._damage or not self._is_embedded:
            return self._damage
        try:
            words = damage_marker(self.data_dir / DATABASE).read_text(encoding="utf-8").strip()
        except OSError:
            return ""
        return words or "a page is damaged"  # the disk was full

    @property
    def writable(self) -> bool:
        """Whether the file and its folder may be written, as far as they say; of PostgreSQL always true."""
        return not self.is_sqlite or can_write(self._file)

    @property
    def is_full(self) -> bool:
        """Whether the disk of the file is full; of PostgreSQL, which has a disk of its own, false."""
        return self.is_sqlite and is_full(self._file.parent)

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def _file(self) -> Path:
        return Path(self.url.database or "")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database."""
        with self.translating(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that writes, committed at the end; on SQLite it is the only one from its first moment."""
        if self.read_only:
            raise _unwritable(self.place, "read-only here")
        with self.translating(), self._writer.connect() as connection:
            with connection.begin():
                connection.info.pop(KERNELS_CHANGED, None)
                yield connection
            if connection.info.pop(KERNELS_CHANGED, False):
                self.on_kernels_changed()

    def require_writable(self) -> None:
        """Raise StoreUnavailable where it cannot be written now, or others do so for too long."""
        with self.write():
            pass

    def own_reader(self) -> sqlite3.Connection:
        """A connection to SQLite that is nobody else's: it reads, in one transaction a statement, and waits for no
        other process. For one thread at a time; closed with the database."""
        with translated(self.place):
            pooled = self.engine.raw_connection()
            reader: Any = pooled.driver_connection
            pooled.detach()
            for pragma in ("query_only = ON", "busy_timeout = 0", f"cache_size = -{READER_CACHE_KIB}"):
                reader.execute(f"PRAGMA {pragma}")
        self._readers.append(reader)
        return cast("sqlite3.Connection", reader)

    def now(self, connection: Connection) -> float:
        """Seconds since 1970 by the clock of the database: the same for every host that asks."""
        return float(connection.execute(_SQLITE_NOW if self.is_sqlite else _POSTGRES_NOW).scalar_one())

    def insert(self, model: type[Base]) -> Any:
        """An INSERT that knows ON CONFLICT, in this database's dialect."""
        table: Any = model.__table__
        if self.is_sqlite:
            return sqlite.insert(table)
        from sqlalchemy.dialects import postgresql  # 0.06 s that nobody spends on SQLite

        return postgresql.insert(table)

    def upsert(self, model: type[Base], identity: tuple[str, ...], changed: tuple[str, ...]) -> Any:
        """An INSERT that changes the columns ``changed`` of the row with the same ``identity``, where there is one, and
        returns the row's ``id``, where it has one. It is kept: to make it takes as long as to run it."""
        key = model, identity, changed
        if key not in self._upserts:
            statement, ids = self.insert(model), [column for column in model.__table__.c if column.name == "id"]
            changes = {name: statement.excluded[name] for name in changed}
            statement = statement.on_conflict_do_update(index_elements=list(identity), set_=changes)
            self._upserts[key] = statement.returning(*ids) if ids else statement
        return self._upserts[key]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self.engine.dispose()

    def _connect(self, limit_s: float | None) -> Engine:
        options: dict[str, Any] = {"json_serializer": dump_json, "pool_size": 8, "max_overflow": 56}
        if not self.is_sqlite:
            try:
                engine = create_engine(self.url, pool_pre_ping=True, **options)
                if limit_s is not None:
                    from tirgemm.tuning_db import postgres_limits

                    postgres_limits.limit(engine, limit_s)
                return engine
            except ImportError as error:
                words = (
                    f"{self.place} needs the driver {error.name!r}; install tirgemm with its "
                    f"extra: pip install 'tirgemm[postgres]'"
                )
                raise MissingExtra(words) from error
        if sqlite3.sqlite_version_info < (3, 35):  # the first with RETURNING
            old = f"the SQLite of this Python is {sqlite3.sqlite_version}, and 3.35 is needed"
            raise StoreError(f"{old}; name a PostgreSQL database with --db, or use a Python with a newer SQLite")
        options["connect_args"] = {"timeout": BUSY_SECONDS if limit_s is None else limit_s}
        engine = create_engine(self.url, **options)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        event.listen(engine, "connect", self._note_whether_writable)
        event.listen(engine, "checkin", _drop_read_only)
        if self.read_only:
            event.listen(engine, "do_connect", self._name_to_read)
        return engine

    def _name_to_read(self, _dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
        arguments[:] = [reading_uri(self._file)]
        options["uri"] = True

    def _note_whether_writable(self, _connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["read_only"] = not self.writable


class ClockedTables:
    """Some tables of a Database. ``clock`` gives seconds since 1970; by default the database's."""

    def __init__(self, db: Database, clock: Clock | None = None) -> None:
        self.db = db
        self._clock = clock

    def _now(self, connection: Connection) -> float:
        return self.db.now(connection) if self._clock is None else self._clock()


def damage_marker(file: Path) -> Path:
    """The file that says of the SQLite database of a data folder that it was found to be damaged."""
    return file.with_name(f"{file.name}.damaged")


def make_folder(folder: Path) -> None:
    """Make ``folder`` and check that it can be written. StoreError says why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "it cannot be written")
    except OSError as error:
        raise StoreError(f"data folder {folder}: {error.strerror}; give a folder that this user can write") from error


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Turn the driver's errors into StoreError and StorageFull, in words that say what to do."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise _translate(error, place) from error
    except (json.JSONDecodeError, RecursionError) as error:
        words = "a column holds no JSON that can be read"
        raise DamagedRow(f"database {place} is damaged ({words}: {error}); put a backup back") from error


def _translate(error: Exception, place: str) -> StoreError:
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    words = str(origin).strip().split("\n")[0]
    if "disk is full" in words or "No space left" in words:
        return StorageFull(f"database {place}: no space is left on its disk; free some, then repeat")
    if "readonly" in words or "read-only" in words:
        return _unwritable(place, words)
    if "disk I/O error" in words:
        return StoreUnavailable(f"database {place} cannot be read or written ({words}); repeat when its disk works")
    if "unable to open database file" in words:
        return StoreUnavailable(f"database {place}: {words}; its folder has to be there, and this user to write it")
    if ("not a database" in words or "malformed" in words) and not place.startswith("postgresql"):
        return DamagedDatabase(
            f"database {place} is damaged ({words}); {schema.MEND}, or move the file away to start afresh"
        )
    # psycopg's, by SQLSTATE: no connection (none, 08), a deadlock (40), a server that is full (53) or ends (57).
    sqlstate = getattr(origin, "sqlstate", "")
    if isinstance(error, OperationalError) and (sqlstate is None or sqlstate[:2] in ("08", "40", "53", "57")):
        return StoreUnavailable(f"database {place} does not answer ({words}); repeat when it does")
    if "is locked" in words or isinstance(error, PoolTimeout):
        return StoreUnavailable(f"database {place} was busy for too long ({words}); repeat when other writers are done")
    return StoreError(f"database {place}: {words}")


def _unwritable(place: str, reason: str) -> StoreUnavailable:
    return StoreUnavailable(f"database {place} cannot be written ({reason}); give a folder that this user can write")


def _parse(url: str) -> URL:
    form = "a database URL is sqlite:////FILE or postgresql+psycopg://USER@HOST/NAME"
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise ArgumentError(f"it names {parsed.get_backend_name()}")
    except (ArgumentError, NoSuchModuleError, ValueError) as error:  # ValueError: of a port that is no number
        raise InvalidRequest(f"{form}; the one given cannot be used: {type(error).__name__}") from None
    if parsed.get_backend_name() == "postgresql" and "@" in f"{parsed.host}{parsed.database}":
        # What is behind the first @ may be of a password, and no message may tell it.
        words = "a password with @ has it as %40, or is in the variable PGPASSWORD"
        raise InvalidRequest(f"{form}; the one given has @ in its host or name: {words}")
    if parsed.drivername == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise InvalidRequest("a SQLite database needs a file; for records that need not last use MemoryStore")
    if parsed.get_backend_name() == "sqlite" and parsed.query:
        raise InvalidRequest(f"a SQLite database is a file alone; {', '.join(parsed.query)} cannot be set in its URL")
    return parsed


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Settings of one connection. Transactions are begun by us: the driver would begin them too late and too weakly."""
    connection.isolation_level = None
    for pragma in ("synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    try:
        connection.execute("SELECT ln(1.0)").fetchone()
    except sqlite3.OperationalError:
        # Not every SQLite was built with its mathematics.
        connection.create_function("ln", 1, _ln, deterministic=True)


def _drop_read_only(connection: Any, record: ConnectionPoolEntry) -> None:
    """Keep no connection to a file that could not be written when it was made: it will read, for good."""
    if connection is not None and record.info.get("read_only"):
        record.invalidate()


def _ln(value: float | None) -> float | None:
    return None if value is None else math.log(value)


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at once where a write is to come: upgrading a read lock can fail with no wait at all."""
    wanted = connection.get_execution_options().get("tirgemm_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if wanted else "BEGIN")
