"""The recorded candidates of one family of a problem: comparable times, knobs and their values, the heat map over two
knobs, and the lines of parallel coordinates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tirgemm.config import Config, Value
from tirgemm.errors import InvalidRequest
from tirgemm.service.views.candidate_list import ListedCandidate
from tirgemm.tuning.records import Status
from tirgemm.tuning.search.knob_importance import ordered

# Lines that are drawn; of more, all of the fastest tenth are and the others evenly by their place.
MAX_LINES = 500
FASTEST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class KnobValues:
    """A knob and the values that its candidates have, in order."""

    knob: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class HeatCell:
    """The candidates that have one value each of two knobs: how many were measured, failed and pruned; ``us``, the
    fastest's time, and ``config_hash``, that one, or else another of them."""

    x: Value
    y: Value
    measured: int
    failed: int
    pruned: int
    us: float | None
    config_hash: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The cells of two knobs that have candidates. ``best_us``: the time that colours are relative to, the family's
    fastest."""

    x: KnobValues
    y: KnobValues
    cells: tuple[HeatCell, ...]
    best_us: float | None


@dataclass(frozen=True, slots=True)
class ConfigLine:
    """A candidate as a line through the axes: ``places`` number its values there; ``us`` is None where it failed or was
    pruned. ``is_fast``: it is one of the fastest tenth."""

    config_hash: str
    places: tuple[int, ...]
    us: float | None
    is_fast: bool


@dataclass(frozen=True, slots=True)
class ParallelLines:
    """Axes, of the knobs in which the ``candidates`` differ, and the lines that are drawn of them: those of the fastest
    tenth last. ``fast``: how many those are."""

    axes: tuple[KnobValues, ...]
    lines: tuple[ConfigLine, ...]
    candidates: int
    fast: int


@dataclass(frozen=True)
class FamilySpace:
    """One family's candidates of a problem on a device in a regime, fastest first, then what failed, then what was
    pruned. ``times`` are in microseconds and comparable; what failed or was pruned has none."""

    family: str
    entries: tuple[ListedCandidate, ...]
    times: dict[Config, float] = field(repr=False)

    @classmethod
    def of(cls, family: str, entries: Sequence[ListedCandidate], times: Mapping[Config, float]) -> FamilySpace:
        """The space of a family's ``entries``; ``times`` may have those of other families too."""
        order = sorted(
            entries,
            key=lambda each: (times.get(each.candidate.config, math.inf), each.candidate.status is Status.PRUNED),
        )
        configs = [entry.candidate.config for entry in order]
        return cls(family, tuple(order), {config: times[config] for config in configs if config in times})

    @property
    def best_us(self) -> float | None:
        return min(self.times.values(), default=None)

    @cached_property
    def knobs(self) -> tuple[KnobValues, ...]:
        """Every knob that some candidate has, in the family's order."""
        rows = [dict(entry.candidate.config.knobs) for entry in self.entries]
        names = dict.fromkeys(name for row in rows for name in row)
        return tuple(KnobValues(name, tuple(ordered([row[name] for row in rows if name in row]))) for name in names)

    @property
    def varying(self) -> tuple[KnobValues, ...]:
        """The knobs in which the candidates differ."""
        return tuple(each for each in self.knobs if len(each.values) > 1)

    def knob(self, name: str) -> KnobValues:
        """One knob. Raises InvalidRequest for a name that no candidate has."""
        for each in self.knobs:
            if each.knob == name:
                return each
        names = ", ".join(each.knob for each in self.knobs)
        raise InvalidRequest(f"knob {name[:80]!r} is none of {self.family}'s candidates; they have {names}")

    def heat_map(self, x: str, y: str) -> HeatMap:
        """The map over two knobs. Raises InvalidRequest where they are one, or none of these candidates'."""
        if x == y:
            raise InvalidRequest(f"both knobs of the heat map are {x[:80]!r}; choose two")
        across, down = self.knob(x), self.knob(y)
        groups: dict[tuple[Value, Value], list[ListedCandidate]] = {}
        for entry in self.entries:
            row = dict(entry.candidate.config.knobs)
            if x in row and y in row:
                groups.setdefault((row[x], row[y]), []).append(entry)
        cells = [self._cell(place, group) for place, group in groups.items()]
        return HeatMap(across, down, tuple(cells), self.best_us)

    def _cell(self, place: tuple[Value, Value], group: Sequence[ListedCandidate]) -> HeatCell:
        statuses = Counter(entry.candidate.status for entry in group)
        config = group[0].candidate.config  # the fastest, for they are in order
        measured, pruned = statuses[Status.MEASURED], statuses[Status.PRUNED]
        return HeatCell(*place, measured, len(group) - measured - pruned, pruned, self.times.get(config), config.digest)

    def parallel(self) -> ParallelLines:
        """The lines of the candidates through the axes of the knobs in which they differ."""
        axes = self.varying
        fast = -(-len(self.times) // round(1 / FASTEST_SHARE))
        others = self.entries[fast:]
        most = max(0, MAX_LINES - fast)
        shown = [others[at * len(others) // most] for at in range(most)] if len(others) > most else others
        numbers = [{value: at for at, value in enumerate(axis.values)} for axis in axes]
        lines = [
            ConfigLine(
                entry.candidate.config.digest,
                tuple(
                    numbers[at].get(dict(entry.candidate.config.knobs).get(axis.knob, ""), -1)
                    for at, axis in enumerate(axes)
                ),
                self.times.get(entry.candidate.config),
                is_fast,
            )
            for part, is_fast in ((reversed(shown), False), (reversed(self.entries[:fast]), True))
            for entry in part
        ]
        return ParallelLines(axes, tuple(lines), len(self.entries), fast)
