"""``PreparedBuilds``: builds ahead for queued jobs, of their first candidates, while the build pool is idle."""

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

# Builds that were used and are kept: at most so many, the latest ones.
KEPT = 128
# A problem, and for what something of it is wanted: a job and a stage of it.
Purpose = tuple[Gemm, str]


@dataclass
class _BegunProblem:
    """What was begun for one problem: what is wanted for each reason, None until that is known; all configs, and the
    builds that nobody has taken."""

    wanted_for: dict[str, tuple[Config, ...] | None] = field(default_factory=dict)
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
        self._keeping = 0
        self._kept: dict[tuple[Gemm, Config], Future[Binary]] = {}

    def prepare(self, wanted: Mapping[Purpose, Callable[[], Iterable[Config]]]) -> None:
        """Begin the builds that are wanted, each once, and give up what was begun for any other problem that is not
        held, unless all is ``kept`` now: then the next call does. Raises what asking for the configs raises."""
        gemms = {gemm for gemm, _ in wanted}
        with self._changing:
            left = [] if self._keeping else [gemm for gemm in self._problems if gemm not in gemms]
            for gemm in [gemm for gemm in left if not self._held[gemm]]:
                self._give_up(gemm)
        for (gemm, reason), configs in wanted.items():
            with self._changing:
                problem = self._problems.setdefault(gemm, _BegunProblem())
                if reason in problem.wanted_for:
                    continue
                problem.wanted_for[reason] = None
            try:
                asked = problem.wanted_for[reason] = tuple(configs())
            except BaseException:
                problem.wanted_for.pop(reason)
                raise
            self._begin(gemm, problem, asked)

    def take(self, gemm: Gemm, config: Config) -> Future[Binary] | None:
        """A build that has begun, or one that was kept; one that has not begun is given up, since it would wait behind
        all others."""
        with self._changing:
            problem = self._problems.get(gemm)
            build = None if problem is None else problem.builds.pop(config, None)
            kept = self._kept.get((gemm, config))
        return kept if build is None or build.cancel() else build

    def keep(self, gemm: Gemm, config: Config, build: Future[Binary]) -> None:
        """Keep a build that has ended, which the problem's next job will ask for again: its fallback's."""
        with self._changing:
            self._kept.pop((gemm, config), None)
            self._kept[gemm, config] = build
            if len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]

    def built(self, purpose: Purpose) -> bool:
        """Whether something was begun for it, and all of that has ended and lies here."""
        gemm, reason = purpose
        with self._changing:
            problem = self._problems.get(gemm)
            configs = (problem.wanted_for.get(reason) if problem else None) or ()
            builds = [problem.builds.get(config) for config in configs] if problem else []
        return bool(builds) and all(build is not None and build.done() for build in builds)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within the block ``prepare`` gives nothing up: which of the problems will be held is not known yet."""
        with self._changing:
            self._keeping += 1
        try:
            yield
        finally:
            with self._changing:
                self._keeping -= 1

    @contextmanager
    def held(self, gemm: Gemm) -> Iterator[None]:
        """Within the block a job of the problem runs: its builds are kept. Behind the last one what is left is given
        up, and what was kept forgotten."""
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
                    for key in [key for key in self._kept if key[0] == gemm]:
                        del self._kept[key]

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
