"""The tuning database: tables, migrations, the tuner's Store, the job queue, blobs, and moving records about."""

from __future__ import annotations

from tuning_db.database import Database
from tuning_db.jobs import Event, Job, JobQueue, JobRequest, Worker
from tuning_db.store import SqlStore

__all__ = ["Database", "Event", "Job", "JobQueue", "JobRequest", "SqlStore", "Worker"]
