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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, Cancelled, TirgemmError
from tirgemm.families import registered
from tirgemm.gemm import Gemm
from tirgemm.tuning.process import spans
from tirgemm.tuning.process.child_rpc import START_S, ChildDied, ChildProcess, ChildTimedOut
from tirgemm.tuning.process.interrupts import Flag
from tirgemm.tuning.process.locks import default_lock_dir

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary

BUILDER = "tirgemm.tuning.build.compile:build"


@dataclass(frozen=True, slots=True)
class _Item:
    """One build that was asked for; ``abandoned`` is set when it is not wanted any more, ``trace`` is what asked."""

    future: Future[Binary]
    gemm: Gemm
    config: Config
    abandoned: threading.Event
    trace: str | None


@dataclass(frozen=True, slots=True)
class _Either:
    """Set when one of two events is."""

    one: threading.Event
    other: threading.Event

    def is_set(self) -> bool:
        return self.one.is_set() or self.other.is_set()


class _Killed(BuildFailed):
    """The build process was killed by SIGKILL, which no config does."""


class BuildPool:
    """Compiles configs for one device in at most ``processes`` processes (default: one a usable hardware thread).

    There are as many as builds have been asked for at a time: to start one takes a processor second. A build that takes
    longer than ``timeout_s`` is killed. On a CPU device a process holds the device's lock, shared, while it works:
    nothing builds while something measures. ``builder`` names the function that compiles, as
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
        self._unfinished: list[Future[Binary]] = []
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._waits: dict[int, str] = {}
        self._starting = threading.Lock()

    @property
    def waiting(self) -> str:
        """What builds wait for, in plain words; "" where none waits."""
        return next(iter(list(self._waits.values())), "")

    def warm(self) -> None:
        """Start the first process and its imports in the background; returns at once."""
        with self._starting:
            self._start_threads(1)

    def submit(self, gemm: Gemm, config: Config) -> Future[Binary]:
        """Compile one config. The future raises BuildFailed with the compiler's words, or what killed the process."""
        future: Future[Binary] = Future()
        with self._starting:
            self._unfinished = [each for each in self._unfinished if not each.done()] + [future]
            self._start_threads(min(self.processes, len(self._unfinished)))
            self._queue.put(_Item(future, gemm, config, self._abandoned, spans.traceparent()))
        return future

    def abandon(self) -> None:
        """Cancel what waits and kill what builds, without waiting for either; what is submitted from now on is
        built."""
        with self._starting:
            abandoned, self._abandoned = self._abandoned, threading.Event()
        abandoned.set()

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
                item.future.cancel()

    def __enter__(self) -> BuildPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _start_threads(self, count: int) -> None:
        """Have at least so many; the caller holds ``_starting``."""
        if self._closing.is_set():
            raise BuildFailed("the build pool is closed")
        while len(self._threads) < count:
            thread = threading.Thread(target=self._work, name=f"tirgemm-build-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        """One thread a process: it starts the process, feeds it, and replaces it when it dies."""
        child: ChildProcess | None = None
        with contextlib.suppress(OSError, RuntimeError):  # the first build will try again, and say why
            child = self._start()
        while (item := self._queue.get()) is not None:
            future, given_up = item.future, _Either(self._closing, item.abandoned)
            if given_up.is_set():
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if child is None or not child.alive:
                    child = self._replace(child)
                try:
                    binary = self._build(child, item, given_up)
                except _Killed:
                    # From outside, as where a machine is short of memory: that says nothing about the config.
                    child = self._replace(child)
                    binary = self._build(child, item, given_up)
                future.set_result(binary)
            except TirgemmError as error:
                future.set_exception(error)
            except Exception as error:
                future.set_exception(BuildFailed(f"build process: {type(error).__name__}: {error}"))
            if child is not None and not child.alive and not given_up.is_set():
                with contextlib.suppress(OSError, RuntimeError):  # so that its imports are done by the next build
                    child = self._replace(child)
        if child is not None:
            child.kill()

    def _start(self) -> ChildProcess:
        return ChildProcess("tirgemm.tuning.build.child", self._arguments)

    def _replace(self, child: ChildProcess | None) -> ChildProcess:
        if child is not None:
            child.kill()
        return self._start()

    def _build(self, child: ChildProcess, item: _Item, given_up: Flag) -> Binary:
        thread = threading.get_ident()

        def on_wait(reason: str) -> None:
            self._waits[thread] = reason

        try:
            request = (item.gemm, item.config, self.device, registered())
            with spans.under(item.trace), spans.span("build", gemm=str(item.gemm), config=str(item.config)):
                answer: Binary = child.request(request, timeout_s=self.timeout_s, cancel=given_up, on_wait=on_wait)
        except ChildDied as error:
            words = f"; its last words: {error.output}" if error.output else ""
            kind = _Killed if error.killed else BuildFailed
            raise kind(f"build process died: {error.cause}{words}") from error
        except ChildTimedOut as error:
            if not error.started:
                raise BuildFailed(f"build process did not start within {START_S:g} s") from error
            raise BuildFailed(
                f"build of {item.config} took longer than {self.timeout_s:g} s and was stopped"
            ) from error
        except Cancelled as error:
            closed = self._closing.is_set()
            raise BuildFailed(
                "the build pool was closed during the build" if closed else "the build was given up"
            ) from error
        finally:
            self._waits.pop(thread, None)
        return answer
