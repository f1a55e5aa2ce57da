"""``JobHistory``: candidates, pruned configs, builds and races of a tuning job, summed up from its stored events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import select

from tirgemm.events import (
    BatchProposed,
    BuildsCounted,
    CandidateRecorded,
    FallbackStored,
    FinalistsRaced,
    Phase,
    PhaseEntered,
    RaceEntry,
    SearchStarted,
    Standing,
    event_from_json,
)
from tirgemm.status import Status
from tirgemm.tuning_db import Database, Job, JobQueue, StoredEvent
from tirgemm.tuning_db.models import CandidateRow, GemmRow

# More events than a search of the largest budget tells.
MOST_EVENTS = 100_000
FASTEST = 10
# Of what a candidate failed with, as its mark is told.
REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class CandidatePoint:
    """A candidate of a job: when it was recorded, in seconds since the job was started, its family and config's hash,
    what became of it, its median and what the model expected in microseconds a call, the median clock and on a GPU the
    highest power while it was measured, and of one that failed the beginning of the reason."""

    seconds: float
    family: str
    digest: str
    status: Status | None
    us: float | None
    predicted_us: float | None
    clock_mhz: float | None
    power_w: float | None
    message: str


@dataclass(frozen=True, slots=True)
class TriedConfig:
    """A candidate by its config: the median in microseconds a call, and its ratio to the default's (above 1 is faster);
    None where there is none."""

    config: str
    digest: str
    us: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class FailedConfigs:
    """How many candidates ended with a status other than measured for one reason, and the config of the first."""

    status: Status
    message: str
    count: int
    config: str


@dataclass(frozen=True, slots=True)
class RuleCount:
    """How many configs a rule has pruned so far, and its sentence on one of them, empty until one is recorded."""

    rule: str
    count: int
    sentence: str


@dataclass(frozen=True, slots=True)
class FinalistRace:
    """A race of the finalists, the default first; ``swapped``: with the buffers swapped."""

    entries: tuple[RaceEntry, ...]
    swapped: bool


@dataclass(frozen=True, slots=True)
class BuildCounts:
    """How many builds are queued, run, and are done and wait to be measured."""

    queued: int = 0
    building: int = 0
    built: int = 0


@dataclass
class JobHistory:
    """What a job has done up to the event ``last_event``. ``phase`` is the last one's name, ``space`` counts each
    family's configs, ``of`` are the candidates that the budget allows, ``proposed`` those that were proposed."""

    last_event: int = 0
    phase: str = ""
    detail: str = ""
    seconds_left: float | None = None
    space: dict[str, int] = field(default_factory=dict)
    proposed: int = 0
    of: int = 0
    standing: Standing = field(default_factory=Standing)
    builds: BuildCounts = field(default_factory=BuildCounts)
    expected_gain: float | None = None
    candidates: list[CandidatePoint] = field(default_factory=list)
    fastest: list[TriedConfig] = field(default_factory=list)
    failed: list[FailedConfigs] = field(default_factory=list)
    pruned: list[RuleCount] = field(default_factory=list)
    races: list[FinalistRace] = field(default_factory=list)

    @property
    def families(self) -> list[str]:
        """Those of the space, then others that were tried, in this order everywhere."""
        return list(dict.fromkeys([*self.space, *(point.family for point in self.candidates if point.family)]))

    @property
    def phase_words(self) -> str:
        """The phase as a user reads it, empty before the first."""
        words = Phase(self.phase).words if self.phase in set(Phase) else self.phase
        return f"{words} {self.detail}".strip() if self.detail else words

    @property
    def speed(self) -> float | None:
        """The best's speed relative to the default's, by the search's own times."""
        best, default = self.standing.best_us, self.standing.default_us
        return default / best if best and default else None


def job_history(queue: JobQueue, job: Job) -> JobHistory:
    """What the job has done so far."""
    events = queue.events(job.id, limit=MOST_EVENTS)
    return history(events, job.started_at or job.created_at, rule_sentences(queue.db, job))


def history(events: Sequence[StoredEvent], started_at: str, sentences: dict[str, str] | None = None) -> JobHistory:
    """The sum of a job's events; ``sentences`` says of each rule what it said of one config."""
    told = JobHistory(last_event=events[-1].id if events else 0)
    start = datetime.fromisoformat(started_at)
    failed: Counter[tuple[Status, str]] = Counter()
    examples: dict[tuple[Status, str], str] = {}
    times: dict[str, tuple[float, str]] = {}
    pruned: dict[str, Any] = {}
    for stored in events:
        match event_from_json(stored.kind, stored.data):
            case SearchStarted() as event:
                told.space = {name: size for name, size in event.space.items() if isinstance(size, int)}
                told.of, told.standing = int(event.budget.get("trials") or 0), event.standing
            case PhaseEntered() as event:
                told.phase = event.phase or told.phase
                told.detail, told.seconds_left = event.detail, event.seconds_left
            case FallbackStored() as event:
                told.standing = told.standing if told.standing.tried else _fallback_standing(event)
            case BatchProposed() as event:
                told.proposed, told.seconds_left = event.trials, event.seconds_left
                told.expected_gain, pruned = event.expected_gain, event.pruned
            case BuildsCounted() as event:
                told.builds = BuildCounts(event.queued, event.building, event.built)
            case FinalistsRaced() as event:
                told.races.append(FinalistRace(event.entries, event.swapped))
            case CandidateRecorded() as event:
                told.candidates.append(_point(event, start))
                told.standing, told.seconds_left = event.standing, event.seconds_left
                told.proposed, told.of = event.trials or told.proposed, event.of or told.of
                if event.us is not None:
                    times[event.digest] = event.us, event.config
                elif event.status is not None and event.status is not Status.MEASURED:
                    reason = event.status, event.message
                    failed[reason] += 1
                    examples.setdefault(reason, event.config)
    default_us = told.standing.default_us
    ordered = sorted(times.items(), key=lambda item: item[1][0])
    told.fastest = [
        TriedConfig(config, digest, us, default_us / us if default_us and us else None)
        for digest, (us, config) in ordered[:FASTEST]
    ]
    told.failed = [FailedConfigs(*reason, count, examples[reason]) for reason, count in failed.most_common()]
    told.pruned = _rule_counts(pruned, sentences or {})
    return told


def rule_sentences(database: Database, job: Job) -> dict[str, str]:
    """Of each rule what it said of one of the recorded configs of the job's problem."""
    request, row = job.request, CandidateRow
    wanted = (
        select(row.rule, row.message)
        .join(GemmRow, GemmRow.id == row.gemm_id)
        .where(GemmRow.text == str(request.gemm), row.device_key == request.device.key)
        .where(row.regime == request.regime, row.status == str(Status.PRUNED))
    )
    with database.read() as connection:
        return {row.rule: row.message for row in connection.execute(wanted)}


def _rule_counts(pruned: dict[str, Any], sentences: dict[str, str]) -> list[RuleCount]:
    counts = {rule: count for rule, count in pruned.items() if isinstance(count, int)}
    return [
        RuleCount(rule, counts[rule], sentences.get(rule, ""))
        for rule in sorted(counts, key=lambda rule: (-counts[rule], rule))
    ]


def _point(event: CandidateRecorded, start: datetime) -> CandidatePoint:
    seconds = round((datetime.fromisoformat(event.at) - start).total_seconds(), 2)
    return CandidatePoint(
        seconds,
        event.config.partition("(")[0],
        event.digest,
        event.status,
        event.us,
        event.predicted_us,
        event.clock_mhz,
        event.power_w,
        event.message[:REASON_CHARS],
    )


def _fallback_standing(event: FallbackStored) -> Standing:
    """How the search stands where the default alone is there."""
    times: Iterable[float] = (timing.median_us for timing in map(event.timings.of, event.timings.regimes) if timing)
    us = next(iter(times), None)
    if us is None:
        return Standing()
    return Standing(1, 1, us, event.config, None if event.role == "tuned" else us)
