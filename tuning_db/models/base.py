"""The declarative base of all tables, with the types of column that several have.

Times are ISO 8601 texts in UTC with microseconds, which sort; leases and heartbeats are seconds since 1970.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Integer, MetaData
from sqlalchemy.orm import DeclarativeBase

# SQLite gives row numbers to INTEGER keys only.
Serial = BigInteger().with_variant(Integer, "sqlite")
JsonColumn = JSON(none_as_null=True)
# Ids that must never be given out twice, even after the newest row was deleted.
NEVER_REUSED = {"sqlite_autoincrement": True}


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
