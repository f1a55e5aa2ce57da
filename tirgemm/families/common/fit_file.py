"""Constants of a family's analytic model: read from the file ``estimate.json`` beside it, with where they come from.

By regime the file holds the ``constants``, whose names end with their units, and their ``provenance``
(``FitProvenance``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any, Generic, TypeVar

FILE = "estimate.json"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HandSetConstant:
    """Where one constant comes from that was set by hand after the others: what it was set by, when, and the commit
    that it came with. Raises ValueError where one of these is empty."""

    fitted_to: str
    commit: str
    date: str

    def __post_init__(self) -> None:
        _require_texts(self, "fitted_to", "commit", "date")


@dataclass(frozen=True, slots=True)
class FitProvenance:
    """Where a regime's constants come from: what they were fitted to, on which device, by which command, when, and the
    commit that they came with.

    ``records_commit``: the first commit that has what they were fitted to, empty where that was not kept. ``by_hand``:
    the constants that are not of the command, by name. Raises ValueError where any other of these is empty.
    """

    fitted_to: tuple[str, ...]
    device: str
    command: str
    commit: str
    date: str
    records_commit: str = ""
    by_hand: Mapping[str, HandSetConstant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.fitted_to or not all(self.fitted_to):
            raise ValueError(f"fitted_to is {self.fitted_to!r}; it must name what the constants were fitted to")
        _require_texts(self, "device", "command", "commit", "date")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FitProvenance:
        """Raises TypeError where fields are missing or unknown."""
        by_hand = {name: HandSetConstant(**entry) for name, entry in value.get("by_hand", {}).items()}
        return cls(**{**value, "fitted_to": tuple(value["fitted_to"]), "by_hand": by_hand})

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads; what is empty is left out."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass(frozen=True, slots=True)
class Fit(Generic[T]):
    """The constants of one regime and where they come from."""

    constants: T
    provenance: FitProvenance


def fits(package: str, kind: type[T]) -> dict[str, Fit[T]]:
    """By regime, the fit of the model in ``package``, whose constants are the dataclass ``kind``. TypeError where
    fields differ, ValueError where the provenance says nothing, or names a constant that there is none of."""
    regimes = json.loads(files(package).joinpath(FILE).read_text())
    return {regime: _fit(fit["constants"], fit["provenance"], kind) for regime, fit in regimes.items()}


def fitted_constants(package: str, kind: type[T]) -> dict[str, T]:
    """By regime, the constants alone. Raises as ``fits``."""
    return {regime: fit.constants for regime, fit in fits(package, kind).items()}


def _fit(constants: Mapping[str, float], provenance: Mapping[str, Any], kind: type[T]) -> Fit[T]:
    fit = Fit(kind(**constants), FitProvenance.from_json(provenance))
    unknown = sorted(fit.provenance.by_hand.keys() - constants.keys())
    if unknown:
        raise ValueError(f"by_hand names {', '.join(unknown)}, of which there are no constants")
    return fit


def _require_texts(value: object, *names: str) -> None:
    for name in names:
        if not getattr(value, name):
            raise ValueError(f"{name} is empty; it must say where the constants come from")
