"""``AuditLog``: who changed what on a service or by a command, and who was refused, in a table that is only added
to."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select

from tirgemm.errors import StoreError
from tirgemm.tuning_db.database import ClockedTables, Database
from tirgemm.tuning_db.models import AuditRow
from tirgemm.tuning_db.times import iso

logger = logging.getLogger("tirgemm.tuning_db")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """``key_id`` (None: no key that is known) did ``action`` (``POST``) to ``object`` (a path), answered with the HTTP
    status ``outcome``, from ``address``; ``count`` times within a minute. Of a command that has done its work the
    action is its name, the outcome 0 and the address that of ``command_user``."""

    key_id: str | None
    action: str
    object: str
    outcome: int
    address: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it is stored: a later one has a larger id; ``at`` is ISO 8601 in UTC."""

    id: int
    at: str
    entry: AuditEntry


def command_user() -> str:
    """The address of commands: that it was one, and whose."""
    try:
        return f"command of {getpass.getuser()}"
    except (KeyError, OSError, ImportError):  # of a user number that nobody has given a name
        return "command"


def note_command(db: Database, action: str, what: str) -> None:
    """Write an entry for a command that has changed ``what`` in a database. The command has done its work: an entry
    that cannot be written is logged."""
    try:
        plain = what.encode("utf-8", "backslashreplace").decode()
        AuditLog(db).add([AuditEntry(None, action, plain, 0, command_user())])
    except StoreError as error:
        logger.warning("%s is not in the audit log: %s", action, error)


class AuditLog(ClockedTables):
    """The audit table of a Database."""

    def add(self, entries: Sequence[AuditEntry]) -> None:
        """Write entries, all of one moment; what is too long for its column is cut."""
        if not entries:
            return
        with self.db.write() as connection:
            at = iso(self._now(connection))
            values = [
                {
                    "at": at,
                    "key_id": entry.key_id,
                    "action": entry.action[:64],
                    "object": entry.object[:200].replace("\x00", ""),
                    "outcome": entry.outcome,
                    "address": entry.address[:64],
                    "times": entry.count,
                }
                for entry in entries
            ]
            connection.execute(insert(AuditRow), values)

    def entries(self, limit: int = 100, key_id: str | None = None) -> list[StoredEntry]:
        """The newest entries first, where given only those of a key."""
        wanted = select(*AuditRow.__table__.columns).order_by(AuditRow.id.desc()).limit(max(limit, 0))
        if key_id is not None:
            wanted = wanted.where(AuditRow.key_id == key_id)
        with self.db.read() as connection:
            return [
                StoredEntry(
                    row.id,
                    row.at,
                    AuditEntry(row.key_id, row.action, row.object, row.outcome, row.address, row.times),
                )
                for row in connection.execute(wanted)
            ]
