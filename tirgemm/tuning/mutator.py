"""A MetaSchedule mutator that changes one knob of a trace."""

from __future__ import annotations

import random
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.mutator import PyMutator
from tvm.s_tir.schedule import Trace


@derived_object
class MutateKnob(PyMutator):  # type: ignore[misc]
    """Changes the decision of one sampled knob: half of the time to a neighbouring choice, else to any other.

    Choices are ordered, so a neighbour is usually the smallest step; knobs with one choice are left alone.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.seed = seed

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, trace: Trace, _: Any) -> Trace | None:
        """The mutated trace, or None where no knob has a second choice."""
        # The map of decisions has no order that a seed fixes; the instructions have.
        decisions = trace.decisions
        knobs = [i for i in trace.insts if i.kind.name == "SampleCategorical" and len(i.attrs[0]) > 1]
        if not knobs:
            return None
        instruction = self.random.choice(knobs)
        now, count = int(decisions[instruction]), len(instruction.attrs[0])
        return trace.with_decision(instruction, self._other(now, count), remove_postproc=True)

    def clone(self) -> Any:
        return MutateKnob(self.seed)

    def _other(self, now: int, count: int) -> int:
        if self.random.random() < 0.5:
            step = self.random.choice((-1, 1))
            return now + step if 0 <= now + step < count else now - step
        chosen = self.random.randrange(count - 1)
        return chosen if chosen < now else chosen + 1
