"""``Sweep``: scheduler over the searches of many problems on one store and one workbench.

The next batch goes to the problem where a gain is likeliest; builds run ahead of the one measuring process. A problem
whose search has ended is finished at once, so that its kernel is stored while the others go on, and a sweep that is
started again resumes from the store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tirgemm.config import Config
from tirgemm.errors import BuildersUnusable, Cancelled, DoesNotFit, TirgemmError
from tirgemm.gemm import Gemm
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.finish import finish
from tirgemm.tuning.process.spans import spanned
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.search.similar_problems import nearest
from tirgemm.tuning.search_loop import SearchLoop
from tirgemm.tuning.tune import Tuning

# Candidates in flight for each build process, at most, where builds run ahead of the measuring.
AHEAD = 4
# Of several problems each has so many of its best tried before any has more: they are all that there is time for.
AT_ONCE = 4
# The gain in speed that is expected of a problem's second batch, and how much the latest batch's gain counts.
FIRST_GAIN, LATEST = 0.1, 0.5
# Problems from whose results another one learns while it is searched.
SIMILAR = 4


@dataclass(frozen=True)
class Outcome:
    """What became of one problem: its kernel, or the reason why there is none; neither where only records were
    wanted."""

    gemm: Gemm
    record: KernelRecord | None = None
    error: TirgemmError | None = None


@dataclass
class _SweptProblem:
    """One search of the sweep, and the problems that learn from its results. ``gain`` is the logarithm of the speed-up
    that its next batch is expected to bring."""

    tuning: Tuning
    loop: SearchLoop
    gain: float = math.inf
    best_us: float | None = None
    batches: int = 0
    alike: list[_SweptProblem] = field(default_factory=list)

    def note(self) -> None:
        """Learn from the batch that has come back how much the next is likely to gain."""
        best = self.loop.search.best_us
        gained = math.log(self.best_us / best) if self.best_us and best else FIRST_GAIN
        self.gain = gained if math.isinf(self.gain) else (1 - LATEST) * self.gain + LATEST * gained
        self.best_us = best


class Sweep:
    """Searches every one of ``tunings`` on their common workbench; ``seconds`` bounds all the searches together.

    ``on_outcome`` hears of each problem as it ends. A problem that fails costs itself alone. Without ``selects`` no
    kernel is selected: what is wanted are the records. With ``configs`` it is so too, and those of each problem are
    measured and nothing else is proposed.
    """

    def __init__(
        self,
        tunings: Sequence[Tuning],
        *,
        seconds: float,
        on_outcome: Callable[[Outcome], None] = lambda _: None,
        configs: Mapping[Gemm, Sequence[Config]] | None = None,
        selects: bool = True,
    ) -> None:
        self.selects = selects and configs is None
        self.deadline = time.monotonic() + seconds
        self.on_outcome = on_outcome
        self.problems: list[_SweptProblem] = []
        for tuning in tunings:
            loop = tuning.search_loop() if configs is None else tuning.loop_over(configs[tuning.gemm])
            loop.at_once = AT_ONCE if len(tunings) > 1 else None
            problem = _SweptProblem(tuning, loop)
            problem.loop.deadline = tuning.deadline = self.deadline
            self.problems.append(problem)
        of = {problem.tuning.gemm: problem for problem in self.problems}
        for problem in self.problems:
            for gemm in nearest(problem.tuning.gemm, of)[:SIMILAR]:
                of[gemm].alike.append(problem)

    @spanned("search")
    def run(self) -> None:
        """Search to the end, finish every problem. Raises Cancelled."""
        with ThreadPoolExecutor(1, thread_name_prefix="tirgemm-propose") as asker:
            for problem in self.problems:
                problem.loop.asker = asker
            self._run()

    def _run(self) -> None:
        waiting = list(self.problems)
        while waiting:
            tuning = waiting[0].tuning
            tuning.raise_if_cancelled()
            if tuning.end.stopping:
                tuning.workbench.abandon_builds()
                for problem in waiting:
                    problem.loop.building.clear()
                    problem.loop.built.clear()
            else:
                try:
                    self._step(waiting)
                except Cancelled:
                    if not tuning.end.stopping:
                        raise
            for problem in [p for p in waiting if tuning.end.stopping or not p.loop.active]:
                if tuning.device.kind == "cpu" and any(p.loop.building for p in waiting if p is not problem):
                    continue  # on a CPU nothing builds while something measures
                waiting.remove(problem)
                self._finish(problem)

    def _step(self, waiting: list[_SweptProblem]) -> None:
        """Submit builds, take over those that have ended, measure one."""
        overlap = waiting[0].loop.overlap
        workbench = waiting[0].tuning.workbench
        building = {future: p for p in waiting for future in p.loop.building}
        built = [p for p in waiting if p.loop.built]
        if overlap or not (building or built):
            self._propose(waiting, workbench.pool.processes * (AHEAD if overlap else 1))
            building = {future: p for p in waiting for future in p.loop.building}
        if building:
            done = workbench.ended(building, *((0.0,) if overlap and built else ()))
            for problem in waiting:
                problem.loop.take_finished_builds(done)
        if overlap or not any(p.loop.building for p in waiting):
            self._measure_one(waiting)
        asking = next((p.loop for p in waiting if p.loop.asking is not None), None)
        if asking is not None and not any(p.loop.building or p.loop.built for p in waiting):
            asking.wait_for_proposals()
        if time.monotonic() > self.deadline:
            for problem in waiting:
                problem.loop.drop_overdue()

    def _propose(self, waiting: list[_SweptProblem], most: int) -> None:
        """Batches for the problems of the likeliest gain, one after the other, until ``most`` candidates are in
        flight."""
        while sum(len(p.loop.building) + len(p.loop.built) for p in waiting) < most:
            if asked := [p for p in waiting if p.loop.asking is not None and p.loop.may_propose]:
                if not asked[0].loop.wants_proposals():
                    return
                asked[0].loop.propose()
                continue
            willing = [p for p in waiting if p.loop.wants_proposals()]
            if not willing:
                return
            problem = max(willing, key=lambda p: (p.gain, -p.batches))
            problem.batches += 1
            problem.loop.propose()

    def _measure_one(self, waiting: list[_SweptProblem]) -> None:
        built = [p for p in waiting if p.loop.built]
        if not built:
            return
        problem = min(built, key=lambda p: p.loop.results // AT_ONCE)
        try:
            measured = problem.loop.measure([problem.tuning.evaluator.measurer])
        except (BuildersUnusable, DoesNotFit) as error:
            if not self.selects:
                raise
            waiting.remove(problem)
            problem.tuning.deadline = None
            for future in problem.loop.building:
                future.cancel()
            self.on_outcome(Outcome(problem.tuning.gemm, error=error))
            return
        for other in problem.alike:
            other.loop.learn(measured)
        if problem.loop.awaited == 0:
            problem.note()

    def _finish(self, problem: _SweptProblem) -> None:
        """Select, certify and store, and tell what came of it."""
        tuning = problem.tuning
        tuning.deadline = None
        problem.loop.settle()
        if not self.selects:
            self.on_outcome(Outcome(tuning.gemm))
            return
        tuning.end.finishing = True
        ended = "interrupted" if tuning.end.stopping else problem.loop.ended
        try:
            if tuning.effort is Effort.NONE or (ended == "seconds" and not tuning.measured()):
                record = tuning.fallback()
            else:
                record = finish(tuning, tuning.searched(problem.loop, ended), tuning.plan)
            self.on_outcome(Outcome(tuning.gemm, record))
        except Cancelled:
            raise
        except TirgemmError as error:
            self.on_outcome(Outcome(tuning.gemm, error=error))
