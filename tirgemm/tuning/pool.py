"""``BuildPool``: persistent processes that compile configs, and that may crash or hang without harm.

Compilers do crash: NVRTC 13.0 ends with a segmentation fault on some wgmma kernels. That is a failed build of one
config, and a fresh process for the next.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, Cancelled, TirgemmError
from tirgemm.gemm import Gemm
from tirgemm.tuning.child_process import START_S, ChildDied, ChildProcess, ChildTimedOut
from tirgemm.tuning.locks import default_lock_dir

if TYPE_CHECKING:
    from tirgemm.tuning.compile import Binary

BUILDER = "tirgemm.tuning.compile:build"
_Item = tuple["Future[Binary]", Gemm, Config]


class BuildPool:
    """Compiles configs for one device in ``processes`` processes (default: one a usable hardware thread).

    A build that takes longer than ``timeout_s`` is killed. On a CPU device a process holds the device's lock, shared,
    while it works: nothing builds while something measures. ``builder`` names the function that compiles, as
    ``module:function`` called with (gemm, config, device).
    """

    def __init__(
        self,
        device: Device,
        processes: int | None = None,
        *,
        lock_dir: Path | None = None,
        timeout_s: float = 120.0,
        builder: str = BUILDER,
    ) -> None:
        self.device = device
        self.processes = processes or len(os.sched_getaffinity(0))
        self.timeout_s = timeout_s
        lock_key = device.lock_key if device.kind == "cpu" and device.present else ""
        self._arguments = (builder, lock_key, str(lock_dir or default_lock_dir()))
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._starting = threading.Lock()

    def warm(self) -> None:
        """Start the processes and their imports in the background; returns at once."""
        with self._starting:
            if self._closing.is_set():
                raise BuildFailed("the build pool is closed")
            while len(self._threads) < self.processes:
                number = len(self._threads)
                thread = threading.Thread(target=self._work, name=f"tirgemm-build-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def submit(self, gemm: Gemm, config: Config) -> Future[Binary]:
        """Compile one config. The future raises BuildFailed with the compiler's words, or what killed the process."""
        self.warm()
        future: Future[Binary] = Future()
        self._queue.put((future, gemm, config))
        return future

    def close(self) -> None:
        """Cancel what waits, kill what builds. The pool is of no use afterwards."""
        with self._starting:
            self._closing.set()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        while not self._queue.empty():
            item = self._queue.get()
            if item is not None:
                item[0].cancel()

    def __enter__(self) -> BuildPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _work(self) -> None:
        """One thread a process: it starts the process, feeds it, and replaces it when it dies."""
        child: ChildProcess | None = None
        with contextlib.suppress(OSError, RuntimeError):  # the first build will try again, and say why
            child = self._start()
        while (item := self._queue.get()) is not None:
            future, gemm, config = item
            if self._closing.is_set() or not future.set_running_or_notify_cancel():
                future.cancel()
                continue
            try:
                if child is None or not child.alive:
                    child = self._replace(child)
                future.set_result(self._build(child, gemm, config))
            except TirgemmError as error:
                future.set_exception(error)
            except Exception as error:
                future.set_exception(BuildFailed(f"build process: {type(error).__name__}: {error}"))
            if child is not None and not child.alive and not self._closing.is_set():
                with contextlib.suppress(OSError, RuntimeError):  # so that its imports are done by the next build
                    child = self._replace(child)
        if child is not None:
            child.kill()

    def _start(self) -> ChildProcess:
        return ChildProcess("tirgemm.tuning.build_child", self._arguments)

    def _replace(self, child: ChildProcess | None) -> ChildProcess:
        if child is not None:
            child.kill()
        return self._start()

    def _build(self, child: ChildProcess, gemm: Gemm, config: Config) -> Binary:
        try:
            answer: Binary = child.request((gemm, config, self.device), timeout_s=self.timeout_s, cancel=self._closing)
        except ChildDied as error:
            words = f"; its last words: {error.output}" if error.output else ""
            raise BuildFailed(f"build process died: {error.cause}{words}") from error
        except ChildTimedOut as error:
            if not error.started:
                raise BuildFailed(f"build process did not start within {START_S:g} s") from error
            raise BuildFailed(f"build of {config} took longer than {self.timeout_s:g} s and was stopped") from error
        except Cancelled as error:
            raise BuildFailed("the build pool was closed during the build") from error
        return answer
