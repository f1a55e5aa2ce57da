"""``ServiceOverview``: what a service has in stock, for a stranger: counts of kernels, gains, the newest kernels."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from dataclasses import dataclass

from sqlalchemy import func, select

from tirgemm.gemm import Regime
from tirgemm.service.views.queries import KernelFilter, kernel_ids, kernels_by_id
from tirgemm.status import ROLES, Role
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.answers.kernel_version import read_version
from tirgemm.tuning_db.models import KernelFigureRow

# The gains are those of so many kernels, the newest.
GAINS_OF = 500
SHOWN_KERNELS = 8

_PLACES = select(KernelFigureRow.device_key, KernelFigureRow.role, func.count().label("kernels")).group_by(
    KernelFigureRow.device_key, KernelFigureRow.role
)


@dataclass(frozen=True, slots=True)
class NewKernel:
    """A kernel as the front page lists it: its median in microseconds a call, and its speed relative to the default's
    and to the fastest baseline's of the same run (above 1 it is faster); None where nobody took it."""

    id: str
    gemm: str
    device: str
    regime: Regime
    role: Role
    us: float | None
    default_ratio: float | None
    baseline: str | None
    baseline_ratio: float | None
    created_at: str


@dataclass(frozen=True, slots=True)
class MedianGain:
    """The median of a ratio over ``kernels``; None over none."""

    ratio: float | None
    kernels: int


@dataclass(frozen=True, slots=True)
class ServiceOverview:
    """The stored kernels by role, of how many ``problems`` and ``devices``; the speed of the newest tuned ones relative
    to the default and to the fastest baseline of the same run, which are the ``baselines``, the most frequent first;
    the newest of all."""

    kernels: dict[Role, int]
    problems: int
    devices: int
    over_default: MedianGain
    over_baseline: MedianGain
    baselines: tuple[str, ...]
    newest: tuple[NewKernel, ...]


class OverviewReader:
    """Reads the overview of a database, anew once the stored kernels have changed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._read: tuple[int, ServiceOverview] | None = None

    def read(self) -> ServiceOverview:
        """The overview now. Raises StoreError."""
        with self._database.read() as connection:
            version = read_version(connection)
        with self._lock:
            if self._read is None or self._read[0] != version:
                self._read = version, _overview(self._database)
            return self._read[1]


def _overview(database: Database) -> ServiceOverview:
    newest_tuned = (
        select(KernelFigureRow.default_ratio, KernelFigureRow.baseline_ratio, KernelFigureRow.baseline)
        .where(KernelFigureRow.role == "tuned")
        .order_by(KernelFigureRow.seq.desc())
        .limit(GAINS_OF)
    )
    with database.read() as connection:
        places = connection.execute(_PLACES).all()
        problems = connection.execute(select(func.count(func.distinct(KernelFigureRow.gemm_id)))).scalar_one()
        ratios = connection.execute(newest_tuned).all()
    ids = [name for name, _ in kernel_ids(database, KernelFilter(), limit=SHOWN_KERNELS)]
    return ServiceOverview(
        {role: sum(row.kernels for row in places if row.role == role) for role in ROLES},
        problems,
        len({row.device_key for row in places}),
        _median([row.default_ratio for row in ratios if row.default_ratio is not None]),
        _median([row.baseline_ratio for row in ratios if row.baseline_ratio is not None]),
        tuple(name for name, _ in Counter(row.baseline for row in ratios if row.baseline).most_common()),
        tuple(map(_new_kernel, kernels_by_id(database, ids))),
    )


def _median(ratios: list[float]) -> MedianGain:
    return MedianGain(statistics.median(ratios) if ratios else None, len(ratios))


def _new_kernel(record: KernelRecord) -> NewKernel:
    timing = record.timings.of(record.regime)
    baseline = None if timing is None else timing.fastest_baseline
    return NewKernel(
        record.id,
        str(record.gemm),
        record.device.model or record.device.name,
        record.regime,
        record.role,
        None if timing is None else timing.median_us,
        None if timing is None else timing.ratio_to("default"),
        baseline,
        None if timing is None or baseline is None else timing.ratio_to(baseline),
        record.created_at,
    )
