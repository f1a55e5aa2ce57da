"""Alembic migrations, run by ``tuning_db.schema`` when a database is opened.

A new one is a file of ``versions/`` whose ``down_revision`` is ``schema.HEAD`` so far; then HEAD and KNOWN follow it. A
test compares what the migrations make with the models.
"""
