"""Times of candidates that were measured under different clocks."""

from __future__ import annotations

import pytest

from tests.helpers.toy_family import DEVICE
from tirgemm.config import Config
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import YARDSTICK, Candidate, SampleSet, Status
from tirgemm.tuning.records.comparable_times import comparable_times, fastest, reference_us

GEMM = Gemm.parse("127x129x1021:f16:nt")
A, B, C = (Config("toy", (("block_m", m), ("layout", "plain"))) for m in (16, 32, 64))


def candidate(config: Config, *runs: tuple[float, float | None, int], status: Status = Status.MEASURED) -> Candidate:
    """Of each run our microseconds, the reference's, and when it was."""
    sets = tuple(
        SampleSet((us,), baselines={"torch.matmul": (beside,)} if beside else {}, conditions={"at": at})
        for us, beside, at in runs
    )
    return Candidate(GEMM, DEVICE.key, "sustained", config, status, sample_sets=sets)


# The clocks have fallen between the two runs: everything takes half as long again, and C is the fastest of all.
RECORDED = [
    candidate(A, (12.0, 10.0, 1), (18.0, 15.0, 2)),
    candidate(B, (11.0, 10.0, 1)),
    candidate(C, (15.75, 15.0, 2)),
]


def test_times_of_runs_under_other_clocks_are_comparable() -> None:
    assert reference_us(RECORDED) == 12.5, "each run counts once"
    assert comparable_times(RECORDED) == {A: pytest.approx(15.0), B: pytest.approx(13.75), C: pytest.approx(13.125)}
    assert fastest(RECORDED, 2) == [C, B]


def test_without_a_reference_times_are_as_they_were_measured() -> None:
    assert comparable_times([candidate(A, (2.0, None, 1))]) == {A: 2.0}
    assert reference_us([candidate(A, (2.0, None, 1))]) is None


def test_a_reference_that_was_disturbed_scales_nothing() -> None:
    assert comparable_times([*RECORDED, candidate(B, (11.0, 40.0, 3))])[B] == 11.0


def test_a_config_that_failed_is_never_the_fastest_and_one_that_was_pruned_was_not_tried() -> None:
    failed = candidate(C, (1.0, 10.0, 1), status=Status.WRONG)
    assert comparable_times([failed, candidate(B, status=Status.PRUNED)]) == {C: None}
    assert fastest([*RECORDED[:2], failed]) == [B]


def test_samples_of_a_selection_are_no_times_of_the_search() -> None:
    selected = candidate(A, (12.0, 10.0, 1))
    selected = selected.with_(sample_sets=(*selected.sample_sets, SampleSet((1.0,), "selection")))
    assert comparable_times([selected]) == {A: 12.0}


def test_a_yardstick_beside_a_searchs_samples_takes_the_clock_out() -> None:
    """The yardstick C took 20 us at first, alone; then 25 beside A, whose clock was lower, and 27 beside B."""
    marks = {"yardstick": C.digest, "yardstick_us": 20.0}
    beside_a = SampleSet((30.0,), baselines={YARDSTICK: (25.0,)}, conditions=marks)
    beside_b = SampleSet((36.45,), baselines={YARDSTICK: (27.0,)}, conditions=marks)
    a, b = (candidate(config).with_(sample_sets=(taken,)) for config, taken in ((A, beside_a), (B, beside_b)))
    first = candidate(C, (20.0, None, 1))
    assert [one.search_us for one in (a, b, first)] == pytest.approx([24.0, 27.0, 20.0])
    assert comparable_times([a, b, first]) == pytest.approx({A: 31.2, B: 35.1, C: 26.0}), "as long as beside others"
    assert fastest([b, a, first], 3) == [C, A, B]
    assert comparable_times([first]) == {C: 20.0}


def test_a_candidate_that_was_timed_alone_is_compared_with_a_yardsticks_recorded_time() -> None:
    """B was timed before there were yardsticks, a tenth slower than C; A beside C, when the clock was lower."""
    marks = {"yardstick": C.digest, "yardstick_us": 20.0}
    beside = SampleSet((30.0,), baselines={YARDSTICK: (25.0,)}, conditions=marks)
    a = candidate(A).with_(sample_sets=(beside,))
    times = comparable_times([a, candidate(B, (22.0, None, 1)), candidate(C, (20.0, None, 1))])
    assert times == pytest.approx({A: 24.0, B: 22.0, C: 20.0})


def test_runs_with_other_recorded_times_of_a_yardstick_are_comparable() -> None:
    """On two hosts C was recorded with 20 and 22 us, and took 25 beside A and B alike."""
    sets = [
        SampleSet((us,), baselines={YARDSTICK: (25.0,)}, conditions={"yardstick": C.digest, "yardstick_us": recorded})
        for us, recorded in ((30.0, 20.0), (27.5, 22.0))
    ]
    a, b = (candidate(config).with_(sample_sets=(taken,)) for config, taken in zip((A, B), sets, strict=True))
    assert comparable_times([a, b, candidate(C, (22.0, None, 1))]) == pytest.approx({A: 30.0, B: 27.5, C: 25.0})
