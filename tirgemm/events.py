"""Events: what a tuning tells while it runs, as values.

``tirgemm.tune(on_event=...)`` is called with them, a service's jobs store them and send them on, as JSON under the
kind. Times of kernels are in microseconds a call, names that end in ``_us``; ``seconds_left`` is what is left of the
budget, in seconds, None outside the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypeVar

from tirgemm.status import Status
from tirgemm.timings import Timings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
E = TypeVar("E", bound=StrEnum)


class Phase(StrEnum):
    """What a tuning is at. The value is what the event ``phase`` names it by; ``words`` is what a user reads."""

    QUEUED = "queued"
    STARTING = "starting"
    WAITING = "waiting"
    DEFAULT = "default"
    BUILDING = "building"
    MEASURING = "measuring"
    CHOOSING = "choosing"
    CERTIFYING = "certifying"
    DOWNLOADING = "downloading"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def words(self) -> str:
        return _WORDS.get(self, self.value)

    def with_detail(self, detail: str) -> str:
        """The words, and behind them what ``detail`` says for a person."""
        behind = f" ({detail})" if self is Phase.WAITING else f" {detail}"
        return self.words + behind if detail else self.words


_WORDS = {
    Phase.QUEUED: "waiting for a worker",
    Phase.WAITING: "waiting for the device",
    Phase.DEFAULT: "building the default kernel",
}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a tuning. ``KIND`` is its name on the wire, ``at`` when it was, ISO 8601 in UTC."""

    KIND: ClassVar[str] = ""
    at: str = field(default_factory=_now)

    @property
    def kind(self) -> str:
        return self.KIND

    def to_json(self) -> dict[str, Any]:
        """The event as JSON, without its kind: the members of a standing beside the others, the time last."""
        document = {item.name: _plain(getattr(self, item.name)) for item in fields(self)}
        standing, at = document.pop("standing", None), document.pop("at")
        return document | (asdict(standing) if isinstance(standing, Standing) else {}) | {"at": at}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The event that ``data`` tells of. It may be of another version: what is missing or of another type is as if
        nothing had been said of it."""
        return _read(cls, data)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a search stands by the records: candidates ``tried``, those ``measured``, the ``best``'s config, and the
    times."""

    tried: int = 0
    measured: int = 0
    best_us: float | None = None
    best: str | None = None
    default_us: float | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseEntered(Event):
    """What is being done changes. ``phase`` is None where a newer version named one that is unknown here; ``detail`` is
    for a person."""

    KIND = "phase"
    phase: Phase | None
    detail: str = ""
    seconds_left: float | None = None


@dataclass(frozen=True, kw_only=True)
class SearchStarted(Event):
    """The search begins, or goes on. ``space`` counts each family's configs; ``budget`` has ``trials`` and ``seconds``;
    ``effort`` is its level; ``recorded`` counts the candidates that are there already."""

    KIND = "started"
    gemm: str = ""
    device: str = ""
    regime: str = ""
    families: tuple[str, ...] = ()
    space: dict[str, Any] = field(default_factory=dict)
    budget: dict[str, Any] = field(default_factory=dict)
    effort: str = ""
    recorded: int = 0
    standing: Standing = Standing()


@dataclass(frozen=True, kw_only=True)
class FallbackStored(Event):
    """The default kernel is stored: ``kernel`` is its id, ``timings`` are those of its record."""

    KIND = "fallback"
    kernel: str | None = None
    role: str = ""
    config: str = ""
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, kw_only=True)
class BatchProposed(Event):
    """``proposed`` candidates more are to be tried, ``trials`` in all; ``pruned`` counts those rejected so far, by
    rule; ``sentences`` has of each rule that rejected its first since the last batch what it said of that one;
    ``expected_gain`` is the share by which they are expected to be faster than the best, None while nothing
    says."""

    KIND = "batch"
    proposed: int = 0
    trials: int = 0
    pruned: dict[str, Any] = field(default_factory=dict)
    sentences: dict[str, Any] = field(default_factory=dict)
    expected_gain: float | None = None
    seconds_left: float | None = None


@dataclass(frozen=True, kw_only=True)
class BuildsCounted(Event):
    """How many candidates' builds are ``queued``, how many are ``building``, and how many are ``built`` and wait to be
    measured. Told when that changes, at most twice a second, and when none is left. A service forgets it once the job
    has ended."""

    KIND = "builds"
    queued: int = 0
    building: int = 0
    built: int = 0


@dataclass(frozen=True, kw_only=True)
class CandidateRecorded(Event):
    """A candidate has its record. ``digest`` is the config's hash; ``us`` its median, None unless measured, and
    ``predicted_us`` the model's; ``trials`` were proposed so far ``of`` those that the budget allows. Of a measured one
    ``clock_mhz`` is the median clock while it ran, of a GPU also ``power_w``, the highest power, and ``throttled``, the
    reasons for which its clock was held down; None and none where nothing says. Where the problem's m is a range, ``m``
    is the part of it that the candidate is for, such as ``1..64``, and it was measured at its end; else empty."""

    KIND = "candidate"
    config: str = ""
    digest: str = ""
    status: Status | None = None
    us: float | None = None
    message: str = ""
    trials: int = 0
    of: int = 0
    predicted_us: float | None = None
    clock_mhz: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()
    seconds_left: float | None = None
    m: str = ""
    standing: Standing = Standing()


@dataclass(frozen=True, slots=True)
class RaceEntry:
    """A finalist in a race: its config, the median and the quartiles of its samples in microseconds a call, its ratio
    to the default (above 1 is faster) and the lower 95 % bound of that; where it failed the ``message`` alone. Ratios
    are None where the default failed."""

    config: str = ""
    digest: str = ""
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    samples: int = 0
    ratio: float | None = None
    ratio_low: float | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class FinalistsRaced(Event):
    """The race that chooses has been run: its ``entries``, the default first. It is run again, ``swapped``, with the
    buffers swapped where the lead is small. Where m is a range there is one at each size that is compared; ``m`` is as
    of a candidate."""

    KIND = "race"
    entries: tuple[RaceEntry, ...] = ()
    swapped: bool = False
    m: str = ""


@dataclass(frozen=True, kw_only=True)
class KernelSelected(Event):
    """The search's kernel is selected, certified and stored."""

    KIND = "selected"
    kernel: str | None = None
    config: str = ""
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """The last event of a tuning: ``kernel`` is what it ended with, ``error`` is ``code: reason`` in one text."""

    kernel: str | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"status": self.kind} | super().to_json()


@dataclass(frozen=True, kw_only=True)
class Done(Ended):
    """There is a kernel. ``config`` is empty where it was deleted since; ``stored``: it was in the database, and
    nothing was searched."""

    KIND = "done"
    config: str = ""
    timings: Timings = field(default_factory=Timings)
    stored: bool = False

    def to_json(self) -> dict[str, Any]:
        untold = {"stored": self.stored, "config": self.config, "timings": self.config}
        return {name: value for name, value in super().to_json().items() if untold.get(name, True)}


@dataclass(frozen=True, kw_only=True)
class Failed(Ended):
    """It failed."""

    KIND = "failed"


@dataclass(frozen=True, kw_only=True)
class WasCancelled(Ended):
    """It was cancelled. Its records are kept."""

    KIND = "cancelled"


@dataclass(frozen=True, kw_only=True)
class JobPolled(Event):
    """The job document, told by a client that cannot follow the events; a service sends none."""

    KIND = "job"
    document: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return self.document

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(document=dict(data))


@dataclass(frozen=True, kw_only=True)
class Downloaded(Event):
    """``bytes`` of the artifact have come of ``total``, which is 0 where the service does not say; told by a client."""

    KIND = "download"
    bytes: int = 0
    total: int = 0


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(Event):
    """An event of a kind that a newer version tells."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.name

    def to_json(self) -> dict[str, Any]:
        return self.data


EventHandler: TypeAlias = Callable[[Event], None]

# What a service sends, and what a client tells besides.
SENT: tuple[type[Event], ...] = (
    FallbackStored,
    SearchStarted,
    PhaseEntered,
    BatchProposed,
    BuildsCounted,
    CandidateRecorded,
    FinalistsRaced,
    KernelSelected,
    Done,
    Failed,
    WasCancelled,
)
LOCAL: tuple[type[Event], ...] = (JobPolled, Downloaded)
_KINDS = {event.KIND: event for event in (*SENT, *LOCAL)}


def event_from_json(kind: str, data: Mapping[str, Any]) -> Event:
    """The event of a kind as it came over the wire."""
    event = _KINDS.get(kind)
    return UnknownEvent(name=kind, data=dict(data)) if event is None else event.from_json(data)


def _plain(value: Any) -> Any:
    if isinstance(value, Timings):
        return value.to_json()
    if isinstance(value, tuple):
        return [asdict(item) if is_dataclass(item) and not isinstance(item, type) else item for item in value]
    return value


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _enum(cls: type[E]) -> Callable[[Any], E | None]:
    return lambda value: cls(value) if isinstance(value, str) and value in set(cls) else None


# How a field of each type is read from JSON.
_READERS: dict[str, Callable[[Any], Any]] = {
    "str": lambda value: value if isinstance(value, str) else "",
    "str | None": lambda value: value if isinstance(value, str) else None,
    "int": lambda value: value if isinstance(value, int) and value > 0 else 0,
    "bool": bool,
    "float | None": _number,
    "dict[str, Any]": lambda value: dict(value) if isinstance(value, dict) else {},
    "tuple[str, ...]": lambda value: tuple(map(str, value)) if isinstance(value, list | tuple) else (),
    "tuple[RaceEntry, ...]": lambda value: (
        tuple(_read(RaceEntry, item) for item in value if isinstance(item, dict)) if isinstance(value, list) else ()
    ),
    "Timings": lambda value: Timings.from_json(value) if isinstance(value, dict) else Timings(),
    "Phase | None": _enum(Phase),
    "Status | None": _enum(Status),
}


@cache
def _fields_read(cls: type[DataclassInstance]) -> tuple[tuple[str, Callable[[Any], Any] | None], ...]:
    """The fields of ``cls``, and how each is read; None for a standing, whose members stand beside the others."""
    return tuple((item.name, None if item.type == "Standing" else _READERS[str(item.type)]) for item in fields(cls))


def _read(cls: type[T], data: Mapping[str, Any]) -> T:
    """``cls`` of the members of ``data`` that its fields name."""
    return cls(
        **{
            name: _read(Standing, data) if reader is None else reader(data.get(name))
            for name, reader in _fields_read(cls)
        }
    )
