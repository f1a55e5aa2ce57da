"""``ProblemSpace``: the recorded candidates of a problem with comparable times, the fastest of them, and the default
that they are to beat."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, TirgemmError
from tirgemm.families import family_named, supporting
from tirgemm.families.choice import ranked_defaults
from tirgemm.gemm import Gemm, Regime
from tirgemm.service.views.candidate_list import ListedCandidate, Recorded
from tirgemm.service.views.spaces.family_space import FamilySpace
from tirgemm.tuning.records.comparable_times import comparable_times
from tirgemm.tuning_db.shipped.layered_store import LayeredStore


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """A config that others are compared with: ``us`` is its comparable time, None where it has none; ``is_recorded``:
    it is a candidate too."""

    config_hash: str
    config: str
    family: str
    us: float | None
    is_recorded: bool


@dataclass(frozen=True)
class ProblemSpace:
    """The candidates of all families on a ``device``, which is None where it is known by its key alone."""

    recorded: Recorded
    device: Device | None

    @classmethod
    def of(cls, store: LayeredStore, recorded: Recorded) -> ProblemSpace:
        """The space of what is ``recorded``, on the device as the database or a records file describes it."""
        key = recorded.device_key
        device, file = store.device(key), store.shipped.of(key)
        if device is None and file is not None:
            device = next((each for each in file.devices if each.key == key), None)
        return cls(recorded, device)

    @property
    def default(self) -> Config | None:
        """The config that the problem is served with where nothing was measured; None where that cannot be told."""
        return _default(self.recorded.gemm, self.device, self.recorded.regime) if self.device else None

    def meanings(self, family: str) -> dict[str, str]:
        """What a family's knobs set, by name; empty where the family, or the device, is not known here."""
        if self.device is None:
            return {}
        try:
            knobs = family_named(family).space(self.recorded.gemm, self.device).knobs
        except TirgemmError:
            return {}
        return {knob.name: knob.meaning for knob in knobs}

    @cached_property
    def times(self) -> dict[Config, float]:
        """Microseconds of what was measured, comparable, fastest first."""
        known = comparable_times([entry.candidate for entry in self.recorded.entries])
        measured = [(us, config) for config, us in known.items() if us is not None]
        return {config: us for us, config in sorted(measured, key=lambda pair: pair[0])}

    @cached_property
    def by_hash(self) -> dict[str, ListedCandidate]:
        return {entry.candidate.config.digest: entry for entry in self.recorded.entries}

    @property
    def fastest(self) -> Config | None:
        return next(iter(self.times), None)

    @property
    def families(self) -> dict[str, int]:
        """How many candidates each family has, most first."""
        counts = Counter(entry.candidate.config.family for entry in self.recorded.entries)
        return dict(counts.most_common())

    @property
    def statuses(self) -> dict[str, int]:
        """How many candidates have each status."""
        return dict(Counter(entry.candidate.status.value for entry in self.recorded.entries))

    def family(self, name: str = "") -> FamilySpace:
        """The candidates of one family, by default of the fastest's. Raises InvalidRequest for one that has none."""
        chosen = name or (self.fastest.family if self.fastest else next(iter(self.families)))
        if chosen not in self.families:
            raise InvalidRequest(f"family {name[:64]!r} has no candidate here; there are {', '.join(self.families)}")
        mine = [entry for entry in self.recorded.entries if entry.candidate.config.family == chosen]
        return FamilySpace.of(chosen, mine, self.times)

    def peer(self, config: Config | None) -> PeerConfig | None:
        """A config as others are compared with it."""
        if config is None:
            return None
        return PeerConfig(
            config.digest, str(config), config.family, self.times.get(config), config.digest in self.by_hash
        )


@lru_cache(maxsize=256)
def _default(gemm: Gemm, device: Device, regime: Regime) -> Config | None:
    try:
        return ranked_defaults(supporting(gemm, device), gemm, device, regime)[0][1]
    except TirgemmError:
        return None
