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


# A problem, and what of it: one problem may be wanted for several reasons, one after the other.
Wanted = tuple[Gemm, str]


class PreparedBuilds:
    """Builds for all devices of one key, in processes that they share with what is asked for: that goes first.

    For use from several threads.
    """

    def __init__(self, device: Device, builders: Builders) -> None:
        self._pool = BuildPool(device, builders, idle=True)
        self._changing = threading.Lock()
        self._builds: dict[Gemm, dict[Config, Future[Binary]]] = {}
        self._begun: dict[Gemm, set[str | Config]] = {}
        self._used: set[Gemm] = set()

    def prepare(self, wanted: Mapping[Wanted, Callable[[], Iterable[Config]]]) -> None:
        """Begin the builds that are wanted, each once, and give up what was begun for any other problem that waits."""
        gemms = {gemm for gemm, _ in wanted}
        with self._changing:
            for gemm in [gemm for gemm in self._begun if gemm not in gemms and gemm not in self._used]:
                self._give_up(gemm)
            new = [(g, what) for g, what in wanted if what not in self._begun.get(g, ()) and g not in self._used]
            for gemm, what in new:
                self._begun.setdefault(gemm, set()).add(what)
        for gemm, what in new:
            configs = list(wanted[gemm, what]())
            with self._changing:
                if (begun := self._begun.get(gemm)) is None:
                    continue
                builds = self._builds.setdefault(gemm, {})
                builds |= {config: self._pool.submit(gemm, config) for config in configs if config not in begun}
                begun |= set(configs)

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
        self._begun.pop(gemm, None)
        for build in self._builds.pop(gemm, {}).values():
            build.cancel()
