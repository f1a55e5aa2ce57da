"""``ImportanceReader``: the importance of knobs among candidates, computed once for all who ask, and kept."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from tirgemm.config import Config
from tirgemm.errors import InvalidRequest
from tirgemm.tuning.search.knob_importance import KnobShare, knob_importance

# Of how many problems, those asked for last, it is kept: some 40 figures each. The times that they are of, which may be
# tens of thousands, are known by their hash alone.
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
    problem; the others wait for the same. Safe from several threads. What was raised instead of a result is raised for
    everybody who waited for it, and not kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, Future[ImportanceOfKnobs]] = OrderedDict()

    def read(self, times: Mapping[Config, float]) -> ImportanceOfKnobs:
        """The importance of the knobs of configs with these times."""
        key = _digest(times)
        with self._lock:
            future = self._known.get(key)
            is_mine = future is None
            if future is None:
                future = self._known[key] = Future()
            self._known.move_to_end(key)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        if is_mine:
            try:
                future.set_result(_computed(times))
            except BaseException as error:
                with self._lock:
                    if self._known.get(key) is future:
                        del self._known[key]
                future.set_exception(error)
        return future.result()


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
