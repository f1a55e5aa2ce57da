"""``Explainer``: a service's explanations of kernels, made one at a time in a process of their own.

They lower and disassemble, which takes a second or two and TVM; the server's own process holds neither up nor that.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from fastapi.concurrency import run_in_threadpool

from tirgemm.errors import AnalysisFailed, Cancelled
from tirgemm.service.admission import Admission
from tirgemm.service.explain.gather import Stored
from tirgemm.tuning.process.child_rpc import ChildDied, ChildProcess, ChildTimedOut

Answer = tuple[dict[str, Any], str]

_MODULE = "tirgemm.service.explain.child"
_START_S = 60.0
_LONGEST_S = 120.0
_KEPT = 64
_MOST_WAITING = 32


class Explainer:
    """Answers with the JSON document and the page of a stored kernel; keeps the last of them.

    The process starts with the first question and is replaced where it dies.
    """

    def __init__(self) -> None:
        self._admission = Admission(1, _MOST_WAITING)
        # A request that was cancelled leaves its thread at work: the next one waits for it here.
        self._using = threading.Lock()
        self._child: ChildProcess | None = None
        self._closing = threading.Event()
        self._known: OrderedDict[object, Answer] = OrderedDict()

    async def answer(self, stored: Stored) -> Answer:
        """The document and the page; what is known waits for nobody. Raises what explaining raises, AnalysisFailed
        where the process ends, QueueFull where too many wait, Cancelled."""
        known = (len(stored.candidates), sum(len(c.sample_sets) for c in stored.candidates))
        key = (stored.record.id, known, frozenset(stored.rates.items()))
        if key not in self._known:
            async with self._admission.turn():
                # Who was before may have asked for the same.
                if key not in self._known:
                    self._known[key] = await run_in_threadpool(self._ask, stored)
        self._known.move_to_end(key)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return self._known[key]

    def _ask(self, stored: Stored) -> Answer:
        with self._using:
            if self._closing.is_set():
                raise Cancelled("the service is shutting down")
            if self._child is None or not self._child.alive:
                self._child = ChildProcess(_MODULE)
            try:
                answer: Answer = self._child.request(
                    stored, timeout_s=_LONGEST_S, start_s=_START_S, cancel=self._closing
                )
            except ChildDied as error:
                raise AnalysisFailed(f"explaining {stored.record.config} ended its process: {error}"[:2000]) from error
            except ChildTimedOut as error:
                raise AnalysisFailed(f"explaining {stored.record.config} took longer than {_LONGEST_S:g} s") from error
            return answer

    def close(self) -> None:
        """End the process; a question that waits for it is cancelled."""
        self._closing.set()
        with self._using:
            if self._child is not None:
                self._child.kill()
