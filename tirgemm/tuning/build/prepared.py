"""``PreparedBuilds``: what jobs that wait will begin with, compiled where nothing else is to be compiled."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.pool import BuildPool
from tirgemm.tuning.build.processes import Builders

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary

# A problem, and for what something of it is wanted: a job and a stage of it.
Purpose = tuple[Gemm, str]


@dataclass
class _BegunProblem:
    """What was begun for one problem: for what it was wanted, all configs, and the builds that nobody has taken."""

    wanted_for: set[str] = field(default_factory=set)
    begun: set[Config] = field(default_factory=set)
    builds: dict[Config, Future[Binary]] = field(default_factory=dict)


class PreparedBuilds:
    """Builds for all devices of one key, in processes that they share with what is asked for: that goes first.

    For use from several threads.
    """

    def __init__(self, device: Device, builders: Builders) -> None:
        self._pool = BuildPool(device, builders, idle=True)
        self._changing = threading.Lock()
        self._problems: dict[Gemm, _BegunProblem] = {}
        self._held: Counter[Gemm] = Counter()

    def prepare(self, wanted: Mapping[Purpose, Callable[[], Iterable[Config]]]) -> None:
        """Begin the builds that are wanted, each once, and give up what was begun for any other problem that is not
        held. Raises what asking for the configs raises."""
        gemms = {gemm for gemm, _ in wanted}
        with self._changing:
            for gemm in [gemm for gemm in self._problems if gemm not in gemms and not self._held[gemm]]:
                self._give_up(gemm)
        for (gemm, reason), configs in wanted.items():
            with self._changing:
                problem = self._problems.setdefault(gemm, _BegunProblem())
                if reason in problem.wanted_for:
                    continue
                problem.wanted_for.add(reason)
            try:
                asked = list(configs())
            except BaseException:
                problem.wanted_for.discard(reason)
                raise
            self._begin(gemm, problem, asked)

    def take(self, gemm: Gemm, config: Config) -> Future[Binary] | None:
        """A build that has begun; one that has not is given up, since it would wait behind all others."""
        with self._changing:
            problem = self._problems.get(gemm)
            build = None if problem is None else problem.builds.pop(config, None)
        return None if build is None or build.cancel() else build

    @contextmanager
    def held(self, gemm: Gemm) -> Iterator[None]:
        """Within the block a job of the problem runs: its builds are kept. Behind the last one what is left is given
        up."""
        with self._changing:
            self._held[gemm] += 1
        try:
            yield
        finally:
            with self._changing:
                self._held[gemm] -= 1
                if not self._held[gemm]:
                    del self._held[gemm]
                    self._give_up(gemm)

    def close(self) -> None:
        """Give up everything; the processes go on."""
        self._pool.close()

    def _begin(self, gemm: Gemm, problem: _BegunProblem, configs: Iterable[Config]) -> None:
        with self._changing:
            if self._problems.get(gemm) is not problem:  # given up since
                return
            new = [config for config in dict.fromkeys(configs) if config not in problem.begun]
            problem.builds |= {config: self._pool.submit(gemm, config) for config in new}
            problem.begun |= set(new)

    def _give_up(self, gemm: Gemm) -> None:
        for build in self._problems.pop(gemm, _BegunProblem()).builds.values():
            build.cancel()
