"""The search over many problems on one device: who comes next, what is built for it, what is measured when.

Builds run in the pool well ahead of the one measuring process. Round 1 tries a few configs of every problem; later
rounds its best's neighbours and what was fast for similar problems. A problem that is slow against the reference, or
that stands in a small suite, comes round more often.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

from tirgemm.config import Config
from tirgemm.errors import BuildFailed, InvalidConfig, InvalidRequest, TirgemmError, Unsupported
from tirgemm.families import Family, rejected, supporting
from tirgemm.gemm import REGIMES, Gemm
from tirgemm.tuning.burst import Burst, Contender, burst, verified
from tirgemm.tuning.candidates import Candidates
from tirgemm.tuning.measured_configs import Entry, MeasuredConfigs, Session
from tirgemm.tuning.records import Status
from tirgemm.tuning.workbench import Workbench

SAVE_EVERY_S = 20.0
# Builds that wait for each process, and problems that are built and wait to be measured, at most.
AHEAD, READY = 5, 3
# No build is started that would hardly be measured.
LAST_BUILDS_S = 12.0
# Similar problems whose best configs are tried, and how many of each.
SIMILAR, OF_EACH = 4, 2
# A round of a shape costs it this much of its place in the queue (as ratio to the reference), in a suite of 20 shapes;
# a round without gain costs as much again.
ROUND_COST, SUITE_SIZE = 0.05, 20
GAIN = 1.005
# A shape below this ratio has rounds of twice the size.
BEHIND = 0.99
TOGETHER = 9


@dataclass
class Problem:
    """One gemm of the search."""

    gemm: Gemm
    family: Family
    weight: float
    similar: list[Gemm] = field(default_factory=list)
    rounds: int = 0
    stale: int = 0
    exhausted: bool = False
    building: dict[Config, Future[Any]] = field(default_factory=dict)
    incumbent: Contender | None = None


class SuiteSearch:
    """The search over ``suites`` (name -> problems) on one workbench, into ``found``, whose last run is this one.

    ``regimes``: every candidate is measured in each, the first leads. ``first`` and ``batch`` configs a round, each
    timed for ``burst_s`` seconds. ``tell`` gets a line for every round of a problem.
    """

    def __init__(
        self,
        suites: Mapping[str, Sequence[Gemm]],
        workbench: Workbench,
        found: MeasuredConfigs,
        regimes: Sequence[str],
        *,
        families: Sequence[Family] | None = None,
        first: int = 5,
        batch: int = 5,
        burst_s: float = 0.04,
        seed: int = 0,
        tell: Callable[[str], None] = print,
    ) -> None:
        if workbench.measurer is None:
            raise InvalidRequest(f"device {workbench.device.name} is only named; nothing can be measured on it")
        self.suites = suites
        self.workbench = workbench
        self.measurer = workbench.measurer
        self.found = found
        self.regimes = tuple(regimes)
        self.first, self.batch, self.burst_s, self.seed = first, batch, burst_s, seed
        self.tell = tell
        self.overlap = workbench.device.kind != "cpu"
        self.skipped: dict[Gemm, str] = {}
        self.problems = self._problems(families)
        self._started = time.monotonic()
        self._queue: list[Problem] = []
        self._candidates: dict[tuple[Gemm, str], Candidates] = {}

    def run(self, seconds: float, save: Callable[[], None] = lambda: None) -> None:
        """Go on until the time is up or nothing is left to try; ``save`` is called now and then, and at the end."""
        if seconds <= LAST_BUILDS_S:
            raise InvalidRequest(f"seconds is {seconds:g}; the last {LAST_BUILDS_S:g} begin no build: give more")
        self._started = saved = time.monotonic()
        job: Future[tuple[Problem, list[Burst]]] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="measuring") as measuring:
            measuring.submit(self._stream)  # starts the measuring process while the first configs are built
            while self._elapsed() < seconds:
                if self._elapsed() < seconds - LAST_BUILDS_S and (self.overlap or not (self._queue or job)):
                    self._propose()
                if job is None:
                    ready = self._ready()
                    job = measuring.submit(self._measured, ready) if ready else None
                if job is None and not self._queue:
                    break
                self._wait(job)
                if job is not None and job.done():
                    self._take(*job.result())
                    job = None
                if time.monotonic() - saved > SAVE_EVERY_S:
                    saved = time.monotonic()
                    save()
            for problem in self._queue:
                for future in problem.building.values():
                    future.cancel()
            if job is not None:
                self._take(*job.result())
        save()

    # -- proposing -----------------------------------------------------------------------------

    def _propose(self) -> None:
        """Keep a few builds for every process waiting, of the shapes that need it most; no more than can be measured."""
        ahead = AHEAD * self.workbench.pool.processes
        while True:
            building = [sum(not f.done() for f in problem.building.values()) for problem in self._queue]
            if sum(building) >= ahead or (self.overlap and building.count(0) >= READY):
                return
            problem = self._neediest()
            if problem is None:
                return
            configs = self._configs(problem)
            if configs:
                problem.building = {config: self.workbench.build(problem.gemm, config) for config in configs}
                self._queue.append(problem)
            else:
                problem.exhausted = True

    def _neediest(self) -> Problem | None:
        waiting = [p for p in self.problems if not p.exhausted and p not in self._queue and not p.building]
        return min(waiting, key=self._place, default=None)

    def _place(self, problem: Problem) -> tuple[bool, float]:
        """Small is early: shapes without a round first, then by ratio, rounds already spent and suite."""
        if not problem.rounds:
            return False, -problem.weight
        spent = ROUND_COST * (problem.rounds + problem.stale) / problem.weight
        return True, (self.ratio(problem.gemm, self.regimes[0]) or 1.0) + spent

    def _configs(self, problem: Problem) -> list[Config]:
        """What to build next for a problem: two rounds of three look at the first regime, the third at the next."""
        regime = self.regimes[0 if problem.rounds % 3 < 2 else -1]
        chooser = self._chooser(problem, regime)
        known = self.found.times(problem.gemm, regime)
        missing = [c for c in self.defaults(problem) if c not in known]
        if not problem.rounds and not known:
            elsewhere = [c for r in REGIMES for c in self.found.best(problem.gemm, r, 2)]
            return list(dict.fromkeys([*missing, *elsewhere, *chooser.first(self.first)]))[: self.first]
        others = [c for r in REGIMES if r != regime for c in self.found.best(problem.gemm, r, 3)]
        others += [c for gemm in problem.similar for c in self.found.best(gemm, regime, OF_EACH)]
        others = [config for config in others if config.family == problem.family.name]
        behind = (self.ratio(problem.gemm, regime) or 1.0) < BEHIND
        count = self.batch * (2 if behind else 1)
        return list(dict.fromkeys([*missing, *chooser.next(count, known, others)]))[:count]

    def _chooser(self, problem: Problem, regime: str) -> Candidates:
        key = problem.gemm, regime
        if key not in self._candidates:
            self._candidates[key] = Candidates(
                problem.gemm, problem.family, self.workbench.device, regime, seed=self.seed
            )
        return self._candidates[key]

    def defaults(self, problem: Problem) -> list[Config]:
        """The default of each regime."""
        try:
            found = [problem.family.default(problem.gemm, self.workbench.device, regime) for regime in self.regimes]
        except Unsupported:
            return []
        device = self.workbench.device
        return [c for c in dict.fromkeys(found) if rejected(problem.family, problem.gemm, c, device) is None]

    # -- measuring -----------------------------------------------------------------------------

    def _ready(self) -> Problem | None:
        """The first problem whose builds are all done; on a CPU nothing is measured while something builds."""
        done = [problem for problem in self._queue if all(f.done() for f in problem.building.values())]
        if not done or (not self.overlap and len(done) < len(self._queue)):
            return None
        self._queue.remove(done[0])
        return done[0]

    def _wait(self, job: Future[Any] | None) -> None:
        waiting: list[Future[Any]] = [f for p in self._queue for f in p.building.values() if not f.done()]
        if job is not None:
            waiting.append(job)
        wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)

    def _stream(self) -> None:
        """Note the bandwidth of reading alone beside the run."""
        try:
            found = self.measurer.stream()
        except TirgemmError as error:
            self.tell(f"the bandwidth of reading alone is not known: {error}")
            return
        self.found.runs[-1]["read_gbps"] = round(found.conditions["bytes"] / found.median_us / 1e3, 1)

    def _measured(self, problem: Problem) -> tuple[Problem, list[Burst]]:
        """Verify what was built and time what is right, in every regime. A problem that cannot be timed is given up."""
        bursts: list[Burst] = []
        try:
            self._measure(problem, bursts)
        except TirgemmError as error:
            problem.exhausted = True
            self.tell(f"{problem.gemm}: {error}")
        return problem, bursts

    def _measure(self, problem: Problem, bursts: list[Burst]) -> None:
        built = [self._contender(problem, config, future) for config, future in problem.building.items()]
        failed = [entry for entry in built if isinstance(entry, Entry)]
        checked = [verified(self.measurer, c, self.seed) for c in built if isinstance(c, Contender)]
        failed += [c.entry for c in checked if c.entry.status is not Status.MEASURED]
        right = [c for c in checked if c.entry.status is Status.MEASURED]
        if problem.incumbent is not None and all(c.config != problem.incumbent.config for c in right):
            right.append(problem.incumbent)
        if failed:
            bursts.append(Burst(self.regimes[0], tuple(failed), None, None, None))
        for regime in self.regimes:
            # The measuring process keeps a dozen kernels loaded: no burst may have more.
            pieces = [right[at : at + TOGETHER] for at in range(0, len(right), TOGETHER)]
            for piece in pieces:
                bursts.append(burst(self.measurer, piece, regime, reference=self.found.reference or None,
                                    seconds=self.burst_s, seed=self.seed))  # fmt: skip
            died = {entry.config for done in bursts for entry in done.entries if entry.us is None}
            right = [c for c in right if c.config not in died]
        timed = [e for b in bursts if b.regime == self.regimes[0] for e in b.entries if e.us is not None]
        best = min(timed, key=lambda entry: entry.us or 0.0).config if timed else None
        problem.incumbent = next((replace(c, verified=True) for c in right if c.config == best), problem.incumbent)

    def _contender(self, problem: Problem, config: Config, build: Future[Any]) -> Contender | Entry:
        estimate = problem.family.predict_us(problem.gemm, config, self.workbench.device, self.regimes[0])
        entry = Entry(0, config, Status.BUILD_FAILED, predicted_us=round(estimate, 2))
        try:
            binary = build.result()
        except (BuildFailed, InvalidConfig) as error:
            return replace(entry, message=str(error)[-300:])
        names = ("registers", "spill_bytes", "shared_bytes")
        entry = replace(entry, **{name: binary.resources.get(name) for name in names})
        return Contender(entry, self.workbench.package(problem.gemm, config, binary))

    # -- recording -----------------------------------------------------------------------------

    def _take(self, problem: Problem, bursts: list[Burst]) -> None:
        before, seconds = self.ratio(problem.gemm, self.regimes[0]), round(self._elapsed(), 1)
        for done in bursts:
            session = Session(
                problem.gemm, done.regime, len(self.found.runs) - 1, seconds, done.reference_us,
                done.clock_mhz, done.power_w,
            )  # fmt: skip
            self.found.add(session, done.entries)
        problem.building = {}
        problem.rounds += 1
        after = self.ratio(problem.gemm, self.regimes[0])
        problem.stale = 0 if before is None or (after or 0.0) > before * GAIN else problem.stale + 1
        self._tell(problem, bursts)

    def ratio(self, gemm: Gemm, regime: str) -> float | None:
        """Speed of the best config over the reference."""
        reference, best = self.found.reference_us(gemm, regime), self.found.best(gemm, regime)
        us = self.found.times(gemm, regime)[best[0]] if best else None
        return reference / us if reference and us else None

    def _tell(self, problem: Problem, bursts: list[Burst]) -> None:
        entries = {e.config: e for b in reversed(bursts) for e in b.entries}.values()
        counts = " ".join(
            f"{sum(e.status is s for e in entries)} {s.value}" for s in Status if any(e.status is s for e in entries)
        )
        words = [f"{self._elapsed():6.1f} s  r{problem.rounds}  {problem.gemm}  {counts}"]
        for regime in self.regimes:
            best = self.found.best(problem.gemm, regime)
            if best:
                us, ratio = self.found.times(problem.gemm, regime)[best[0]], self.ratio(problem.gemm, regime)
                words.append(f"{regime} {us:.2f} us" + (f" {ratio:.3f} x" if ratio else ""))
        best = self.found.best(problem.gemm, self.regimes[0])
        self.tell("  ".join([*words, _knobs(best[0]) if best else ""]))

    # -- problems ------------------------------------------------------------------------------

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _problems(self, families: Sequence[Family] | None) -> list[Problem]:
        weights: dict[Gemm, float] = {}
        for gemms in self.suites.values():
            for gemm in gemms:
                weights[gemm] = max(weights.get(gemm, 0.0), math.sqrt(SUITE_SIZE / len(gemms)))
        problems = []
        for gemm, weight in weights.items():
            try:
                family = _family(gemm, self.workbench, families)
            except TirgemmError as error:
                self.skipped[gemm] = str(error)
                continue
            # A round may be several sessions, at one time.
            led = (s for s in self.found.sessions if s.gemm == gemm and s.regime == self.regimes[0])
            rounds = len({(s.run, s.seconds) for s in led})
            problems.append(Problem(gemm, family, weight, _similar(gemm, weights), rounds))
        return problems


def _family(gemm: Gemm, workbench: Workbench, families: Sequence[Family] | None) -> Family:
    """The first asked family that writes the gemm. Raises Unsupported with every reason."""
    if families is None:
        return supporting(gemm, workbench.device)[0]
    reasons = [family.supports(gemm, workbench.device) for family in families]
    if None not in reasons:
        raise Unsupported("; ".join(str(reason) for reason in reasons))
    return families[reasons.index(None)]


def _similar(gemm: Gemm, gemms: Iterable[Gemm]) -> list[Gemm]:
    """The nearest problems of the same types and layout, by the logarithms of their sizes."""

    def sizes(one: Gemm) -> tuple[float, ...]:
        return math.log2(one.m_max), math.log2(one.n), math.log2(one.k), math.log2(one.batch)

    mine = sizes(gemm)
    alike = [o for o in gemms if o != gemm and (o.dtype, o.out, o.layout) == (gemm.dtype, gemm.out, gemm.layout)]
    return sorted(alike, key=lambda other: math.dist(mine, sizes(other)))[:SIMILAR]


def _knobs(config: Config) -> str:
    return " ".join(f"{name}={value}" for name, value in config.knobs)
