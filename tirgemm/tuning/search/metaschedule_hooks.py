"""MetaSchedule callbacks: a mutator, a postprocessor and a cost model over the search's own parts.

Imports TVM at once, so the search imports this module late. ``derived_object`` drops class attributes: state is kept
on the instances.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tirgemm._extras import needed_by
from tirgemm.tuning.search.cost_model import Scores
from tirgemm.tuning.search.proposal_filter import ProposalFilter
from tirgemm.tuning.search.space_trace import DIGEST_AT, Point, annotated_point

with needed_by("tirgemm.tuning.search.metaschedule_hooks"):
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.cost_model import PyCostModel
    from tvm.s_tir.meta_schedule.mutator import PyMutator
    from tvm.s_tir.meta_schedule.postproc import PyPostproc
    from tvm.s_tir.schedule import Schedule, Trace


@derived_object
class MutateKnob(PyMutator):  # type: ignore[misc]  # TVM has no types
    """Changes the decision of one sampled knob: half of the time to a neighbouring choice, else to any other.

    Choices are ordered, so a neighbour is usually the smallest step; knobs with one choice are left alone.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.seed = seed
        self.knobs: dict[str, list[tuple[int, int]]] = {}

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, trace: Trace, _: Any) -> Trace | None:
        """The mutated trace, or None where no knob has a second choice."""
        instructions = trace.insts
        knobs = self._knobs(instructions)
        if not knobs:
            return None
        position, count = self.random.choice(knobs)
        instruction = instructions[position]
        now = int(trace.decisions[instruction])
        return trace.with_decision(instruction, self._other(now, count), remove_postproc=True)

    def clone(self) -> Any:
        return MutateKnob(self.seed)

    def _knobs(self, instructions: Any) -> list[tuple[int, int]]:
        """Where a trace samples a knob of several choices, and how many: the same in every trace of a space.

        The map of decisions has no order that a seed fixes; the instructions have.
        """
        space = str(instructions[DIGEST_AT].inputs[1])
        if space not in self.knobs:
            sampled = [
                (position, len(instruction.attrs[0]))
                for position, instruction in enumerate(instructions)
                if instruction.kind.name == "SampleCategorical"
            ]
            self.knobs[space] = [(position, count) for position, count in sampled if count > 1]
        return self.knobs[space]

    def _other(self, now: int, count: int) -> int:
        if self.random.random() < 0.5:
            step = self.random.choice((-1, 1))
            return now + step if 0 <= now + step < count else now - step
        chosen = self.random.randrange(count - 1)
        return chosen if chosen < now else chosen + 1


@derived_object
class ApplyRules(PyPostproc):  # type: ignore[misc]  # TVM has no types
    """Rejects every schedule whose annotations name a point that the filter does not admit."""

    def __init__(self, proposal_filter: ProposalFilter) -> None:
        super().__init__()
        self.filter = proposal_filter

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, sch: Schedule) -> bool:
        return self.filter.admits(annotated_point(sch, self.filter.annotation_names))

    def clone(self) -> Any:
        return ApplyRules(self.filter)


@derived_object
class Scored(PyCostModel):  # type: ignore[misc]  # TVM has no types
    """A cost model that only scores: it learns from reported candidates, not through MetaSchedule."""

    def __init__(self, proposal_filter: ProposalFilter, scorer: Callable[[Sequence[Point]], Scores]) -> None:
        super().__init__()
        self.filter = proposal_filter
        self.scorer = scorer

    def predict(self, context: Any, candidates: Any) -> Any:  # noqa: ARG002 - TVM calls it so
        """Speeds relative to the best: the weights by which evolution draws parents."""
        points = [annotated_point(candidate.sch, self.filter.annotation_names) for candidate in candidates]
        return np.exp(self.scorer([point for point in points if point is not None]))

    def update(self, context: Any, candidates: Any, results: Any) -> None:
        pass

    def load(self, path: str) -> None:
        pass

    def save(self, path: str) -> None:
        pass
