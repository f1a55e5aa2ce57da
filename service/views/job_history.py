"""``JobHistory``: candidates, pruned configs, builds and races of a tuning job, summed up from its stored events."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

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
# Of the sums of jobs that are kept: candidates in all, which are 16 searches of the largest budget or a
# thousand small ones. A job counts as so many candidates at least.
KEPT_CANDIDATES = 65_536
LEAST_WEIGHT = 64
_SIZES = re.compile(r"\d+")
# Of what a candidate failed with, as its mark is told.
REASON_CHARS = 200
SENTENCE_CHARS = 400


class CandidatePoint(NamedTuple):
    """A candidate of a job: when it was recorded, in seconds since the job was started, its family and config's hash,
    what became of it, its median and what the model expected in microseconds a call, the median clock and on a GPU the
    highest power while it was measured, of one that failed the beginning of the reason, and where m is a range the part
    of it that the candidate is for. An array in JSON, as there may be thousands."""

    seconds: float
    family: str
    digest: str
    status: Status | None
    us: float | None
    predicted_us: float | None
    clock_mhz: float | None
    power_w: float | None
    message: str
    m: str


@dataclass(frozen=True, slots=True)
class TriedConfig:
    """A candidate by its config: the median in microseconds a call, and its ratio to the default's (above 1 is faster);
    None where there is none. ``m``: as of a ``CandidatePoint``."""

    config: str
    digest: str
    us: float | None
    ratio: float | None
    m: str


@dataclass(frozen=True, slots=True)
class FailedConfigs:
    """How many candidates ended with a status other than measured for one reason, and the first one's config and its
    hash."""

    status: Status
    message: str
    count: int
    config: str
    digest: str


@dataclass(frozen=True, slots=True)
class RuleCount:
    """How many configs a rule has pruned so far, and its sentence on one of them, empty where a worker of an older
    tirgemm searches, which records examples at the end."""

    rule: str
    count: int
    sentence: str


@dataclass(frozen=True, slots=True)
class FinalistRace:
    """A race of the finalists, the default first; ``swapped``: with the buffers swapped. ``m``: as of a
    ``CandidatePoint``."""

    entries: tuple[RaceEntry, ...]
    swapped: bool
    m: str


@dataclass(frozen=True, slots=True)
class BuildCounts:
    """How many builds are queued, run, and are done and wait to be measured."""

    queued: int = 0
    building: int = 0
    built: int = 0


@dataclass
class JobHistory:
    """What a job has done up to the event ``last_event``. ``phase`` is the last one's name, ``space`` counts each
    family's configs, ``of`` are the candidates that the budget allows, ``proposed`` those that were proposed;
    ``columns`` name the members of each of ``candidates``. Where m is a range, ``of`` is 0, and ``standing`` counts the
    candidates of all its parts and names no best."""

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
    columns: tuple[str, ...] = CandidatePoint._fields
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
    def is_range(self) -> bool:
        """Whether the candidates are of parts of a range of m."""
        return any(point.m for point in self.candidates)

    @property
    def phase_words(self) -> str:
        """The phase as a user reads it, empty before the first."""
        known = self.phase in set(Phase)
        return Phase(self.phase).with_detail(self.detail) if known else f"{self.phase} {self.detail}".strip()

    @property
    def speed(self) -> float | None:
        """The best's speed relative to the default's, by the search's own times."""
        best, default = self.standing.best_us, self.standing.default_us
        return default / best if best and default else None


class HistoryReader:
    """Sums up jobs from their events; of those that were asked for last, which have at most ``KEPT_CANDIDATES``
    together, it reads the new events alone."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._sums: dict[str, _Sum] = {}

    def read(self, job: Job) -> JobHistory:
        """What the job has done so far. Raises StoreError."""
        start = job.started_at or job.created_at
        with self._lock:
            known = self._sums.pop(job.id, None)
            summed = known if known is not None and known.start == start else _Sum(start)
            self._sums[job.id] = summed
        sentences = rule_sentences(self._queue.db, job)
        # One of each job: no page waits for what that of another job asks of the database.
        with summed.lock:
            for stored in self._queue.events(job.id, after=summed.last_event, limit=MOST_EVENTS):
                summed.take(stored)
            history = summed.history(sentences)
        self._forget()
        return history

    def _forget(self) -> None:
        """Forget the jobs that nobody has asked for the longest, beyond what is kept; never the last one."""
        with self._lock:
            weights = {name: summed.weight for name, summed in self._sums.items()}
            total = sum(weights.values())
            for name in list(self._sums)[:-1]:
                if total <= KEPT_CANDIDATES:
                    return
                total -= weights[name]
                del self._sums[name]


class _Sum:
    """The sum of a job's events up to ``last_event``; times count from ``start``. Whoever adds to it holds its
    ``lock``."""

    def __init__(self, start: str) -> None:
        self.lock = threading.Lock()
        self.start = start
        self._began = datetime.fromisoformat(start)
        self._now = JobHistory()
        self._failed: Counter[tuple[Status, str]] = Counter()
        self._examples: dict[tuple[Status, str], tuple[str, str]] = {}
        self._times: dict[tuple[str, str], tuple[float, str]] = {}
        self._pruned: dict[str, Any] = {}
        self._sentences: dict[str, str] = {}

    @property
    def last_event(self) -> int:
        return self._now.last_event

    @property
    def weight(self) -> int:
        """About how many candidates it is as large as."""
        return max(LEAST_WEIGHT, len(self._now.candidates))

    def take(self, stored: StoredEvent) -> None:
        """Add the next event."""
        now = self._now
        now.last_event = stored.id
        match event_from_json(stored.kind, stored.data):
            case SearchStarted() as event:
                now.space = {name: size for name, size in event.space.items() if isinstance(size, int)}
                now.of, now.standing = int(event.budget.get("trials") or 0), event.standing
            case PhaseEntered() as event:
                now.phase = event.phase or now.phase
                now.detail, now.seconds_left = event.detail, event.seconds_left
            case FallbackStored() as event:
                now.standing = now.standing if now.standing.tried else _fallback_standing(event)
            case BatchProposed() as event:
                now.proposed, now.seconds_left = event.trials, event.seconds_left
                now.expected_gain, self._pruned = event.expected_gain, event.pruned
                for rule, sentence in event.sentences.items():
                    self._sentences.setdefault(rule, str(sentence)[:SENTENCE_CHARS])
            case BuildsCounted() as event:
                now.builds = BuildCounts(event.queued, event.building, event.built)
            case FinalistsRaced() as event:
                now.races.append(FinalistRace(event.entries, event.swapped, event.m))
            case CandidateRecorded() as event:
                self._take_candidate(event)

    def history(self, sentences: Mapping[str, str]) -> JobHistory:
        """The sum; ``sentences`` says of each rule what it said of one config, where the events do not."""
        fastest = self._fastest()
        failed = [FailedConfigs(*why, count, *self._examples[why]) for why, count in self._failed.most_common()]
        pruned = _rule_counts(self._pruned, {**sentences, **self._sentences})
        candidates, races = list(self._now.candidates), list(self._now.races)
        told = replace(self._now, candidates=candidates, races=races, fastest=fastest, failed=failed, pruned=pruned)
        # What the events say of a range is of the part that is searched.
        return replace(told, of=0, standing=Standing(len(candidates))) if told.is_range else told

    def _fastest(self) -> list[TriedConfig]:
        """The fastest; where m is a range that of each part, as times of several sizes compare with nothing."""
        default_us = self._now.standing.default_us
        ordered = sorted(self._times.items(), key=lambda item: item[1][0])
        if not any(m for m, _ in self._times):
            return [
                TriedConfig(config, digest, us, default_us / us if default_us and us else None, m)
                for (m, digest), (us, config) in ordered[:FASTEST]
            ]
        first: dict[str, TriedConfig] = {}
        for (m, digest), (us, config) in ordered:
            first.setdefault(m, TriedConfig(config, digest, us, None, m))
        return sorted(first.values(), key=lambda tried: [int(size) for size in _SIZES.findall(tried.m)][::-1])

    def _take_candidate(self, event: CandidateRecorded) -> None:
        now = self._now
        last = now.candidates[-1].seconds if now.candidates else 0.0
        now.candidates.append(_point(event, self._began, last))
        now.standing, now.seconds_left = event.standing, event.seconds_left
        now.proposed, now.of = event.trials or now.proposed, event.of or now.of
        if event.us is not None:
            self._times[event.m, event.digest] = event.us, event.config
        elif event.status is not None and event.status is not Status.MEASURED:
            why = event.status, event.message
            self._failed[why] += 1
            self._examples.setdefault(why, (event.config, event.digest))


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


def _rule_counts(pruned: Mapping[str, Any], sentences: Mapping[str, str]) -> list[RuleCount]:
    counts = {rule: count for rule, count in pruned.items() if isinstance(count, int)}
    return [
        RuleCount(rule, counts[rule], sentences.get(rule, ""))
        for rule in sorted(counts, key=lambda rule: (-counts[rule], rule))
    ]


def _point(event: CandidateRecorded, start: datetime, last: float) -> CandidatePoint:
    """The mark of a candidate; of one that does not say when it was recorded at the seconds of the ``last`` one."""
    try:
        seconds = round((datetime.fromisoformat(event.at) - start).total_seconds(), 2)
    except (ValueError, TypeError):
        seconds = last
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
        event.m,
    )


def _fallback_standing(event: FallbackStored) -> Standing:
    """How the search stands where the default alone is there."""
    us = next((timing.median_us for timing in map(event.timings.of, event.timings.regimes) if timing), None)
    if us is None:
        return Standing()
    return Standing(1, 1, us, event.config, None if event.role == "tuned" else us)
