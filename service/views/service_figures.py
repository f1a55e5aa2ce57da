"""Figures of the queue, the workers and the search for whoever watches a service: a few aggregates of its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, func, select

from tirgemm.status import LIVE, Status
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.models import CandidateRow, JobRow, WorkerRow

# A worker that ended in no good order stays in its table; after so many seconds nobody waits for it.
FORGOTTEN_SECONDS = 3600.0
# Not built: refused by a rule, or the compiler's fault.
_UNBUILT = (Status.PRUNED, Status.BUILD_FAILED)

_JOBS = select(JobRow.status, func.count()).where(JobRow.status.in_(LIVE)).group_by(JobRow.status)
_LEASES = (
    select(JobRow.owner, func.min(JobRow.lease_until).label("until"))
    .where(JobRow.status.in_(LIVE), JobRow.owner.is_not(None), JobRow.lease_until.is_not(None))
    .group_by(JobRow.owner)
)
_WORKERS = select(WorkerRow.name, WorkerRow.seen, WorkerRow.devices, WorkerRow.measuring).where(
    WorkerRow.seen >= bindparam("since")
)
_NEWEST = select(func.max(CandidateRow.id))
_TRIALS = (
    select(CandidateRow.status, func.count())
    .where(CandidateRow.id > bindparam("after"), CandidateRow.id <= bindparam("last"), CandidateRow.origin == "")
    .group_by(CandidateRow.status)
)


@dataclass(frozen=True)
class DeviceOfWorker:
    """A device by the name that its worker has for it, and its UUID."""

    worker: str
    device: str
    uuid: str


@dataclass(frozen=True)
class ServiceFigures:
    """One moment of a service. ``jobs``: how many live ones are in each state. ``trials``: candidates recorded since
    the reader was made, by status; ``builds`` of those by outcome. ``lease_age_s``: by worker, how long ago the oldest
    lease that it holds was renewed; ``worker_age_s``: how long ago it was seen. ``measuring_s``: for how long each
    device of each worker has been measured on since that worker's start."""

    jobs: Mapping[str, int]
    trials: Mapping[str, int]
    builds: Mapping[str, int]
    lease_age_s: Mapping[str, float]
    worker_age_s: Mapping[str, float]
    measuring_s: Mapping[DeviceOfWorker, float]


def newest_candidate(database: Database) -> int:
    """The row number of the newest candidate; 0 where there is none."""
    with database.read() as connection:
        return connection.execute(_NEWEST).scalar() or 0


def live_jobs(connection: Connection) -> dict[str, int]:
    """How many live jobs are in each state."""
    return dict.fromkeys(map(str, LIVE), 0) | {row[0]: row[1] for row in connection.execute(_JOBS)}


class FigureReader:
    """Reads the figures of a database, whose leases last ``lease_s``; of the candidates only those that are new: behind
    the row number ``after``, by default the newest now."""

    def __init__(self, database: Database, lease_s: float, after: int | None = None) -> None:
        self._database = database
        self._lease_s = lease_s
        self._trials: Counter[str] = Counter()
        self._last = newest_candidate(database) if after is None else after

    def read(self) -> ServiceFigures:
        """The figures now. Raises StoreError."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            jobs = live_jobs(connection)
            leases = {
                owner: now - (until - self._lease_s)
                for owner, until in connection.execute(_LEASES)
                if owner is not None and until is not None
            }
            since = {"since": now - FORGOTTEN_SECONDS}
            worker_rows = connection.execute(_WORKERS, since).all()
            last = connection.execute(_NEWEST).scalar() or 0
            for status, count in connection.execute(_TRIALS, {"after": self._last, "last": last}):
                self._trials[status] += count
        self._last = last
        workers = {row.name: now - row.seen for row in worker_rows}
        measuring = {
            DeviceOfWorker(row.name, device["name"], device["uuid"]): seconds
            for row in worker_rows
            for device, seconds in zip(row.devices, row.measuring, strict=False)
        }
        trials = {str(status): self._trials[status] for status in Status}
        return ServiceFigures(jobs, trials, _builds(trials), leases, workers, measuring)


def _builds(trials: Mapping[str, int]) -> dict[str, int]:
    """How many candidates were built, and how many failed to."""
    built = sum(count for status, count in trials.items() if status not in _UNBUILT)
    return {"built": built, "failed": trials[Status.BUILD_FAILED]}
