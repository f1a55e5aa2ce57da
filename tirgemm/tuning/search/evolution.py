"""One round of MetaSchedule's evolutionary search, driven directly: population, evolution, picks.

A round is a fresh strategy with its own seed, so that what it proposes depends on the seed, the records and the model
alone, and not on how the records came about. Everything runs on one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tirgemm.errors import Cancelled
from tirgemm.gemm import Gemm
from tirgemm.tuning.search.cost_model import Scores
from tirgemm.tuning.search.proposal_filter import ProposalFilter
from tirgemm.tuning.search.space_trace import (
    Point,
    annotated_point,
    point_trace,
    sample_knobs,
    search_module,
)

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule import SpaceGenerator, TuneContext
    from tvm.s_tir.meta_schedule.database import Database, TuningRecord

POPULATION = 384
MEASURED_SHARE = 0.125
GENERATIONS = 4
# Fewer random samples than this that pass the filter make no population: the space is nearly exhausted or nearly all
# of it is rejected.
LEAST_UNMEASURED = 8
_log = logging.getLogger(__name__)

Scorer = Callable[[Sequence[Point]], Scores]


class Evolution:
    """Rounds of evolutionary search over the spaces of ``proposal_filter``, seeded from the best that were recorded."""

    def __init__(self, gemm: Gemm, proposal_filter: ProposalFilter) -> None:
        from tvm.s_tir.meta_schedule.database import MemoryDatabase

        self.filter = proposal_filter
        self.gemm = gemm
        self.module = search_module(gemm)
        self.database: Database = MemoryDatabase()
        self._workload = self.database.commit_workload(self.module)
        self._recorded: set[Point] = set()

    def record(self, point: Point, us: float) -> None:
        """Commit a measured point to the database, once, for later rounds to start from."""
        from tvm.s_tir.meta_schedule.database import TuningRecord

        if point in self._recorded:
            return
        self._recorded.add(point)
        trace = point_trace(self.filter.spaces[point.family], point)
        self.database.commit_tuning_record(TuningRecord(trace, self._workload, [us * 1e-6], None, None))

    def round(self, count: int, explore: int, scorer: Scorer, seed: int) -> list[Point]:
        """At most ``count`` unknown points, best-scored first, the last ``explore`` of them picked at random.

        Fewer, down to none, where the space is nearly exhausted. Raises Cancelled once the search is given up.
        """
        from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch

        from tirgemm.tuning.search.metaschedule_hooks import Scored

        seeds = self._seeds()
        self.filter.readmit_once(seeds)
        # The seeds may be picked again, for the strategy does not know that they are measured: ask for as many more.
        wanted = count + len(seeds)
        strategy = EvolutionarySearch(
            population_size=POPULATION,
            init_measured_ratio=MEASURED_SHARE,
            init_min_unmeasured=LEAST_UNMEASURED,
            max_fail_count=2,
            genetic_num_iters=GENERATIONS,
            genetic_mutate_prob=0.85,
            genetic_max_fail_count=10,
            eps_greedy=min(1.0, (explore + 0.5) / wanted),
        )
        context = _context(self.module, self._generator(seed), strategy, seed)
        context.pre_tuning(
            1_000_000, wanted, context.generate_design_space(), self.database, Scored(self.filter, scorer)
        )
        try:
            candidates = context.generate_measure_candidates() or []
        except RuntimeError as error:  # as which TVM passes on what its callbacks raise
            if self.filter.given_up():
                raise Cancelled(f"the search for {self.gemm} was given up") from error
            raise
        finally:
            context.post_tuning()
            self.filter.readmit_once(())
        return self._picks([candidate.sch for candidate in candidates], wanted - explore, count, explore)

    def _seeds(self) -> list[Point]:
        records: Sequence[TuningRecord] = self.database.get_top_k(self._workload, int(POPULATION * MEASURED_SHARE))
        return [point for point in map(self._recorded_point, records) if point is not None]

    def _recorded_point(self, record: TuningRecord) -> Point | None:
        from tvm.s_tir import Schedule

        schedule = Schedule(self.module, seed=1)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        return annotated_point(schedule, self.filter.annotation_names)

    def _generator(self, seed: int) -> SpaceGenerator:
        """The union of the families' spaces, each a schedule function with a trace of its own."""
        from tvm.s_tir.meta_schedule.space_generator import ScheduleFn, SpaceGeneratorUnion

        from tirgemm.tuning.search.metaschedule_hooks import ApplyRules, MutateKnob

        spaces = [
            ScheduleFn(lambda schedule, space=space: sample_knobs(schedule, space), [], [], {})
            for space in self.filter.spaces.values()
        ]
        return SpaceGeneratorUnion(spaces, [], [ApplyRules(self.filter)], {MutateKnob(seed): 1.0})

    def _picks(self, schedules: Sequence[Schedule], best: int, count: int, explore: int) -> list[Point]:
        """The unknown among what the strategy picked: its best first, then the random ones."""
        ranked: list[Point] = []
        random: list[Point] = []
        taken: set[Point] = set()
        for position, schedule in enumerate(schedules):
            point = annotated_point(schedule, self.filter.annotation_names)
            if point is None or point in self.filter.seen_points or point in taken:
                continue
            taken.add(point)
            (ranked if position < best else random).append(point)
        chosen = ranked[: count - min(explore, len(random))]
        return chosen + random[: count - len(chosen)]


def _context(module: Any, generator: SpaceGenerator, strategy: Any, seed: int) -> TuneContext:
    """A TuneContext without the constructor of its Python class.

    That imports tvm.s_tir.tensor_intrin, which takes 11 seconds to register intrinsics that no trace of ours uses.
    """
    from tvm.s_tir.meta_schedule import TuneContext, _ffi_api

    def log(level: int, file: str, line: int, message: str) -> None:  # noqa: ARG001
        _log.debug("%s", message)

    context = TuneContext.__new__(TuneContext)
    context.__init_handle_by_constructor__(
        _ffi_api.TuneContext, module, None, generator, strategy, "tirgemm", 1, seed, log
    )
    _ffi_api.TuneContextInitialize(context)
    return context
