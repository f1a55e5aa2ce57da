"""``BuildProcesses``: persistent processes that compile configs for all devices of a host, which take turns."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import BuildersUnusable, BuildFailed, Cancelled, TirgemmError
from tirgemm.families import registered
from tirgemm.gemm import Gemm
from tirgemm.tuning.process import spans
from tirgemm.tuning.process.child_rpc import START_S, ChildDied, ChildProcess, ChildTimedOut
from tirgemm.tuning.process.interrupts import Flag
from tirgemm.tuning.process.locks import DeviceLock, default_lock_dir

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary

BUILDER = "tirgemm.tuning.build.compile:build"
# Urgent builds that go before what else is asked for, one after another: then that has a turn. Devices that make one
# fallback after another would keep a search from building otherwise.
URGENT_IN_A_ROW = 4


@dataclass(frozen=True, slots=True)
class Build:
    """One build that was asked for: what to compile, how long that may take, and ``given_up``, set when it is not
    wanted any more. ``waits`` has, by thread, what a build of the same asker waits for, ``trace`` is the span that
    asked. One that is ``urgent`` goes before others, because somebody waits for it alone; one that is ``idle`` is for a
    process that has nothing else to do."""

    future: Future[Binary]
    gemm: Gemm
    config: Config
    device: Device
    timeout_s: float
    given_up: Flag
    waits: dict[int, str]
    trace: str | None = None
    idle: bool = False
    urgent: bool = False


class Builders(Protocol):
    """What compiles for several askers. ``count`` is how many builds it does at once."""

    @property
    def count(self) -> int: ...

    def warm(self) -> None:
        """Get ready in the background; returns at once."""
        ...

    def submit(self, asker: Hashable, build: Build) -> None:
        """Compile, when it is the ``asker``'s turn; the build's future has what comes of it."""
        ...


@dataclass(frozen=True, slots=True)
class _Either:
    """Set when one of two flags is."""

    one: Flag
    other: Flag

    def is_set(self) -> bool:
        return self.one.is_set() or self.other.is_set()


class _Killed(BuildFailed):
    """The build process was killed by SIGKILL, which no config does."""


class BuildProcesses:
    """At most ``count`` processes (default: one a usable hardware thread) that every asker's builds share, in turns:
    none waits for all that another has asked for.

    There are as many as builds have been asked for at a time: to start one takes a processor second. Builds of idle
    time have half of them at most, so that what is asked for meanwhile finds some free.
    ``cpu_lock`` is the key of the lock that a process holds, shared, while it works: where this host measures on its
    CPU, nothing builds meanwhile. ``builder`` names the function that compiles, as ``module:function`` called with
    (gemm, config, device). A process that nothing is asked of when it has started builds a kernel for the GPU
    ``rehearsed``, so that the first that is asked for takes no longer than later ones.
    """

    def __init__(
        self,
        count: int | None = None,
        *,
        cpu_lock: str = "",
        lock_dir: Path | None = None,
        builder: str = BUILDER,
        rehearsed: Device | None = None,
    ) -> None:
        self.count = count or len(os.sched_getaffinity(0))
        if cpu_lock:
            DeviceLock(cpu_lock, lock_dir).make_files()
        rehearsal = json.dumps(rehearsed.device_class.to_json()) if rehearsed is not None else ""
        self._arguments = (builder, cpu_lock, str(lock_dir or default_lock_dir()), rehearsal)
        self._queue = _TurnQueue(self.count // 2)
        self._threads: list[threading.Thread] = []
        self._unfinished: list[Build] = []
        self._closing = threading.Event()
        self._starting = threading.Lock()

    def warm(self) -> None:
        """Start the first process and its imports in the background; returns at once."""
        with self._starting:
            self._start_threads(1)

    def submit(self, asker: Hashable, build: Build) -> None:
        """Compile when it is the ``asker``'s turn; the build's future has what comes of it."""
        with self._starting:
            self._unfinished = [each for each in self._unfinished if not each.future.done()] + [build]
            idle = sum(each.idle for each in self._unfinished)
            self._start_threads(min(self.count, len(self._unfinished) - idle + min(idle, self._queue.most_idle)))
            self._queue.put(asker, build)

    def close(self) -> None:
        """Cancel what waits, kill what builds. The processes are of no use afterwards."""
        with self._starting:
            self._closing.set()
            left = self._queue.close()
        for build in left:
            build.future.cancel()
        for thread in self._threads:
            thread.join()

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
        with contextlib.suppress(OSError, RuntimeError, Cancelled):  # the first build will try again, and say why
            child = self._replace(None)
        while (build := self._queue.get()) is not None:
            future, given_up = build.future, _Either(self._closing, build.given_up)
            if given_up.is_set():
                future.cancel()
            if not future.set_running_or_notify_cancel():
                self._queue.ended(build)
                continue
            try:
                if child is None or not child.alive:
                    child = self._replace(child)
                try:
                    binary = self._answer(child, build, given_up)
                except _Killed:
                    # From outside, as where a machine is short of memory: that says nothing about the config.
                    child = self._replace(child)
                    binary = self._answer(child, build, given_up)
                future.set_result(binary)
            except TirgemmError as error:
                future.set_exception(error)
            except Exception as error:
                future.set_exception(BuildersUnusable(f"build process: {type(error).__name__}: {error}"))
            self._queue.ended(build)
            if child is not None and not child.alive and not given_up.is_set():
                # So that its imports are done by the next build.
                with contextlib.suppress(OSError, RuntimeError, Cancelled):
                    child = self._replace(child)
        if child is not None:
            child.kill()

    def _replace(self, child: ChildProcess | None) -> ChildProcess:
        if child is not None:
            child.kill()
        return ChildProcess("tirgemm.tuning.build.child", self._arguments)

    def _answer(self, child: ChildProcess, build: Build, given_up: Flag) -> Binary:
        thread = threading.get_ident()

        def on_wait(reason: str) -> None:
            build.waits[thread] = reason

        try:
            request = (build.gemm, build.config, build.device, registered())
            with spans.under(build.trace), spans.span("build", gemm=str(build.gemm), config=str(build.config)):
                answer: Binary = child.request(request, timeout_s=build.timeout_s, cancel=given_up, on_wait=on_wait)
        except ChildDied as error:
            words = f"; its last words: {error.output}" if error.output else ""
            kind = _Killed if error.killed else BuildFailed if error.started else BuildersUnusable
            raise kind(f"build process died: {error.cause}{words}") from error
        except ChildTimedOut as error:
            if not error.started:
                raise BuildersUnusable(f"build process did not start within {START_S:g} s") from error
            raise BuildFailed(
                f"build of {build.config} took longer than {build.timeout_s:g} s and was stopped"
            ) from error
        except Cancelled as error:
            closed = self._closing.is_set()
            raise BuildFailed(
                "the build pool was closed during the build" if closed else "the build was given up"
            ) from error
        finally:
            build.waits.pop(thread, None)
        return answer


class _TurnQueue:
    """Urgent builds first, at most URGENT_IN_A_ROW while others wait; then builds by asker, first in first out of each,
    one of every asker in turn; those of idle time last, and at most ``most_idle`` of them at a time. What ``get`` gave
    is to be told when it has ``ended``."""

    def __init__(self, most_idle: int) -> None:
        self.most_idle = most_idle
        self._changed = threading.Condition()
        self._urgent: deque[Build] = deque()
        self._urgent_in_a_row = 0  # while others waited
        self._waiting: dict[Hashable, deque[Build]] = {}
        self._idle = 0
        self._closed = False

    def put(self, asker: Hashable, build: Build) -> None:
        with self._changed:
            (self._urgent if build.urgent else self._waiting.setdefault(asker, deque())).append(build)
            self._changed.notify()

    def get(self) -> Build | None:
        """The next build, once there is one; None when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._urgent or self._next() is not None)
            if self._closed:
                return None
            asker = self._next()
            others_wait = asker is not None and not self._waiting[asker][0].idle
            if self._urgent and not (others_wait and self._urgent_in_a_row >= URGENT_IN_A_ROW):
                self._urgent_in_a_row += others_wait
                return self._urgent.popleft()
            self._urgent_in_a_row = 0
            builds = self._waiting.pop(asker)
            build = builds.popleft()
            if builds:
                self._waiting[asker] = builds
            self._idle += build.idle
            return build

    def ended(self, build: Build) -> None:
        if build.idle:
            with self._changed:
                self._idle -= 1
                self._changed.notify()

    def _next(self) -> Hashable | None:
        """The asker whose turn it is; None where nothing may begin now."""
        idle = None
        for asker, builds in self._waiting.items():
            if not builds[0].idle:
                return asker
            idle = idle or asker
        return idle if self._idle < self.most_idle else None

    def close(self) -> list[Build]:
        """End every ``get``; what waits still is returned."""
        with self._changed:
            self._closed = True
            left = [*self._urgent, *(build for builds in self._waiting.values() for build in builds)]
            self._urgent.clear()
            self._waiting.clear()
            self._changed.notify_all()
        return left
