"""Alembic's entry: run on the connection of ``tuning_db.schema``, inside its transaction."""

from __future__ import annotations

from alembic import context

from tirgemm.tuning_db.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transaction_per_migration=False,
    transactional_ddl=True,
)
context.run_migrations()
