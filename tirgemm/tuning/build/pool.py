"""``BuildPool``: one device's builds, in processes that may crash or hang without harm.

Compilers do crash: NVRTC 13.0 ends with a segmentation fault on some wgmma kernels. That is a failed build of one
config, and a fresh process for the next.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from tirgemm.artifact.closing import Closing
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.processes import BUILDER, Build, Builders, BuildProcesses
from tirgemm.tuning.process import spans

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary


class BuildPool(Closing):
    """Compiles configs for one device, in ``processes`` of its own (a number; default: one a usable hardware thread)
    or in those that are given, which other devices share.

    A build that takes longer than ``timeout_s`` is killed. Processes of its own hold a CPU device's lock, shared, while
    they work: nothing builds while something measures. ``builder`` as that of BuildProcesses. With ``idle`` it builds
    where the processes that are shared have nothing else to do.
    """

    def __init__(
        self,
        device: Device,
        processes: int | Builders | None = None,
        *,
        lock_dir: Path | None = None,
        timeout_s: float = 120.0,
        builder: str = BUILDER,
        idle: bool = False,
    ) -> None:
        self.device = device
        self._idle = idle
        self.timeout_s = timeout_s
        self._own: BuildProcesses | None = None
        self._builders: Builders
        if processes is None or isinstance(processes, int):
            cpu_lock = device.lock_key if device.kind == "cpu" and device.present else ""
            self._own = BuildProcesses(processes, cpu_lock=cpu_lock, lock_dir=lock_dir, builder=builder)
            self._builders = self._own
        else:
            self._builders = processes
        self._abandoned = threading.Event()
        self._changing = threading.Lock()
        self._waits: dict[int, str] = {}

    @property
    def processes(self) -> int:
        return self._builders.count

    @property
    def waiting(self) -> str:
        """What builds wait for, in plain words; "" where none waits."""
        return next(iter(list(self._waits.values())), "")

    def warm(self) -> None:
        """Start the first process and its imports in the background; returns at once."""
        self._builders.warm()

    def submit(self, gemm: Gemm, config: Config, *, urgent: bool = False) -> Future[Binary]:
        """Compile one config, before others where it is ``urgent``. The future raises BuildFailed with the
        compiler's words, or what killed the process."""
        future: Future[Binary] = Future()
        with self._changing:
            build = Build(
                future,
                gemm,
                config,
                self.device,
                self.timeout_s,
                self._abandoned,
                self._waits,
                None if self._idle else spans.traceparent(),  # no part of the job that runs meanwhile
                self._idle,
                urgent,
            )
            self._builders.submit(self, build)
        return future

    def abandon(self) -> None:
        """Cancel what waits and kill what builds, without waiting for either; what is submitted from now on is
        built."""
        with self._changing:
            abandoned, self._abandoned = self._abandoned, threading.Event()
        abandoned.set()

    def close(self) -> None:
        """Cancel what waits, kill what builds. The pool is of no use afterwards; processes that it shares go on."""
        if self._own is None:
            self.abandon()
        else:
            self._own.close()
