"""``Explainer``: a service's explanations and code of kernels, made one at a time in a process of their own.

They lower, compile and disassemble, which takes a second or two and TVM or NVRTC; the server's own process neither
waits for that nor has these in it, and a compiler that crashes ends the other process.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi.concurrency import run_in_threadpool

from tirgemm.errors import AnalysisFailed, Cancelled, QueueFull
from tirgemm.service.explain.child import explained_page
from tirgemm.service.explain.stored_kernel import StoredKernelInput
from tirgemm.tuning.process.child_rpc import ChildDied, ChildProcess, ChildTimedOut

T = TypeVar("T")
ChildAnswer = tuple[dict[str, Any], str]

_MODULE = "tirgemm.service.explain.child"
_START_S = 60.0
_LONGEST_S = 120.0
# Explanations and texts of machine code: at most a megabyte each.
_KEPT = 64
_MOST_WAITING = 32


class Explainer:
    """Answers with the JSON document and the page of a stored kernel, and calls other functions that take as long;
    keeps the last results. At most ``waiting`` requests wait.

    The process starts with the first question and is replaced where it dies.
    """

    def __init__(self, waiting: int = _MOST_WAITING) -> None:
        self._asking = asyncio.Semaphore(1)
        self._most_waiting = waiting
        self._waiting = 0
        # A request that was cancelled leaves its thread at work: the next one waits for it here.
        self._using = threading.Lock()
        self._child: ChildProcess | None = None
        self._closing = threading.Event()
        self._known: OrderedDict[Hashable, Any] = OrderedDict()

    async def answer(self, stored: StoredKernelInput) -> ChildAnswer:
        """The document and the page. Raises what explaining raises, and as ``call`` does."""
        known = (len(stored.candidates), sum(len(c.sample_sets) for c in stored.candidates))
        key = (stored.record.id, known, frozenset(stored.rates.items()))
        return await self.call(key, f"explaining {stored.record.config}", explained_page, stored)

    async def call(self, key: Hashable, what: str, function: Callable[..., T], *arguments: object) -> T:
        """What ``function``, one of a module, returns in the other process; ``what`` names that in errors. The result
        of ``key`` is kept, and what is known waits for nobody.

        Raises what the function raises, AnalysisFailed where the process ends, QueueFull where too many wait,
        Cancelled.
        """
        if key not in self._known:
            async with self._turn():
                # Who was before may have asked for the same.
                if key not in self._known:
                    self._known[key] = await run_in_threadpool(self._ask, what, function, arguments)
        self._known.move_to_end(key)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        result: T = self._known[key]
        return result

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it for the block. Raises QueueFull where as many wait as may."""
        if self._asking.locked() and self._waiting >= self._most_waiting:
            raise QueueFull(f"{self._waiting} requests wait for such work, which is the limit; ask again later")
        self._waiting += 1
        try:
            await self._asking.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._asking.release()

    def _ask(self, what: str, function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
        with self._using:
            if self._closing.is_set():
                raise Cancelled("the service is shutting down")
            if self._child is None or not self._child.alive:
                self._child = ChildProcess(_MODULE)
            try:
                return self._child.request(
                    (function, arguments), timeout_s=_LONGEST_S, start_s=_START_S, cancel=self._closing
                )
            except ChildDied as error:
                raise AnalysisFailed(f"{what} ended its process: {error}"[:2000]) from error
            except ChildTimedOut as error:
                raise AnalysisFailed(f"{what} took longer than {_LONGEST_S:g} s") from error

    def close(self) -> None:
        """End the process; a question that waits for it is cancelled."""
        self._closing.set()
        with self._using:
            if self._child is not None:
                self._child.kill()
