"""``SearchLoop``: proposes, builds and measures candidates until its effort has come to its end, the budget is spent or
the search is stopped."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from tirgemm.errors import Cancelled
from tirgemm.events import BatchProposed, CandidateRecorded, Phase, Standing
from tirgemm.timings import SearchEnd
from tirgemm.tuning.build.builds_report import BuildsReport
from tirgemm.tuning.process import spans
from tirgemm.tuning.search.search import LEAST_TRIED, Proposal, Search

logger = logging.getLogger("tirgemm.tuning")

# Candidates of a batch, and at most twice as many in flight before the next one is asked for.
BATCH = 8
# How long the loop waits for proposals before it goes on without them, and where there is nothing to go on with, before
# it looks whether it was cancelled.
SOON_SECONDS, POLL_SECONDS = 0.05, 0.1
# Proposals that have taken so long are waited for without another look.
SILENT_AFTER_SECONDS = 30.0

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary
    from tirgemm.tuning.measure import Measurer
    from tirgemm.tuning.records import Candidate
    from tirgemm.tuning.tuning_task import TriedCandidates, TuningTask


class SearchLoop:
    """Keeps the build pool filled and the device busy. On a CPU building and measuring alternate.

    What is expected to be the best goes first, in one batch where a trained model expects it. Any other batch is at
    most ``BATCH``, and a quarter of the trials that are left, so that the model learns within the search. On a GPU the
    next one is asked for when half of the last one's size has come back, or, of a model that learns nothing and once
    ``LEAST_TRIED`` were tried, as soon as no more than two batches are in flight; in the ``asker``'s thread where there
    is one, so that measuring and builds go on meanwhile. The search hears of what came back then once it has proposed.
    A batch whose expected gain is below the effort's least waits for all results before it, and ends the search if that
    is so then. ``trials`` counts the candidates that were proposed, with those that are recorded from earlier. With
    ``only`` so many more are tried, in one batch, whatever the budget says. ``at_once`` bounds the batches of what is
    tried before anything is searched for.
    """

    at_once: int | None = None
    asker: ThreadPoolExecutor | None = None

    def __init__(self, tuning: TuningTask, search: Search, trials: int, only: int | None = None) -> None:
        self.tuning = tuning
        self.search = search
        self.trials = trials
        self.only = only
        self.limit = tuning.budget.trials if only is None else trials + only
        self.overlap = tuning.device.kind != "cpu"
        self.effort = tuning.budget.effort
        # What was asked for and is not known yet to be worth its time, and the gain that is expected of it.
        self.pending_proposals: list[Proposal] = []
        self.asking: Future[list[Proposal]] | None = None
        self._asked_at = 0.0
        # What the search is told of when it does not propose: results of this problem and of others.
        self._untold: list[Candidate] = []
        self._unlearnt: list[Candidate] = []
        self.expected_gain: float | None = None
        self.below_least_gain = False
        self.results = 0
        self._judged_after = -1
        # Results that are to come back before the next batch.
        self.awaited = 0
        tuning.deadline = self.deadline = time.monotonic() + tuning.budget.seconds
        self.building: dict[Future[Binary], Proposal] = {}
        self.built: deque[tuple[Proposal, Future[Binary]]] = deque()
        self._builds = BuildsReport(tuning.emit)
        self._told_rules: set[str] = set()
        self._tried: TriedCandidates | None = None
        self.exhausted = False
        self.measured = False
        self._variants = 0 if only is None else max(0, min(search.variant_count, tuning.budget.trials - self.limit))
        self._go_on_with_variants()

    @property
    def most(self) -> int:
        """How many candidates there will be at most."""
        return self.limit + self._variants

    def _go_on_with_variants(self) -> None:
        """Once all that was to be tried is known, try variants of the fastest."""
        if self._variants and self.trials == self.limit and not (self.building or self.built):
            self.only = min(self._variants, len(self.search.variants()))
            self.limit += self.only
            self._variants = 0

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline

    @spans.spanned("search")
    def run(self) -> SearchEnd:
        """Search to the end, and why it ended. Raises Cancelled."""
        with ThreadPoolExecutor(1, thread_name_prefix="tirgemm-propose") as self.asker:
            try:
                while not self.tuning.end.stopping and self._step():
                    pass
            except Cancelled:
                if not self.tuning.end.stopping:
                    raise
            finally:
                self.tuning.deadline = None
                for future in self.building:
                    future.cancel()
        self.settle()
        if self.tuning.end.stopping:
            self.tuning.workbench.abandon_builds()
            return "interrupted"
        return self.ended

    @property
    def ended(self) -> SearchEnd:
        """Why no more is proposed, once that is so."""
        if self.exhausted:
            return "exhausted"
        if self.below_least_gain:
            return "expected_gain"
        if self.only is not None and self.trials == self.limit < self.tuning.budget.trials:
            return "complete"
        return "trials" if self.trials >= self.limit else "seconds"

    def _step(self) -> bool:
        self.tuning.raise_if_cancelled()
        if self.wants_proposals():
            self.propose()
        if self.building:
            at_once = self.overlap and self.built
            self.take_finished_builds(self.tuning.workbench.ended(self.building, *((0.0,) if at_once else ())))
        if self.built and (self.overlap or not self.building):
            self.measure(self.tuning.evaluator.measurers)
        if not (self.building or self.built):
            self.wait_for_proposals()
        if self.late:
            self.drop_overdue()
        return self.active

    @property
    def active(self) -> bool:
        """Whether something is in flight or may still be proposed."""
        return bool(self.building or self.built) or self.may_propose

    @property
    def may_propose(self) -> bool:
        """Whether a batch could be asked for or taken."""
        return not (self.exhausted or self.below_least_gain or self.late) and self.trials < self.limit

    @property
    def batch(self) -> int:
        """How many candidates to propose next."""
        left = self.limit - self.trials
        if self.only:
            return min(left, self.at_once or self.only)
        if self.search.model.learns:
            return max(1, min(BATCH, left // 4))
        first = len(self.search.first())
        return min(left, self.at_once if first and self.at_once else max(BATCH, first))

    def wants_proposals(self) -> bool:
        """Whether it is time for the next batch."""
        if not self.may_propose:
            return False
        if self.asking is not None:
            return self.asking.done()
        waiting = len(self.building) + len(self.built)
        if self.pending_proposals:  # judged anew by every result that comes
            return not waiting or self._judged_after < self.results
        return not waiting or (self.overlap and (self.awaited <= 0 or self.asks_ahead) and waiting <= 2 * BATCH)

    @property
    def asks_ahead(self) -> bool:
        """Whether the next batch need not wait for results of the last one. Of several problems others fill the
        time."""
        alone = self.asker is not None and self.at_once is None
        return alone and not self.search.model.learns and self.search.tried >= LEAST_TRIED

    def propose(self) -> None:
        """Ask the search for a batch, or take the one that it was asked for, and submit its builds, if it is worth its
        time."""
        if self.asking is None and not self.pending_proposals:
            self._pause()
            if not self.measured or not self.overlap:
                self.tuning.enter(Phase.BUILDING)
            if self.asker is not None and self.overlap:
                self._asked_at = time.monotonic()
                self.asking = self.asker.submit(self._ask, self.batch, spans.traceparent())
                wait([self.asking], SOON_SECONDS)
            else:
                self.pending_proposals = self._ask(self.batch)
        if self.asking is not None:
            if not self.asking.done():
                return
            self.pending_proposals, self.asking = self.asking.result(), None
            self._tell_search()
        self._judged_after = self.results
        in_flight = bool(self.building or self.built)
        if in_flight and not self.search.model.learns and self.search.tried < LEAST_TRIED:
            return
        if self._is_below_least_gain(self.pending_proposals):
            self.below_least_gain = not in_flight
            return
        proposals, self.pending_proposals = self.pending_proposals, []
        self.awaited = (len(proposals) + 1) // 2
        self.exhausted = not proposals
        self.trials += len(proposals)
        if self.tuning.end.stopping:
            return
        with spans.span("batch", proposed=len(proposals)):
            for proposal in proposals:
                self.building[self.tuning.workbench.build(self.tuning.gemm, proposal.config)] = proposal
        self.tuning.emit(
            BatchProposed(
                proposed=len(proposals),
                trials=self.trials,
                pruned=dict(self.search.filter.pruned),
                sentences=self._new_sentences(),
                expected_gain=self.expected_gain,
                seconds_left=self.tuning.seconds_left(),
            )
        )

    def _ask(self, count: int, trace: str | None = None) -> list[Proposal]:
        """``trace`` where it is asked in another thread than the search's."""
        with spans.under(trace), spans.span("propose"):
            return self.search.ask(count)

    def wait_for_proposals(self) -> None:
        """Wait a moment for what the search is asked for; without an end where it takes long: by the silence of its
        thread a worker that hangs is known."""
        if self.asking is not None:
            is_long = time.monotonic() - self._asked_at > SILENT_AFTER_SECONDS
            wait([self.asking], None if is_long else POLL_SECONDS)

    def _tell_search(self) -> None:
        """Tell the search what it has not heard of, unless it proposes at this moment."""
        if self.asking is None:
            told, self._untold = self._untold, []
            learnt, self._unlearnt = self._unlearnt, []
            self.search.tell(told)
            self.search.learn(learnt)

    def settle(self) -> None:
        """Let the search come to rest: what it is asked for at this moment is not wanted any more."""
        if self.asking is not None:
            error = self.asking.exception()
            if error is not None and not isinstance(error, Cancelled):
                logger.warning("the search of %s could not propose: %s", self.tuning.gemm, error)
            self.asking = None
        self._tell_search()

    def learn(self, candidates: Sequence[Candidate]) -> None:
        """Let the search learn from results of other problems."""
        self._unlearnt += candidates
        self._tell_search()

    def _new_sentences(self) -> dict[str, str]:
        """What each rule said of the first config that it rejected, once."""
        examples = self.search.filter.examples
        new = {rule: configs[0][1] for rule, configs in examples.items() if rule not in self._told_rules}
        self._told_rules |= new.keys()
        return new

    def _is_below_least_gain(self, proposals: list[Proposal]) -> bool:
        """Whether less is expected of a batch than the effort is for."""
        if self.only is not None or not proposals:
            return False
        self.expected_gain = self.search.expected_gain(proposals)
        return self.expected_gain is not None and self.expected_gain < self.effort.least_gain

    def _pause(self) -> None:
        """Do what the caller does between batches, on nobody's budget: the search's clock stands still."""
        began = time.monotonic()
        self.tuning.between_batches()
        self.deadline += time.monotonic() - began
        self.tuning.deadline = self.deadline
        self.tuning.raise_if_cancelled()

    def take_finished_builds(self, done: Collection[Future[Binary]]) -> None:
        """Take over the builds that have ended."""
        for future in [f for f in self.building if f in done]:  # in the order of the proposals
            self.built.append((self.building.pop(future), future))
        self._tell_builds()

    def measure(self, measurers: Sequence[Measurer]) -> list[Candidate]:
        """Verify and time the oldest finished builds side by side, one in each measuring process; record what became of
        each and tell the search."""
        finished = [self.built.popleft() for _ in range(min(len(measurers), len(self.built)))]
        self._tell_builds()
        self.tuning.enter(Phase.MEASURING)
        self.measured = True
        candidates = self.tuning.evaluator.candidates(finished, measurers[: len(finished)])
        self._untold += candidates
        self._tell_search()
        self.awaited -= len(candidates)
        self.results += len(candidates)
        if self._tried is None:
            self._tried = self.tuning.tried()
        else:
            self._tried.take_in(candidates)
        self._go_on_with_variants()
        for candidate in candidates:
            self._tell(candidate, self._tried.standing())
        return candidates

    def _tell_builds(self) -> None:
        building = sum(future.running() for future in self.building)
        self._builds.tell(len(self.building) - building, building, len(self.built))

    def _tell(self, candidate: Candidate, standing: Standing) -> None:
        conditions = candidate.sample_sets[0].conditions if candidate.sample_sets else {}
        self.tuning.emit(
            CandidateRecorded(
                config=str(candidate.config),
                digest=candidate.config.digest,
                status=candidate.status,
                us=candidate.search_us,
                message=candidate.message,
                trials=self.trials,
                of=self.most,
                predicted_us=candidate.predicted_us,
                clock_mhz=conditions.get("clock_mhz"),
                power_w=conditions.get("power_w"),
                throttled=tuple(conditions.get("throttled", ())),
                seconds_left=self.tuning.seconds_left(),
                standing=standing,
            )
        )

    def drop_overdue(self) -> None:
        """Take back what has not begun when the time is over."""
        for future in list(self.building):
            if future.cancel():
                del self.building[future]
                self.trials -= 1
        self.trials -= len(self.built)
        self.built.clear()
        self._tell_builds()
