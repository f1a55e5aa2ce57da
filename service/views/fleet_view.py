"""``FleetView``: the workers with what each of their devices does at this moment, the queue, and rates of trials."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, not_, select

from tirgemm.events import CandidateRecorded, Phase, PhaseEntered, event_from_json
from tirgemm.gemm import Regime
from tirgemm.service.jobs.worker_names import slot_name
from tirgemm.service.views.service_figures import live_jobs
from tirgemm.status import Status
from tirgemm.tuning_db import JobQueue
from tirgemm.tuning_db.job_values import Window
from tirgemm.tuning_db.models import CandidateRow, EventRow, GemmRow, JobRow
from tirgemm.tuning_db.queue.job_rows import QUEUE_ORDER, window_open
from tirgemm.tuning_db.times import iso

RATE_MINUTES = 10
# No more than so many candidates, the newest, are looked at for the rates.
NEWEST = 20_000
SHOWN_JOBS = 20


@dataclass(frozen=True, slots=True)
class RunningJob:
    """What a device is tuning: ``tried`` of the candidates that the budget allows are recorded; the best so far and the
    default in microseconds a call; ``phase`` in words."""

    id: str
    gemm: str
    regime: Regime
    phase: str
    tried: int
    of: int
    best_us: float | None
    default_us: float | None
    started_at: str | None


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A device of a worker, for how many seconds it has been measured on since the worker's start, its job (None where
    it has none), and why it cannot be used now, empty where it can."""

    name: str
    key: str
    model: str
    kind: str
    measured_s: float
    job: RunningJob | None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class FleetWorker:
    """A live worker process."""

    name: str
    seen_at: str
    devices: tuple[FleetDevice, ...]


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job in the queue; ``window``: when it may start, in UTC, None where that is at any time."""

    id: str
    gemm: str
    device: str
    priority: int
    created_at: str
    window: str | None


@dataclass(frozen=True, slots=True)
class FleetRates:
    """Candidates of the last ``minutes`` by status, and a minute: ``trials`` recorded and ``builds`` that came to a
    kernel; of no more than the newest ``NEWEST``."""

    minutes: float
    trials: float
    builds: float
    statuses: dict[str, int]


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet at one moment. ``jobs`` counts live ones by state, ``waiting`` are the first of the queue."""

    workers: tuple[FleetWorker, ...]
    jobs: dict[str, int]
    waiting: tuple[WaitingJob, ...]
    rates: FleetRates


def read_fleet(queue: JobQueue, alive_seconds: float) -> FleetView:
    """The fleet now; a worker that was not seen for ``alive_seconds`` is not of it. Raises StoreError."""
    workers = queue.live_workers(alive_seconds)
    with queue.db.read() as connection:
        running = _running(connection)
        jobs = live_jobs(connection)
        now = queue.db.now(connection)
        waiting = _waiting(connection, now)
        rates = _rates(connection, now)
    return FleetView(
        tuple(
            FleetWorker(
                worker.name,
                worker.seen_at,
                tuple(
                    FleetDevice(
                        device.name,
                        device.key,
                        device.model,
                        device.kind,
                        seconds,
                        running.get(slot_name(worker.name, number)),
                        worker.faults[number],
                    )
                    for number, (device, seconds) in enumerate(
                        zip(worker.devices, worker.measuring or (0.0,) * len(worker.devices), strict=False)
                    )
                ),
            )
            for worker in workers
        ),
        jobs,
        waiting,
        rates,
    )


def _waiting(connection: Connection, now: float) -> tuple[WaitingJob, ...]:
    """The first queued jobs, those last that may not start now."""
    job = JobRow
    columns = (job.id, GemmRow.text, job.device_key, job.priority, job.created_at, job.window_start, job.window_end)
    wanted = select(*columns).join(GemmRow, GemmRow.id == job.gemm_id).where(job.status == "queued")
    rows: list[Row[Any]] = []
    # One after the other, as no index has this order.
    for may_start in (window_open(now), not_(window_open(now))):
        part = wanted.where(may_start).order_by(*QUEUE_ORDER).limit(SHOWN_JOBS - len(rows))
        rows += connection.execute(part)
    return tuple(
        WaitingJob(
            row.id,
            row.text,
            row.device_key,
            row.priority,
            row.created_at,
            None if row.window_start is None else str(Window(row.window_start, row.window_end)),
        )
        for row in rows
    )


def _running(connection: Connection) -> dict[str, RunningJob]:
    """The running jobs by their owner."""
    wanted = (
        select(JobRow.id, JobRow.owner, JobRow.regime, JobRow.trials, JobRow.started_at, GemmRow.text)
        .join(GemmRow, GemmRow.id == JobRow.gemm_id)
        .where(JobRow.status == "running")
    )
    jobs: dict[str, RunningJob] = {}
    for row in connection.execute(wanted):
        phase = event_from_json(PhaseEntered.KIND, _newest(connection, row.id, PhaseEntered.KIND))
        candidate = event_from_json(CandidateRecorded.KIND, _newest(connection, row.id, CandidateRecorded.KIND))
        assert isinstance(phase, PhaseEntered)
        assert isinstance(candidate, CandidateRecorded)
        standing = candidate.standing
        jobs[row.owner or ""] = RunningJob(
            row.id,
            row.text,
            row.regime,
            (phase.phase or Phase.STARTING).with_detail(phase.detail),
            standing.tried,
            candidate.of or row.trials,
            standing.best_us,
            standing.default_us,
            row.started_at,
        )
    return jobs


def _newest(connection: Connection, job_id: str, kind: str) -> dict[str, object]:
    """The data of a job's newest event of a kind; empty where it has none."""
    wanted = select(EventRow.data).where(EventRow.job_id == job_id, EventRow.kind == kind)
    data: dict[str, object] | None = connection.execute(wanted.order_by(EventRow.id.desc()).limit(1)).scalar()
    return data or {}


def _rates(connection: Connection, now: float) -> FleetRates:
    newest = connection.execute(select(func.max(CandidateRow.id))).scalar() or 0
    wanted = (
        select(CandidateRow.status, func.count())
        .where(CandidateRow.id > newest - NEWEST, CandidateRow.created_at >= iso(now - 60 * RATE_MINUTES))
        .where(CandidateRow.origin == "", CandidateRow.status != str(Status.PRUNED))
        .group_by(CandidateRow.status)
    )
    statuses: Counter[str] = Counter({row[0]: row[1] for row in connection.execute(wanted)})
    built = statuses.total() - statuses[Status.BUILD_FAILED]
    return FleetRates(RATE_MINUTES, statuses.total() / RATE_MINUTES, built / RATE_MINUTES, dict(statuses))
