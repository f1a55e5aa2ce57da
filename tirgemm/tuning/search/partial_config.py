"""Configs of which only some knobs are named: the others come from a base, and follow where the rules need them to."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from tirgemm.config import Config, Knob, Value
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig
from tirgemm.families.base import Family, rejected, require_rules
from tirgemm.gemm import Gemm

# As many knobs may follow those that are named.
_MOST_FOLLOWERS = 2


def parse_knobs(family: Family, gemm: Gemm, device: Device, text: str) -> dict[str, Value]:
    """The knobs of ``text``, ``name=value,name=value``, with values of the family's space. Raises InvalidConfig."""
    choices = {knob.name: knob.choices for knob in family.space(gemm, device).knobs}
    knobs: dict[str, Value] = {}
    for part in filter(None, (word.strip() for word in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise InvalidConfig(f"config part {part!r:.100} is not name=value")
        if name not in choices:
            raise InvalidConfig(f"{family.name} has no knob {name!r:.100}; its knobs are {', '.join(choices)}")
        if name in knobs:
            raise InvalidConfig(f"{family.name} knob {name} is given twice: {knobs[name]} and {value!r:.100}")
        choice = next((each for each in choices[name] if str(each).lower() == value.lower()), None)
        if choice is None:
            known = ", ".join(map(str, choices[name]))
            raise InvalidConfig(f"{family.name} knob {name} is {value!r:.100}; choices for {gemm} are {known}")
        knobs[name] = choice
    return knobs


def completed(family: Family, gemm: Gemm, device: Device, base: Config, named: dict[str, Value]) -> Config:
    """``base`` with the ``named`` knobs, and with as few of the others changed as the rules need, at most two.

    Of several the nearest to the base is taken, by the order of the knobs' choices. Raises InvalidConfig with the rule
    that rejects the named knobs among those of the base, where no such change helps.
    """
    asked = base.with_(**named)
    if rejected(family, gemm, asked, device) is None:
        return asked
    free = [knob for knob in family.space(gemm, device).knobs if knob.name not in named]
    for changes in _nearest_first(free, asked):
        config = asked.with_(**changes)
        if rejected(family, gemm, config, device) is None:
            return config
    require_rules(family, gemm, asked, device)
    return asked


def _nearest_first(knobs: list[Knob], config: Config) -> Iterator[dict[str, Value]]:
    """Changes of one knob, then of two, each time to the nearest choices first."""
    other = {knob.name: _by_distance(knob, config[knob.name]) for knob in knobs}
    for count in range(1, _MOST_FOLLOWERS + 1):
        changes = [
            (sum(distance for distance, _ in values), names, values)
            for names in combinations(other, count)
            for values in product(*(other[name] for name in names))
        ]
        for _, names, values in sorted(changes, key=lambda each: each[0]):
            yield {name: value for name, (_, value) in zip(names, values, strict=True)}


def _by_distance(knob: Knob, value: Value) -> list[tuple[int, Value]]:
    """Every other choice of ``knob`` with how many choices away from ``value`` it is."""
    here = next(at for at, choice in enumerate(knob.choices) if choice == value)
    return [(abs(at - here), choice) for at, choice in enumerate(knob.choices) if at != here]
