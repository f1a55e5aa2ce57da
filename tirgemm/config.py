"""``Config``: one point of a family's knobs; ``Knob`` and ``Space``: all of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tirgemm.errors import InvalidConfig

Value: TypeAlias = int | str | bool


@dataclass(frozen=True, slots=True)
class Config:
    """A family's name and a value for each of its knobs, in the space's order."""

    family: str
    knobs: tuple[tuple[str, Value], ...]

    def __getitem__(self, knob: str) -> Any:
        for name, value in self.knobs:
            if name == knob:
                return value
        raise KeyError(knob)

    def part(self, names: Iterable[str]) -> dict[str, Any]:
        """The values of some knobs by their names; KeyError for a knob that is not there."""
        values = dict(self.knobs)
        return {name: values[name] for name in names}

    def with_(self, **changes: Value) -> Config:
        """A copy with some knobs changed; KeyError for a knob that is not there."""
        knobs = tuple([(knob[0], changes[knob[0]]) if knob[0] in changes else knob for knob in self.knobs])
        for name in changes:
            self[name]
        return Config(self.family, knobs)

    def __str__(self) -> str:
        return f"{self.family}({', '.join(f'{name}={value}' for name, value in self.knobs)})"

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over family and knobs, independent of the knobs' order."""
        text = json.dumps([self.family, sorted(self.knobs)], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {"family": self.family, "knobs": dict(self.knobs)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Config:
        try:
            family, knobs = value["family"], value["knobs"]
            if not isinstance(family, str) or not all(isinstance(v, (int, str)) for v in knobs.values()):
                raise TypeError("family is a text and knobs are integers, texts or booleans")
            return cls(family, tuple(knobs.items()))
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidConfig(f"{value!r:.200} is not a config: {error}") from error


@dataclass(frozen=True, slots=True)
class Knob:
    """One knob and the values that it may take, simplest first (a tie in speed goes to the earlier one); ``meaning``
    says in a few words what it sets."""

    name: str
    choices: tuple[Value, ...]
    meaning: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.choices or len(set(map(repr, self.choices))) != len(self.choices):
            raise ValueError(f"knob {self.name!r} needs at least one choice and no repeats, not {self.choices!r}")


@dataclass(frozen=True, slots=True)
class Space:
    """The product of a family's knobs; rules then say which points make sense."""

    family: str
    knobs: tuple[Knob, ...]

    @property
    def size(self) -> int:
        return math.prod(len(knob.choices) for knob in self.knobs)

    def at(self, index: int) -> Config:
        """The point number ``index``; the last knob varies fastest."""
        if not 0 <= index < self.size:
            raise IndexError(f"{self.family} space has {self.size} points, no number {index}")
        values: list[tuple[str, Value]] = []
        for knob in reversed(self.knobs):
            index, choice = divmod(index, len(knob.choices))
            values.append((knob.name, knob.choices[choice]))
        return Config(self.family, tuple(reversed(values)))

    def config(self, choices: Mapping[str, int]) -> Config:
        """The point given by the index of each knob's choice (what a trace's annotations hold)."""
        return Config(self.family, tuple((k.name, k.choices[int(choices[k.name])]) for k in self.knobs))

    def indices(self, config: Config) -> dict[str, int]:
        """The inverse of ``config``. Raises InvalidConfig with the knob, the value and the choices."""
        if config.family != self.family:
            raise InvalidConfig(f"config of family {config.family!r} given to the space of {self.family!r}")
        values = dict(config.knobs)
        if len(config.knobs) != len(self.knobs) or any(knob.name not in values for knob in self.knobs):
            names, given = [knob.name for knob in self.knobs], [name for name, _ in config.knobs]
            raise InvalidConfig(f"{self.family} has the knobs {', '.join(names)}; the config has {', '.join(given)}")
        places = {knob.name: _position(knob, values[knob.name]) for knob in self.knobs}
        for knob in self.knobs:
            if places[knob.name] < 0:
                raise InvalidConfig(
                    f"{self.family} knob {knob.name} is {values[knob.name]!r}; choices are {knob.choices}"
                )
        return places

    def check(self, config: Config) -> None:
        """Raise InvalidConfig unless ``config`` is a point of this space."""
        self.indices(config)

    def has(self, config: Config) -> bool:
        """Whether ``config`` is a point of this space."""
        try:
            self.check(config)
        except InvalidConfig:
            return False
        return True

    def __iter__(self) -> Iterator[Config]:
        return (self.at(index) for index in range(self.size))


def _position(knob: Knob, value: Value) -> int:
    for index, choice in enumerate(knob.choices):
        if choice == value and type(choice) is type(value):
            return index
    return -1


def up_to(size: int, choices: tuple[int, ...]) -> tuple[int, ...]:
    """The ascending choices that an extent of ``size`` can tell apart: up to the first that holds all of it."""
    return tuple(choice for i, choice in enumerate(choices) if i == 0 or choices[i - 1] < size)
