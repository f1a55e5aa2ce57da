"""``PreparedBuilds``: what jobs that wait will begin with, compiled where nothing else is to be compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.pool import BuildPool
from tirgemm.tuning.build.processes import Builders

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary


class PreparedBuilds:
    """Builds for all devices of one key, in processes that they share with what is asked for: that goes first.

    For use from several threads.
    """

    def __init__(self, device: Device, builders: Builders) -> None:
        self._pool = BuildPool(device, builders, idle=True)
        self._changing = threading.Lock()
        self._builds: dict[Gemm, dict[Config, Future[Binary]]] = {}
        self._used: set[Gemm] = set()

    def prepare(self, wanted: Mapping[Gemm, Callable[[], Iterable[Config]]]) -> None:
        """Begin the builds of each of these problems, once, and give up what was begun for any other that waits."""
        with self._changing:
            for gemm in [gemm for gemm in self._builds if gemm not in wanted and gemm not in self._used]:
                self._give_up(gemm)
            new = [gemm for gemm in wanted if gemm not in self._builds and gemm not in self._used]
            self._builds |= {gemm: {} for gemm in new}
        for gemm in new:
            configs = list(wanted[gemm]())
            with self._changing:
                if (builds := self._builds.get(gemm)) is not None:
                    builds |= {config: self._pool.submit(gemm, config) for config in configs}

    def take(self, gemm: Gemm, config: Config) -> Future[Binary] | None:
        """A build that has begun; one that has not is given up, since it would wait behind all others."""
        with self._changing:
            build = self._builds.get(gemm, {}).pop(config, None)
        return None if build is None or build.cancel() else build

    @contextmanager
    def used(self, gemm: Gemm) -> Iterator[None]:
        """Within the block the problem's job runs: its builds are kept. What is left of them is given up behind it."""
        with self._changing:
            self._used.add(gemm)
        try:
            yield
        finally:
            with self._changing:
                self._used.discard(gemm)
                self._give_up(gemm)

    def close(self) -> None:
        """Give up everything; the processes go on."""
        self._pool.close()

    def _give_up(self, gemm: Gemm) -> None:
        for build in self._builds.pop(gemm, {}).values():
            build.cancel()
