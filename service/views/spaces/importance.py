"""``ImportanceReader``: the importance of knobs among candidates, computed once for all who ask, and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from tirgemm.config import Config
from tirgemm.errors import InvalidRequest
from tirgemm.service.views.single_flight import SingleFlight
from tirgemm.tuning.search.knob_importance import KnobShare, knob_importance

# Of how many problems it is kept: some 40 figures each. The times that they are of, which may be tens of thousands, are
# known by their hash alone.
KEPT = 64


@dataclass(frozen=True, slots=True)
class ImportanceOfKnobs:
    """How important each knob is, see ``tirgemm.tuning.search.knob_importance``; where that cannot be told ``shares``
    are empty, and ``refusal`` says why. ``candidates``: the measured ones that it rests on."""

    candidates: int
    explained: float | None = None
    shares: tuple[KnobShare, ...] = ()
    refusal: str | None = None


class ImportanceReader:
    """Computes the importance of knobs, which takes longer than all else on a page, for one request at a time of each
    problem; the others wait for the same."""

    def __init__(self) -> None:
        self._known: SingleFlight[bytes, ImportanceOfKnobs] = SingleFlight(KEPT)

    def read(self, times: Mapping[Config, float]) -> ImportanceOfKnobs:
        """The importance of the knobs of configs with these times."""
        return self._known.get(_digest(times), lambda: _computed(times))


def _digest(times: Mapping[Config, float]) -> bytes:
    """A hash of the configs and their times, in this order."""
    hashed = hashlib.sha256()
    for config, us in times.items():
        hashed.update(f"{config} {us!r}\n".encode())
    return hashed.digest()


def _computed(times: Mapping[Config, float]) -> ImportanceOfKnobs:
    try:
        importance = knob_importance(times)
    except InvalidRequest as error:
        return ImportanceOfKnobs(len(times), refusal=str(error))
    return ImportanceOfKnobs(importance.candidates, importance.explained, importance.shares)
