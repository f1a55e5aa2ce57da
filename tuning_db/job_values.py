"""Values of the job queue: what is asked for, what became of it, its events, and the workers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, Regime, regime_named
from tirgemm.status import ENDED, JobStatus
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.records.json_values import plain_text
from tirgemm.tuning_db import rows

# Higher first; 0 where nobody says.
MIN_PRIORITY, MAX_PRIORITY = -100, 100
_WINDOW = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")


def priority_named(value: int) -> int:
    """``value``, if it can be a job's priority. Raises InvalidRequest."""
    if isinstance(value, bool) or not isinstance(value, int) or not MIN_PRIORITY <= value <= MAX_PRIORITY:
        raise InvalidRequest(f"priority is {value!r:.40}; it must be an integer from {MIN_PRIORITY} to {MAX_PRIORITY}")
    return value


@dataclass(frozen=True, slots=True)
class Window:
    """The part of every day in which a job may start, in minutes after midnight UTC; ``end`` is outside, and where it
    is before ``start`` the window goes on past midnight. Raises InvalidRequest."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not (0 <= self.start < 24 * 60 and 0 <= self.end < 24 * 60 and self.start != self.end):
            raise InvalidRequest(f"window is {self}; it must begin and end at different times of a day")

    @classmethod
    def parse(cls, text: str) -> Window:
        """The window of ``22:00-06:00``."""
        match = _WINDOW.fullmatch(text)
        if match is None:
            raise InvalidRequest(f"window is {text!r:.40}; it must be two times in UTC such as 22:00-06:00")
        hour, minute, end_hour, end_minute = map(int, match.groups())
        return cls(60 * hour + minute, 60 * end_hour + end_minute)

    def __str__(self) -> str:
        return "-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in (self.start, self.end))


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job is asked to tune, and for how long; of those that wait the one of the highest ``priority`` is first,
    then the oldest, and none starts outside its ``window``. ``other_devices``: what was shipped for other devices of
    the architecture is tried, too. Raises InvalidRequest."""

    gemm: Gemm
    device: Device
    regime: Regime = "sustained"
    trials: int = Budget().trials
    seconds: float = Budget().seconds
    effort: Effort = Effort.STANDARD
    seed: int = 0
    verify: bool = True
    priority: int = 0
    window: Window | None = None
    other_devices: bool = False

    def __post_init__(self) -> None:
        regime_named(self.regime)
        priority_named(self.priority)
        Budget(self.trials, self.seconds, self.effort)
        if not -(2**63) <= self.seed < 2**63:
            raise InvalidRequest(f"seed is {self.seed}; it must fit a signed integer of 64 bits")

    @property
    def budget(self) -> Budget:
        """What the search may spend in all; candidates that are recorded already count."""
        return Budget(self.trials, self.seconds, self.effort)

    @property
    def live_key(self) -> str:
        """Equal for requests that one running job can answer: of one effort; budgets count by their power of two,
        seeds, priority and window not at all. What is tried of other devices is another request's answer."""
        budget = [math.ceil(math.log2(max(value, 1))) for value in (self.trials, self.seconds)]
        others = ["other_devices"] if self.other_devices else []
        return rows.digest([str(self.gemm), self.device.key, self.regime, budget, self.effort, self.verify, *others])


@dataclass(frozen=True, slots=True)
class Job:
    """A tuning request and what became of it; times are ISO 8601 in UTC.

    ``attempts`` is how often a worker began it since it last had a new measurement, without those that gave it back in
    good order: each but the last ended with the death of its worker. ``key_id`` is the API key that asked for it first,
    ``retries`` how often it was put back after its end, the last time for ``retry_reason``, ``batch_id`` the batch
    that made it, and ``traceparent`` the span that asked for it first, where that is traced.
    """

    id: str
    request: JobRequest
    status: JobStatus
    fallback_id: str | None
    kernel_id: str | None
    error: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    attempts: int
    owner: str | None
    key_id: str | None = None
    retries: int = 0
    retry_reason: str | None = None
    batch_id: str | None = None
    traceparent: str | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is: what a reader compares to see whether it changed. ``newest_event`` is the id of
    its last event or end, 0 where it has none."""

    status: JobStatus
    fallback_id: str | None
    kernel_id: str | None
    newest_event: int


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of a job as it is stored. A later one has a larger id."""

    id: int
    job_id: str
    kind: str
    data: dict[str, Any]
    at: str


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker process, its devices, when it was last seen, for how many seconds each of its devices has been measured
    on, and why each cannot be used now: empty where it can."""

    name: str
    devices: tuple[Device, ...]
    seen_at: str
    measuring: tuple[float, ...]
    faults: tuple[str, ...]

    @property
    def unusable(self) -> list[tuple[Device, str]]:
        """Its devices that cannot be used now, each with the reason."""
        return [(device, fault) for device, fault in zip(self.devices, self.faults, strict=True) if fault]

    @property
    def usable_keys(self) -> set[str]:
        """The classes of which it has a device that can be used now."""
        return {device.key for device, fault in zip(self.devices, self.faults, strict=True) if not fault}

    @classmethod
    def of(cls, name: str, devices: list[dict[str, Any]], seen_at: str, measuring: Sequence[float]) -> WorkerRecord:
        """From its row, whose devices are as ``described``."""
        bare = tuple(Device.from_json({k: v for k, v in device.items() if k != _FAULT}) for device in devices)
        return cls(name, bare, seen_at, tuple(measuring), tuple(device.get(_FAULT, "") for device in devices))


# Beside a device's description in a worker's row: why it cannot be used now.
_FAULT = "unusable"


def described(devices: Sequence[Device], faults: Sequence[str]) -> list[dict[str, Any]]:
    """The devices of a worker as its row has them, with the faults of those that cannot be used now."""
    return [
        device.to_json() | ({_FAULT: plain_text(fault)} if fault else {})
        for device, fault in zip(devices, faults, strict=True)
    ]
