"""One recorded candidate in full: its place among the others, its sample sets, and its knobs beside those of the
problem's default and of the fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from tirgemm.config import Config, Value
from tirgemm.service.views.candidate_list import ListedCandidate, Recorded
from tirgemm.service.views.spaces.problem_space import ProblemSpace
from tirgemm.status import Role
from tirgemm.tuning.intervals import median_interval
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.models import GemmRow, KernelRow
from tirgemm.tuning_db.rows import KERNEL_ORDER

_MOST_KERNELS = 5


@dataclass(frozen=True, slots=True)
class KnobBeside:
    """The value of a knob in a candidate, in the default and in the fastest; None where that has no such knob."""

    knob: str
    value: Value | None
    default: Value | None
    fastest: Value | None


@dataclass(frozen=True, slots=True)
class BaselineBeside:
    """The median of what ran in the same run, in microseconds, and ``ratio``: that over the candidate's."""

    name: str
    us: float
    ratio: float


@dataclass(frozen=True, slots=True)
class MeasuredSamples:
    """A sample set with its median and the 95 % interval of that, in microseconds. ``samples``: how many are stored;
    ``median_of``: of how many the one that is stored is the median, None where they are stored themselves."""

    reason: str
    us: float
    low: float
    high: float
    samples: int
    median_of: int | None
    baselines: tuple[BaselineBeside, ...]
    conditions: dict[str, Any]

    @classmethod
    def of(cls, samples: SampleSet) -> MeasuredSamples:
        interval = median_interval(samples.samples_us)
        beside = [(name, median_interval(theirs).value) for name, theirs in samples.baselines.items() if theirs]
        conditions = dict(samples.conditions)
        counted = conditions.pop("median_of", None)
        return cls(
            samples.reason,
            interval.value,
            interval.low,
            interval.high,
            len(samples.samples_us),
            int(counted) if isinstance(counted, int) else None,
            tuple(BaselineBeside(name, us, us / interval.value) for name, us in beside),
            conditions,
        )


@dataclass(frozen=True, slots=True)
class MadeKernel:
    """A kernel whose binary is a candidate's."""

    id: str
    role: Role
    created_at: str
    pinned: bool


@dataclass(frozen=True)
class CandidateDetail:
    """A candidate among those of its problem. ``rank`` counts the measured ones from the fastest; None where it was not
    measured."""

    entry: ListedCandidate
    us: float | None
    rank: int | None
    knobs: tuple[KnobBeside, ...]
    kernels: tuple[MadeKernel, ...]
    drawn: tuple[tuple[str, tuple[float, ...]], ...]

    @property
    def sample_sets(self) -> list[MeasuredSamples]:
        return [MeasuredSamples.of(samples) for samples in self.entry.candidate.sample_sets]


def candidate_detail(database: Database, space: ProblemSpace, config_hash: str) -> CandidateDetail | None:
    """The candidate of that hash; None where the ``space`` has none."""
    entry = space.by_hash.get(config_hash)
    if entry is None:
        return None
    config = entry.candidate.config
    return CandidateDetail(
        entry,
        space.times.get(config),
        list(space.times).index(config) + 1 if config in space.times else None,
        _knob_rows(config, space.default, space.fastest),
        _kernels(database, space.recorded, entry.candidate.kernel_sha256),
        _drawn(space, entry),
    )


def _knob_rows(config: Config, default: Config | None, fastest: Config | None) -> tuple[KnobBeside, ...]:
    """The knobs of the candidate, then those that the other two have of the same family alone."""
    mine = dict(config.knobs)
    beside = [dict(each.knobs) if each and each.family == config.family else {} for each in (default, fastest)]
    names = dict.fromkeys((*mine, *beside[0], *beside[1]))
    return tuple(KnobBeside(name, mine.get(name), beside[0].get(name), beside[1].get(name)) for name in names)


def _kernels(database: Database, space: Recorded, kernel_sha256: str) -> tuple[MadeKernel, ...]:
    """The kernels that were made of a candidate, newest first."""
    if not kernel_sha256:
        return ()
    wanted = (
        select(KernelRow.id, KernelRow.role, KernelRow.created_at, KernelRow.pinned_at)
        .join(GemmRow, GemmRow.id == KernelRow.gemm_id)
        .where(
            KernelRow.kernel_sha256 == kernel_sha256,
            GemmRow.text == str(space.gemm),
            KernelRow.device_key == space.device_key,
            KernelRow.regime == space.regime,
        )
        .order_by(*KERNEL_ORDER)
        .limit(_MOST_KERNELS)
    )
    with database.read() as connection:
        rows = connection.execute(wanted).all()
    return tuple(MadeKernel(row.id, row.role, row.created_at, row.pinned_at is not None) for row in rows)


def _drawn(space: ProblemSpace, entry: ListedCandidate) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Named samples of the candidate, by stage, then of the fastest and the default, where those are other ones."""
    shown = {"this one": entry}
    for name, config in (("the fastest", space.fastest), ("the default", space.default)):
        other = space.by_hash.get(config.digest) if config else None
        if other is not None and other not in shown.values():
            shown[name] = other
    return tuple((f"{name}, {timed.stage}", timed.samples.samples_us) for name, e in shown.items() for timed in e.times)
