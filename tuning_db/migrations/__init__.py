"""Alembic migrations, run by ``tuning_db.schema`` when a database is opened."""
