"""The dataclass ``Timings``: a kernel's measured run times in each regime, and their conversion to and from JSON.

It also holds the run times of the baselines that were measured beside the kernel, and a summary of the search that
chose it.

``to_json`` and ``from_json`` convert the ``timings`` of records, manifests, events and API documents. A document that
another version wrote loses nothing: fields that are unknown here, or have another type, are kept in ``other``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import UnionType
from typing import Any, Final, Literal, Self, TypeAlias, Union, get_args, get_origin, get_type_hints

from tirgemm.gemm import REGIMES, Regime

SearchEnd: TypeAlias = Literal["trials", "seconds", "expected_gain", "complete", "exhausted", "interrupted", "shipped"]
"""Reasons for the end of a search: a part of its budget was spent, the gain that was expected of the next batch was
below its effort's least, all that its effort tries was tried, the space holds nothing more to try, somebody stopped it,
or there was none, because shipped records had the answer."""


@dataclass(frozen=True, slots=True)
class TimingsPart:
    """A JSON object whose members are the fields; those that are None are left out."""

    other: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        said = {item.name: _plain(getattr(self, item.name)) for item in fields(self) if item.name != "other"}
        return {name: value for name, value in said.items() if value is not None} | dict(self.other)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The value that a JSON object tells of. Raises TypeError or ValueError where it tells of none."""
        types = _types(cls)
        known = {name: _value(types[name], member) for name, member in value.items() if name in types}
        return cls(**known, other={name: member for name, member in value.items() if name not in types})


@dataclass(frozen=True, slots=True)
class BaselineTime(TimingsPart):
    """Median of a baseline in microseconds a call, and ``ratio``, that time over the kernel's."""

    median_us: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Timing(TimingsPart):
    """Median of the samples of one run in microseconds a call, how many they were (None where nobody said), the
    baselines that ran interleaved with them, by name, and the conditions that they were taken under."""

    median_us: float
    samples: int | None = None
    baselines: Mapping[str, BaselineTime] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def ratio_to(self, baseline: str) -> float | None:
        """How many times as fast as ``baseline`` the kernel is; None where that did not run beside it."""
        time = self.baselines.get(baseline)
        return None if time is None else time.ratio

    @property
    def busy(self) -> str | None:
        """A warning where more ran on the machine than it has CPUs; None where not, and where nobody said."""
        load, cpus = self.conditions.get("loadavg"), self.conditions.get("cpus")
        if not isinstance(load, int | float) or not isinstance(cpus, int) or load <= cpus:
            return None
        shared = f"a load average of {load:.2f} on {cpus} CPU{'s' * (cpus != 1)}"
        return f"timed while the machine was busy ({shared}): times and ratios may be far off"

    @property
    def fastest_baseline(self) -> str | None:
        """The name of the fastest baseline that ran beside it, the default aside; None where none did."""
        ratios = {name: time.ratio for name, time in self.baselines.items() if name != "default" and time.ratio > 0}
        return min(ratios, key=lambda name: (ratios[name], name), default=None)


@dataclass(frozen=True, slots=True)
class NotTimed(TimingsPart):
    """Why there is no time: ``error`` in a sentence."""

    error: str


@dataclass(frozen=True, slots=True)
class StreamTiming(TimingsPart):
    """Median time of reading ``bytes`` once in microseconds, of how many samples, the bandwidth in GB/s, and when it
    was taken, ISO 8601 in UTC: a ceiling that stands beside the kernel's time."""

    bytes: int
    median_us: float
    samples: int
    read_gbps: float
    at: str


@dataclass(frozen=True, slots=True)
class SelectionReason(TimingsPart):
    """Why the kernel was chosen, in a sentence, and the lower 95 % bound of its ratio to the default by the reported
    samples; None where no race chose it."""

    reason: str
    ratio_low: float | None = None


@dataclass(frozen=True, slots=True)
class ConfigOrigin(TimingsPart):
    """On which class of devices and in what environment shipped configs were measured, whether those are the ``same``
    as here, whether it was an ``other_device`` (another class, or one with another size of memory), and how many
    ``configs`` of the problem there were. None: no, or in old records and of sets not said."""

    device: str
    environment: Mapping[str, str]
    same: bool
    other_device: bool | None = None
    configs: int | None = None


@dataclass(frozen=True, slots=True)
class SearchSummary(TimingsPart):
    """What a search spent: candidates built (``trials``), those ``pruned`` by rule, all of them by status, why it
    ``ended`` and the ``seconds`` of its budget (None in old records, which do not say), the ``families`` where they
    were restricted, and where the configs are from where those were ``shipped``. ``effort`` is its level, ``asked`` the
    one that was named where it made another, and ``expected_gain`` the share in speed that was expected of the batch
    behind the last one; None where nothing says. ``sizes`` are the values of m that were searched for a kernel set,
    whose counts are those of the largest; its ``trials`` are the budget's where any of the sizes has spent them."""

    trials: int = 0
    pruned: Mapping[str, int] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)
    ended: SearchEnd | None = None
    seconds: float | None = None
    families: tuple[str, ...] | None = None
    shipped: ConfigOrigin | None = None
    effort: str | None = None
    expected_gain: float | None = None
    sizes: tuple[int, ...] | None = None
    asked: str | None = None


@dataclass(frozen=True, slots=True)
class MemberTiming(TimingsPart):
    """A kernel of a set: the range of ``m`` that it serves (``9..64``, or a number), its config's text and hash, its
    family and hash, and its median time in microseconds a call at the range's high end; None where it was not taken."""

    m: str
    family: str
    config: str
    config_hash: str
    kernel_sha256: str
    median_us: float | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """What is known of a kernel's speed and of how it came to be chosen.

    ``regimes``: its time in each, or why it was not taken, the one that it was selected in first. ``default`` is the
    text of the family default's config. ``stream`` is the bandwidth of reading alone, taken beside the report on a GPU.
    ``predicted_us`` is the estimate in microseconds a call, of a kernel that nobody ran. ``members`` are a set's
    kernels by rising m, its other figures those of the last.
    """

    regimes: Mapping[Regime, Timing | NotTimed] = field(default_factory=dict)
    default: str | None = None
    selection: SelectionReason | None = None
    search: SearchSummary | None = None
    stream: StreamTiming | NotTimed | None = None
    predicted_us: float | None = None
    members: tuple[MemberTiming, ...] | None = None
    other: Mapping[str, Any] = field(default_factory=dict)

    def of(self, regime: Regime) -> Timing | None:
        """The kernel's time in ``regime``; None where it was not taken, or is none."""
        timing = self.regimes.get(regime)
        return timing if isinstance(timing, Timing) and timing.median_us > 0 else None

    def with_regime(self, regime: Regime, timing: Timing | NotTimed) -> Timings:
        """The same, with what is known in ``regime``."""
        return replace(self, regimes={**self.regimes, regime: timing})

    @property
    def ended(self) -> SearchEnd | None:
        """Why the search ended; None where there was none."""
        return None if self.search is None else self.search.ended

    @property
    def reason(self) -> str:
        """Why the kernel was chosen; empty where nothing was."""
        return "" if self.selection is None else self.selection.reason

    def to_json(self) -> dict[str, Any]:
        """The regime that it was selected in, what concerns the choice, the other regime."""
        regimes = {str(regime): timing.to_json() for regime, timing in self.regimes.items()}
        said: dict[str, Any] = dict(list(regimes.items())[:1])
        if self.default is not None:
            said["default"] = {"config": self.default}
        for name in _NAMED:
            if (value := _plain(getattr(self, name))) is not None:
                said[name] = value
        return said | regimes | dict(self.other)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The timings that a JSON object tells of, whatever its members are."""
        types = _types(cls)
        regimes: dict[Regime, Timing | NotTimed] = {}
        known: dict[str, Any] = {}
        other: dict[str, Any] = {}
        for name, member in value.items():
            try:
                if name in _REGIMES:
                    regimes[_REGIMES[name]] = _value(Timing | NotTimed, member)
                elif name in _NAMED:
                    known[name] = _value(types[name], member)
                elif name == "default" and set(member) == {"config"}:
                    known[name] = _value(types[name], member["config"])
                else:
                    other[name] = member
            except (TypeError, ValueError):
                other[name] = member
        return cls(regimes, **known, other=other)


# Told first, without asking whether they are mappings: most of what timings hold.
_JSON_SCALARS = (float, int, str, bool)
_REGIMES: dict[str, Regime] = {regime: regime for regime in REGIMES}
# Fields of ``Timings`` that are members of the document under their own name and in the form of their type.
_NAMED = ("selection", "search", "stream", "predicted_us", "members")


def _plain(value: Any) -> Any:
    """A field's value as JSON."""
    if value is None or type(value) in _JSON_SCALARS:
        return value
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_json() if isinstance(value, TimingsPart) else value


@cache
def _form(wanted: Any) -> tuple[Any, tuple[Any, ...]]:
    """The origin and the arguments of a type: asked for at each member of each kernel that is read."""
    return get_origin(wanted), get_args(wanted)


def _value(wanted: Any, raw: Any) -> Any:
    """A field's value from JSON. Raises TypeError or ValueError where it is not of the type that is ``wanted``."""
    if type(raw) is wanted and wanted is not float:
        return raw
    origin, arguments = _form(wanted)
    if wanted is Any or (origin is Literal and raw in arguments):
        return raw
    if origin in (Union, UnionType):
        for option in arguments:
            with suppress(TypeError, ValueError):
                return _value(option, raw)
    if isinstance(raw, Mapping) and origin is Mapping and all(isinstance(name, str) for name in raw):
        return {name: _value(arguments[1], item) for name, item in raw.items()}
    if isinstance(raw, list | tuple) and origin is tuple:
        return tuple(_value(arguments[0], item) for item in raw)
    if isinstance(raw, Mapping) and isinstance(wanted, type) and issubclass(wanted, TimingsPart):
        return wanted.from_json(raw)
    if wanted is float and type(raw) in (int, float) and math.isfinite(raw):
        return raw
    raise ValueError(f"{raw!r:.80} is not of the type {wanted}")


def _types(part: type) -> dict[str, Any]:
    """The type of each field of a class but ``other``."""
    if part not in _TYPES:
        _TYPES[part] = {name: hint for name, hint in get_type_hints(part).items() if name != "other"}
    return _TYPES[part]


_TYPES: Final[dict[type, dict[str, Any]]] = {}
