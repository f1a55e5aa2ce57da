"""``Threads``: a pool of threads whose waiting work is given up where its block raises."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType


class Threads(ThreadPoolExecutor):
    """Waits at the end of its block, as its base does, but after an exception for work that has begun alone."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown(wait=True, cancel_futures=kind is not None)
