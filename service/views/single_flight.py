"""Single-flight cache: a result that takes long is made once, and whoever asks for it meanwhile waits for the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Keeps the results of the ``kept`` keys that were asked for last. Safe from several threads. What was raised
    instead of a result is raised for everybody who waited for it, and not kept."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._results: OrderedDict[K, Future[V]] = OrderedDict()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The result of ``key``, which ``make`` makes where it is not there. Raises what ``make`` raises."""
        with self._lock:
            future = self._results.get(key)
            is_mine = future is None
            if future is None:
                future = self._results[key] = Future()
            self._results.move_to_end(key)
            while len(self._results) > self._kept:
                self._results.popitem(last=False)
        if is_mine:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._results.get(key) is future:
                        del self._results[key]
                future.set_exception(error)
        return future.result()
