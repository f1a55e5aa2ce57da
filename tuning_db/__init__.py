"""The tuning database: tables, migrations, the tuner's Store, the job queue, blobs, and moving records about.

Importing this package imports no SQL library: what needs one is loaded at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tirgemm.tuning_db.database import Database
    from tirgemm.tuning_db.job_values import Job, JobProgress, JobRequest, StoredEvent, WorkerRecord
    from tirgemm.tuning_db.jobs import JobQueue
    from tirgemm.tuning_db.store import SqlStore

__all__ = ["Database", "Job", "JobProgress", "JobQueue", "JobRequest", "SqlStore", "StoredEvent", "WorkerRecord"]

_LAZY = {"Database": "database", "JobQueue": "jobs", "SqlStore": "store"} | dict.fromkeys(
    ("Job", "JobProgress", "JobRequest", "StoredEvent", "WorkerRecord"), "job_values"
)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from tirgemm._extras import needed_by

    with needed_by(f"{__name__}.{name}"):
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    """The public names, those that are loaded at first use among them."""
    return list(__all__)
