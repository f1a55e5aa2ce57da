"""``Offer``: candidates of a problem that were measured elsewhere and came with the package."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.timings import ConfigOrigin
from tirgemm.tuning.records import Candidate, SampleSet

# What a measurement depends on beside the device class. A CPU has no driver.
ENVIRONMENT = {"cuda": ("driver", "tvm"), "cpu": ("tvm",)}
UNKNOWN = ("", "unknown")
_RESERVED = 0.03


@dataclass(frozen=True, slots=True)
class Offer:
    """The ``candidates`` of one problem and regime that were measured on ``device``, whose environment is that of the
    measurements (empty where nobody recorded it).

    ``same``: device class, driver and TVM are those of this machine, so that they count as measured here. Any others
    are only worth trying first. ``other_device``: it was not a device as this one. ``raced``: those that were
    raced beside each other on such a device with this driver and TVM, fastest first, where not all count, with the
    microseconds that they took.
    """

    device: Device
    candidates: tuple[Candidate, ...]
    same: bool
    other_device: bool = False
    raced: Mapping[Config, float] = field(default_factory=dict)

    @property
    def answers(self) -> bool:
        """Whether its fastest config needs no race here."""
        return self.same or bool(self.raced)

    @property
    def origin(self) -> ConfigOrigin:
        """Where the candidates are from, as a kernel's timings have it."""
        return ConfigOrigin(self.device.key, dict(self.device.environment), self.same, self.other_device or None)


def joint_origin(offers: Iterable[Offer]) -> ConfigOrigin:
    """Where the candidates of at least one offer are from: of an ``other_device`` where those of any are, else the
    last's."""
    *others, last = offers
    return next((offer for offer in [last, *others] if offer.other_device), last).origin


def same_device(one: Device, other: Device) -> bool:
    """Whether both are of one device class with as much memory: some models are sold with more than one size of it, of
    which drivers reserve a little."""
    alike = abs(one.memory_bytes - other.memory_bytes) <= _RESERVED * max(one.memory_bytes, other.memory_bytes)
    return one.key == other.key and (one.kind == "cpu" or alike)


def same_environment(one: Device, other: Device) -> bool:
    """Whether both are of one device class, with one driver and TVM and as much memory; False where either does not
    say."""
    ours, theirs = dict(one.environment), dict(other.environment)
    names = ENVIRONMENT[one.kind]
    return same_device(one, other) and all(
        ours.get(name, "") not in UNKNOWN and ours.get(name) == theirs.get(name) for name in names
    )


def raced_times(candidates: Iterable[Candidate], fingerprints: Collection[str] | None = None) -> dict[Config, float]:
    """Microseconds of the configs that were raced beside each other behind a search, in one of these environments or in
    any, fastest first."""
    times = {
        candidate.config: samples.median_us
        for candidate in candidates
        for samples in candidate.sample_sets
        if samples.reason == "report" and (fingerprints is None or _taken_in(samples, fingerprints))
    }
    return dict(sorted(times.items(), key=lambda raced: raced[1]))


def measured_under(candidates: Iterable[Candidate], fingerprints: frozenset[str]) -> tuple[Candidate, ...]:
    """The candidates all of whose samples of a search say that they were taken in one of these environments, with what
    was taken in them."""
    sets = [(candidate, [s for s in candidate.sample_sets if _taken_in(s, fingerprints)]) for candidate in candidates]
    return tuple(
        candidate if len(mine) == len(candidate.sample_sets) else candidate.with_(sample_sets=tuple(mine))
        for candidate, mine in sets
        if candidate.search_sets and all(_taken_in(samples, fingerprints) for samples in candidate.search_sets)
    )


def _taken_in(samples: SampleSet, fingerprints: Collection[str]) -> bool:
    return samples.conditions.get("fingerprint") in fingerprints
