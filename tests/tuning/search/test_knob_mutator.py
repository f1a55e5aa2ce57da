"""The mutator: one knob at a time, every choice within reach."""

from __future__ import annotations

from typing import Any

from tirgemm.config import Knob, Space
from tirgemm.gemm import Gemm
from tirgemm.tuning.search.metaschedule_hooks import MutateKnob
from tirgemm.tuning.search.space_trace import Point, annotated_point, annotation_names, point_trace, search_module

GEMM = Gemm(33, 17, 5)
SPACE = Space("toy", (Knob("one", (1,)), Knob("pair", (False, True)), Knob("five", (5, 6, 7, 8, 9))))


def mutated(point: Point, times: int, seed: int = 0) -> list[Point]:
    from tvm.s_tir import Schedule

    mutator: Any = MutateKnob(seed)
    trace = point_trace(SPACE, point)
    actual: list[Any] = []
    for _ in range(times):
        schedule = Schedule(search_module(GEMM), seed=1)
        mutator.apply(trace).apply_to_schedule(schedule, remove_postproc=True)
        actual.append(annotated_point(schedule, annotation_names([SPACE])))
    return actual


def test_exactly_one_knob_changes_and_every_other_choice_is_reached() -> None:
    start = Point("toy", (0, 1, 2))
    actual = mutated(start, 100)
    assert set(actual) == {Point("toy", (0, 0, 2)), *(Point("toy", (0, 1, i)) for i in (0, 1, 3, 4))}


def test_the_ends_of_a_knob_mutate_inwards() -> None:
    assert {p.indices[2] for p in mutated(Point("toy", (0, 0, 4)), 60)} == {0, 1, 2, 3, 4}


def test_a_seed_fixes_the_mutations() -> None:
    start = Point("toy", (0, 0, 0))
    assert mutated(start, 20, seed=3) == mutated(start, 20, seed=3)


def test_a_space_of_one_point_has_no_mutation() -> None:
    space = Space("toy", (Knob("one", (1,)),))
    mutator: Any = MutateKnob(0)
    assert mutator.apply(point_trace(space, Point("toy", (0,)))) is None
