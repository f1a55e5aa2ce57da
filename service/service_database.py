"""The database that the settings of a service name, for its servers and workers."""

from __future__ import annotations

from tirgemm.service.settings import Settings
from tirgemm.tuning_db import Database, data_folder

# How long an answer of a database server is awaited: by requests, whose clients wait, and by workers.
REQUEST_SECONDS, WORKER_SECONDS = 5.0, 30.0


def open_database(settings: Settings, limit_s: float = WORKER_SECONDS) -> Database:
    """The database that the settings name, with the current schema. Raises SchemaTooNew and StoreError."""
    return data_folder.open_database(settings.data, settings.db or None, limit_s)
