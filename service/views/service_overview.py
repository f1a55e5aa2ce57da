"""``ServiceOverview``: what a service has in stock, for a stranger: counts of kernels, gains, the newest kernels."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from tirgemm.gemm import Regime
from tirgemm.service.views.queries import KernelFilter, kernel_ids, kernels_by_id
from tirgemm.status import ROLES, Role
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.kernel_version import read_version
from tirgemm.tuning_db.models import KernelRow

# The gains are those of so many kernels, the newest.
GAINS_OF = 500
SHOWN_KERNELS = 8

_PLACES = select(KernelRow.device_key, KernelRow.role, func.count().label("kernels")).group_by(
    KernelRow.device_key, KernelRow.role
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
    to the default and to the fastest baseline of the same run; the newest of all."""

    kernels: dict[Role, int]
    problems: int
    devices: int
    over_default: MedianGain
    over_baseline: MedianGain
    newest: tuple[NewKernel, ...]


class OverviewReader:
    """Reads the overview of a database, anew once the stored kernels have changed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._read: tuple[int, ServiceOverview] | None = None

    def read(self) -> ServiceOverview:
        """The overview now. Raises StoreError."""
        with self._lock:
            with self._database.read() as connection:
                version = read_version(connection)
            if self._read is None or self._read[0] != version:
                self._read = version, _overview(self._database)
            return self._read[1]


def _overview(database: Database) -> ServiceOverview:
    newest_tuned = (
        select(KernelRow.regime, KernelRow.timings)
        .where(KernelRow.role == "tuned")
        .order_by(KernelRow.seq.desc())
        .limit(GAINS_OF)
    )
    with database.read() as connection:
        places = connection.execute(_PLACES).all()
        problems = connection.execute(select(func.count(func.distinct(KernelRow.gemm_id)))).scalar_one()
        ratios = [_ratios(row.timings, row.regime) for row in connection.execute(newest_tuned)]
    ids = [name for name, _ in kernel_ids(database, KernelFilter(), limit=SHOWN_KERNELS)]
    return ServiceOverview(
        {role: sum(row.kernels for row in places if row.role == role) for role in ROLES},
        problems,
        len({row.device_key for row in places}),
        _median([default for default, _ in ratios if default is not None]),
        _median([baseline for _, baseline in ratios if baseline is not None]),
        tuple(map(_new_kernel, kernels_by_id(database, ids))),
    )


def _median(ratios: list[float]) -> MedianGain:
    return MedianGain(statistics.median(ratios) if ratios else None, len(ratios))


def _ratios(timings: Mapping[str, Any], regime: str) -> tuple[float | None, float | None]:
    """The ratios to the default and to the fastest baseline in a stored document, of which nothing else is read."""
    timing = timings.get(regime)
    baselines = timing.get("baselines") if isinstance(timing, dict) else None
    if not isinstance(baselines, dict):
        return None, None
    ratios = {name: one.get("ratio") for name, one in baselines.items() if isinstance(one, dict)}
    default = ratios.pop("default", None)
    others = [ratio for ratio in ratios.values() if isinstance(ratio, int | float) and ratio > 0]
    return default if isinstance(default, int | float) else None, min(others, default=None)


def _new_kernel(record: KernelRecord) -> NewKernel:
    timing = record.timings.of(record.regime)
    ratios = {} if timing is None else {name: one.ratio for name, one in timing.baselines.items()}
    default = ratios.pop("default", None)
    baseline = min(ratios, key=lambda name: ratios[name], default=None)
    return NewKernel(
        record.id,
        str(record.gemm),
        record.device.model or record.device.name,
        record.regime,
        record.role,
        None if timing is None else timing.median_us,
        default,
        baseline,
        None if baseline is None else ratios[baseline],
        record.created_at,
    )
