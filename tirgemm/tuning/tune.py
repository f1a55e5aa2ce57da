"""``Tuning``: from a problem to a tuned, verified, signed kernel, in stages that a worker can drive.

default -> search -> selection -> certificate -> artifact. Every record is committed before the next candidate runs,
so that a kill costs at most the one in flight and the next start goes on from the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from tirgemm.config import Config
from tirgemm.errors import UNUSABLE, Cancelled, Interrupted, RevokedKernel, StoreError, TirgemmError
from tirgemm.events import Done, FallbackStored, Phase, SearchStarted, WasCancelled
from tirgemm.families import Family
from tirgemm.families.choice import next_best, opening, ranked_defaults
from tirgemm.gemm import REGIMES
from tirgemm.timings import ConfigOrigin, SearchEnd, SearchSummary, Timings
from tirgemm.tuning.budget import Budget, covers, is_within_default, shipped_effort
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.finish import FULL, QUICK, Finalist, FinishPlan, Selection, finish
from tirgemm.tuning.records import Candidate, KernelRecord, Status
from tirgemm.tuning.records.offer import Offer
from tirgemm.tuning.search.search import Search, SearchOptions
from tirgemm.tuning.search_loop import SearchLoop
from tirgemm.tuning.shipped_kernel import PLAN, offered_configs, shipped_kernel
from tirgemm.tuning.tuning_task import TuningTask, chosen_families

# So many configs, and as many again, may stand in the place of a default that is revoked.
NEXT_BEST = 8


class Tuning(TuningTask):
    """One tuning of one problem, in stages that a worker can drive and interrupt."""

    # The kernel of shipped records, where this tuning has built it.
    _shipped: KernelRecord | None = None

    # -- stages --------------------------------------------------------------------------------

    def default(self) -> tuple[Family, Config]:
        """The best-predicted default over the supporting families."""
        return ranked_defaults(self.families, self.gemm, self.device, self.regime)[0]

    def fallback(self) -> KernelRecord:
        """The default, built, certified, timed and stored: the answer until the search has a better one.

        A stored answer does, too, if its artifact can be loaded, but for a default recorded as failed since. Where the
        best-predicted default does not build or is wrong, the other families' defaults are tried in turn. In their
        place stands the best of shipped records of this device class, driver and TVM: a ``tuned`` kernel.
        """
        known = self.loadable()
        if known is not None and self.is_ours(known.config):
            candidate = self.store.candidate(self.evaluator.key(known.config))
            if known.role == "tuned" or candidate is None or candidate.status is Status.MEASURED:
                return known
        self.require_present()
        self.workbench.warm()
        self._shipped = self._shipped_kernel()
        if self._shipped is not None:
            return self._shipped
        self.enter(Phase.DEFAULT)

        def certified(_family: Family, config: Config) -> KernelRecord:
            with self.workbench.waits_told(self.tell_wait):
                return self.evaluator.certified_default(config, last=self.effort is Effort.NONE)

        record, config = self._first_that_works(certified)
        self.emit(FallbackStored(kernel=record.id, role=record.role, config=str(config), timings=record.timings))
        return record

    def _first_that_works(self, made: Callable[[Family, Config], KernelRecord]) -> tuple[KernelRecord, Config]:
        """The kernel that ``made`` makes of the best-predicted default, or of another family's in turn where it raises;
        where that is revoked, of the next best config. Raises what the first raised where all do, Cancelled, and at
        once what says nothing of a default: StoreError, DeviceUnavailable and BuildersUnusable."""
        families = {family.name: family for family in self.families}
        choices = [config for _, config in ranked_defaults(self.families, self.gemm, self.device, self.regime)]
        failures: dict[Config, TirgemmError] = {}
        while choices:
            config = choices.pop(0)
            self.raise_if_cancelled()
            try:
                return made(families[config.family], config), config
            except (Cancelled, StoreError, *UNUSABLE):
                raise
            except TirgemmError as error:
                if isinstance(error, RevokedKernel) and not failures:
                    choices = next_best(self.families, self.gemm, self.device, self.regime, NEXT_BEST)
                failures[config] = error
        first = next(iter(failures.values()))
        words = "; ".join(f"{config}: {error}" for config, error in failures.items())
        raise type(first)(f"no default of {self.gemm} on {self.device.name} works: {words}") from first

    def run(self) -> KernelRecord:
        """All stages. Returns the selected, certified kernel, stored as the answer.

        Raises Cancelled; Interrupted where ``stop`` was set before there was a certified kernel.
        """
        self.require_present()
        self.emit(
            SearchStarted(
                gemm=str(self.gemm),
                device=self.device.key,
                regime=self.regime,
                families=tuple(f.name for f in self.families),
                space={f.name: f.space(self.gemm, self.device).size for f in self.families},
                budget=self.budget.to_json(),
                effort=self.effort,
                recorded=len(self.recorded()),
                standing=self.standing(),
            )
        )
        try:
            self.build_ahead()
            known = self.fallback()
            with self.workbench.waits_told(self.tell_wait):
                done = self.effort is Effort.NONE or (known is self._shipped and covers(known, self.budget))
                record = known if done else self.improved(known)
        except Cancelled as error:
            self.emit(WasCancelled())
            if self.end.stopping:
                raise Interrupted(f"tuning of {self.gemm} was stopped before its first kernel was certified") from error
            raise
        finally:
            self.workbench.forget_ahead(self.gemm)
        self.emit(Done(kernel=record.id, config=str(record.config), timings=record.timings))
        return record

    def cross_compile(self) -> KernelRecord:
        """The default for a device that is not here: built, packaged, marked unverified, never timed. As of the
        fallback, another family's where the best-predicted one does not build."""

        def unverified(family: Family, config: Config) -> KernelRecord:
            binary = self.evaluator.built(self.workbench.build(self.gemm, config))
            timings = Timings(predicted_us=family.predict_us(self.gemm, config, self.device, self.regime))
            return self.evaluator.store_kernel(config, binary, "unverified", None, timings)

        record, config = self._first_that_works(unverified)
        self.emit(Done(kernel=record.id, config=str(config), timings=record.timings))
        return record

    def improved(self, known: KernelRecord) -> KernelRecord:
        """What a search selects, or where the usual budget is asked for a race of the default and what was shipped."""
        self._build_ahead_again(known)
        only_offered = known.role != "tuned" and self._offer_suffices
        summary = self.try_offered() if only_offered else self.search()
        self.raise_if_cancelled()
        self.end.finishing = True
        return known if self._is_best(known) else finish(self, summary, PLAN if only_offered else self.plan)

    @property
    def effort(self) -> Effort:
        return self.budget.effort

    @property
    def plan(self) -> FinishPlan:
        """How long the last stages behind the search may take."""
        return FULL if self.effort.searches else QUICK

    def default_ahead(self) -> list[Config]:
        """The default, where it may be built ahead of the fallback that it is."""
        shipped = self.offer is not None and self.offer.answers
        return [] if self.device.kind == "cpu" or shipped or self.stored() is not None else [self.default()[1]]

    def openings(self) -> list[Config]:
        """What the search will begin with and may be built ahead of it."""
        # Nothing where building waits for what is measured meanwhile, or where shipped records are tried first.
        if self.effort is Effort.NONE or self.device.kind == "cpu" or self.offer is not None:
            return []
        known = {candidate.config for candidate in self.recorded()}
        first = opening(self.families, self.gemm, self.device, self.regime, self.effort.first)
        return [config for config in first if config not in known]

    def build_ahead(self) -> None:
        """Begin to build the openings."""
        for config in self.openings():
            self.workbench.build_ahead(self.gemm, config)

    def _build_ahead_again(self, known: KernelRecord) -> None:
        """Begin to build the answer so far, which the last stages race with what is found, if an earlier tuning built
        it."""
        if self.device.kind != "cpu" and self.evaluator.build_of(known.config) is None:
            self.workbench.build_ahead(self.gemm, known.config)

    def selected(self, budget: Budget) -> Finalist:
        """What a search of this budget chooses, from now on this tuning's, packaged, with neither certificate nor
        figures of its own. Raises VerificationFailed where nothing runs, and Cancelled."""
        self.require_present()
        self.budget = budget
        self.search()
        self.raise_if_cancelled()
        return Selection(self, self.plan).choose()[0]

    def try_offered(self) -> SearchSummary:
        """Build, verify, measure and record what was shipped for another device, driver or TVM. Returns what was tried,
        by count."""
        assert self.offer is not None
        if self.end.stopping:
            return self._summary("interrupted", {})
        self.enter(Phase.STARTING, "with the shipped configs")
        loop = self.loop_over(self.offered)
        ended = loop.run()
        summary = self.searched(loop, "shipped" if ended in ("trials", "complete") else ended)
        return replace(summary, shipped=self._origin(self.offer))

    def search(self) -> SearchSummary:
        """Propose, build, verify, measure and record until the budget is spent. Returns what was tried, by count."""
        if self.end.stopping:
            return self._summary("interrupted", {})
        self.enter(Phase.STARTING, "the search")
        loop = self.search_loop()
        return self.searched(loop, loop.run())

    def search_loop(self) -> SearchLoop:
        """The loop of the search, going on from the records."""
        recorded = self.recorded()
        search = Search(
            self.gemm,
            self.device,
            self.regime,
            self.families,
            SearchOptions(self.offered, self.effort.first, self.effort.variants, given_up=lambda: self.end.requested),
            seed=self.seed,
            recorded=recorded,
            history=self.store.history(self.device.key, self.regime, near=self.gemm),
        )
        spent = self._spent(recorded)
        if self.effort.searches:
            return SearchLoop(self, search, spent)
        wanted = 0 if self.effort is Effort.NONE else len(search.first())
        first = opening(self.families, self.gemm, self.device, self.regime, self.effort.first)
        listed = not search.model.learns and len(first) >= self.effort.first
        if self.effort is Effort.QUICK and not listed:  # nobody has a list of what is best
            wanted = max(wanted, self.effort.first + 1 - spent)
        return SearchLoop(self, search, spent, only=max(0, min(wanted, self.budget.trials - spent)))

    def loop_over(self, configs: Sequence[Config]) -> SearchLoop:
        """The loop that tries ``configs`` and the defaults of their families, as far as they are not recorded yet, in
        one batch."""
        recorded = self.recorded()
        names = {config.family for config in configs}
        search = Search(
            self.gemm,
            self.device,
            self.regime,
            [family for family in self.families if family.name in names],
            SearchOptions(configs, first=0, given_up=lambda: self.end.requested),
            seed=self.seed,
            recorded=recorded,
        )
        return SearchLoop(self, search, self._spent(recorded), only=len(search.first()))

    def searched(self, loop: SearchLoop, ended: SearchEnd) -> SearchSummary:
        """What was tried, by count, once ``loop`` has ended."""
        self._record_pruned(loop.search)
        return self._summary(ended, dict(loop.search.filter.pruned), loop.expected_gain)

    # -- parts of the stages ------------------------------------------------------------------

    @cached_property
    def offer(self) -> Offer | None:
        """What was shipped of this problem."""
        return self.store.offer(self.gemm, self.device, self.regime, other_devices=self.other_devices)

    @cached_property
    def offered(self) -> list[Config]:
        """What was shipped of it for another device, driver or TVM: to be tried first, and believed by what it does
        here."""
        return [] if self.offer is None or self.offer.same else offered_configs(self, self.offer)

    @property
    def _offer_suffices(self) -> bool:
        """Whether what was shipped for another device, driver or TVM is all that the budget tries."""
        if self.offer is None or not self.offered or not is_within_default(self.budget):
            return False
        return self.effort.level <= shipped_effort(self._shipped_configs).level

    @cached_property
    def _shipped_configs(self) -> int:
        """How many configs of the problem were shipped, in the regime that has more of them: a search in one leaves its
        finalists in the other."""
        offers = (self.store.offer(self.gemm, self.device, r, other_devices=self.other_devices) for r in REGIMES)
        return max(len(offer.candidates) if offer is not None else 0 for offer in offers)

    def _origin(self, offer: Offer) -> ConfigOrigin:
        return replace(offer.origin, configs=self._shipped_configs)

    def _shipped_kernel(self) -> KernelRecord | None:
        """The best of what was shipped for this device class, driver and TVM, where that has one."""
        if self.offer is None or not self.offer.answers:
            return None
        self.enter(Phase.STARTING, "with the shipped config")
        environment = dict(self.device.environment)
        origin = replace(self._origin(self.offer), environment=environment, same=True)
        summary = replace(self._summary("shipped", {}), shipped=origin)
        with self.workbench.waits_told(self.tell_wait):
            return shipped_kernel(self, self.offer, self.default()[1], summary)

    def _spent(self, recorded: list[Candidate]) -> int:
        """How many of the recorded candidates count for the budget."""
        return len([c for c in recorded if c.status is not Status.PRUNED and self.is_ours(c.config)])

    def _summary(self, ended: SearchEnd, pruned: dict[str, int], expected_gain: float | None = None) -> SearchSummary:
        """What the search spent and found, as a kernel's timings have it."""
        statuses = Counter(candidate.status.value for candidate in self.recorded())
        trials = self.standing().tried
        restricted = len(self.families) < len(chosen_families(self.gemm, self.device, None))
        return SearchSummary(
            trials=trials,
            pruned=pruned,
            statuses=dict(statuses),
            ended=ended,
            seconds=self.budget.seconds,
            effort=self.effort.value,
            asked=None if self.budget.asked in (None, self.effort) else str(self.budget.asked),
            expected_gain=expected_gain,
            families=tuple(family.name for family in self.families) if restricted else None,
        )

    def _is_best(self, known: KernelRecord) -> bool:
        """Whether a search that was stopped has nothing better to choose than the kernel that was there before it."""
        now = self.standing()
        chosen = now.best == str(known.config) and (known.role == "tuned" or now.measured == 1)
        return self.end.stopping and (chosen or now.best is None)

    def _record_pruned(self, search: Search) -> None:
        """Keep a few examples of what each rule rejected, so that a person can see why."""
        for rule, examples in search.filter.examples.items():
            for config, reason in examples[:3]:
                candidate = Candidate(
                    self.gemm, self.device.key, self.regime, config, Status.PRUNED, message=reason, rule=rule
                )
                if self.store.candidate(candidate.key) is None:
                    self.store.add_candidate(candidate)
