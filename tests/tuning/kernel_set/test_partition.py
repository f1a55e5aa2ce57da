"""Which sizes of m are searched, and how a range of m is cut by what was measured at them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tirgemm import Config
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Range
from tirgemm.tuning.kernel_set.partition import UNKNOWN, Loss, Segment, borders, midpoints, partition
from tirgemm.tuning.kernel_set.sizes import coarse_first, compared_sizes, cut_sizes, searched_sizes

SMALL, MIDDLE, LARGE = (Config("made_up", (("tile", tile),)) for tile in (1, 8, 64))


def losses(*sizes: Mapping[Config, float]) -> list[dict[Config, Loss]]:
    return [{config: Loss(ratio, ratio) for config, ratio in here.items()} for here in sizes]


def cut(measured: Sequence[Mapping[Config, Loss]], most: int = 8, **options: Any) -> list[tuple[int, int, Config]]:
    segments = partition(measured, (SMALL, MIDDLE, LARGE), tolerance=0.03, most=most, **options)
    return [(segment.first, segment.last, segment.config) for segment in segments]


@pytest.mark.parametrize(
    ("m", "sizes"),
    [
        (Range(1, 64), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)),
        (Range(5, 23), (5, 6, 8, 12, 16, 23)),
        (Range(1, 2), (1, 2)),
        (Range(97, 120), (97, 120)),
        (Range(1, 3), (1, 2, 3)),
    ],
)
def test_the_sizes_are_both_ends_and_what_is_even_on_a_log_scale(m: Range, sizes: tuple[int, ...]) -> None:
    assert searched_sizes(m) == sizes


def test_sizes_half_way_are_compared_too_where_tiles_are_many() -> None:
    assert compared_sizes(Range(1, 8)) == searched_sizes(Range(1, 8))
    more = set(compared_sizes(Range(1, 300))) - set(searched_sizes(Range(1, 300)))
    assert more == {80, 112, 160, 224}


def test_a_range_is_cut_at_more_sizes_than_are_compared_where_tiles_are_many() -> None:
    assert cut_sizes(Range(1, 64)) == compared_sizes(Range(1, 64))
    for m in (Range(1, 8192), Range(100, 5000), Range(1, 1 << 20)):
        sizes = cut_sizes(m)
        assert (sizes[0], sizes[-1]) == (m.low, m.high)
        assert {*sizes} > {*compared_sizes(m)}
        from_64 = [pair for pair in pairwise(sizes) if pair[0] >= 64]
        assert all((high - low) * 4 <= low for low, high in from_64)
        assert all((high - low) * 16 <= low for low, high in from_64 if low >= 256)
    assert len(cut_sizes(Range(1, 8192))) == 136
    assert len(cut_sizes(Range(1, 1 << 20))) == 136 + 7 * 32, "as many more for each octave"


def test_half_way_between_two_sizes_is_looked_at_where_they_are_far_apart() -> None:
    segments = [Segment(0, 0, SMALL, 1.0), Segment(1, 1, MIDDLE, 1.0), Segment(2, 3, LARGE, 1.0)]
    assert midpoints((7, 8, 48, 64), segments) == {28: (MIDDLE, LARGE)}
    assert midpoints((112, 128, 144, 192), segments) == {120: (SMALL, MIDDLE)}
    asked: list[int] = []

    def times(middle: int) -> dict[Config, float]:
        asked.append(middle)
        return {SMALL: 1.0, MIDDLE: 1.0}

    ranges = borders(Range(100, 192), (112, 128, 144, 192), segments, times)
    assert ranges == [Range(100, 120), Range(121, 128), Range(129, 192)]
    assert asked == [120]


def test_the_ends_and_powers_of_two_are_searched_first() -> None:
    assert coarse_first(searched_sizes(Range(1, 33))) == [1, 33, 2, 4, 8, 16, 32, 3, 6, 12, 24]


def test_one_kernel_serves_all_that_it_is_as_good_as_the_best_at() -> None:
    measured = losses({SMALL: 1.0, LARGE: 1.02}, {LARGE: 1.0, SMALL: 1.5}, {LARGE: 1.03, MIDDLE: 1.0})
    assert cut(measured) == [(0, 2, LARGE)]
    measured = losses({SMALL: 1.0, LARGE: 1.2}, {LARGE: 1.0, SMALL: 1.02}, {LARGE: 1.0, SMALL: 2.0})
    assert cut(measured) == [(0, 1, SMALL), (2, 2, LARGE)] or cut(measured) == [(0, 0, SMALL), (1, 2, LARGE)]
    assert cut(measured) == [(0, 0, SMALL), (1, 2, LARGE)]  # of as few those that lose least


def test_what_the_noise_does_not_show_costs_no_kernel() -> None:
    measured = [{SMALL: Loss(1.0, 1.0), LARGE: Loss(1.1, 1.0)}, {LARGE: Loss(1.0, 1.0), SMALL: Loss(1.2, 1.1)}]
    (segment,) = partition(measured, (SMALL, LARGE), tolerance=0.03, most=8)
    assert segment == Segment(0, 1, LARGE, 1.1)


def test_a_size_where_it_was_not_timed_counts_as_a_loss_and_the_last_must_be_timed() -> None:
    assert cut(losses({SMALL: 1.0}, {LARGE: 1.0})) == [(0, 0, SMALL), (1, 1, LARGE)]
    assert cut(losses({SMALL: 1.0}, {LARGE: 1.0}), most=1) == [(0, 1, LARGE)]  # SMALL cannot be built for the second
    with pytest.raises(InvalidRequest, match="nothing was timed at any size"):
        partition([], (SMALL,), tolerance=0.03, most=8)
    with pytest.raises(InvalidRequest, match="none of 3 configs serves the last of 2 sizes"):
        cut([{SMALL: Loss(1.0, 1.0)}, {Config("other", ()): Loss(1.0, 1.0)}])
    with pytest.raises(InvalidRequest, match="none of 0 configs serves the last of 1 sizes"):
        partition(losses({SMALL: 1.0}), (), tolerance=0.03, most=8)
    with pytest.raises(InvalidRequest, match="none of 3 configs serves the last of 1 sizes"):
        cut(losses({SMALL: 1.0}), refused={(0, 0, SMALL)})


def test_where_so_few_kernels_cannot_hold_the_tolerance_the_squares_beyond_it_are_least() -> None:
    measured = losses({SMALL: 1.0, MIDDLE: 1.4}, {MIDDLE: 1.0, LARGE: 1.1, SMALL: 1.3}, {LARGE: 1.0, MIDDLE: 1.2})
    assert cut(measured) == [(0, 0, SMALL), (1, 1, MIDDLE), (2, 2, LARGE)]
    assert cut(measured, most=2) == [(0, 0, SMALL), (1, 2, LARGE)]
    assert cut(measured, most=1) == [(0, 2, MIDDLE)]


def test_a_size_that_nothing_serves_well_excuses_no_other() -> None:
    bad = {MIDDLE: 1.5, LARGE: 1.5}
    measured = losses({MIDDLE: 1.0, LARGE: 1.3}, bad, {LARGE: 1.0, MIDDLE: 1.3})
    assert len(cut(measured)) == 2


def test_a_segment_that_failed_is_cut_otherwise() -> None:
    measured = losses({SMALL: 1.0, LARGE: 1.0}, {SMALL: 1.0, LARGE: 1.0})
    first = cut(measured)
    assert len(first) == 1
    second = cut(measured, refused=set(first))
    assert len(second) == 1
    assert second != first
    assert len(cut(measured, refused={*first, *second})) == 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from([SMALL, MIDDLE, LARGE]), st.integers(0, 40), min_size=1), min_size=1, max_size=5
    ),
    st.integers(1, 4),
)
def test_no_other_cut_is_better(table: list[dict[Config, int]], most: int) -> None:
    measured = losses(*({config: 1 + loss / 100 for config, loss in here.items()} for here in table))
    count, excess = _best(measured, most)
    segments = partition(measured, (SMALL, MIDDLE, LARGE), tolerance=0.03, most=most)
    assert [segment.first for segment in segments] == [0, *(segment.last + 1 for segment in segments[:-1])]
    assert segments[-1].last == len(measured) - 1
    assert len(segments) == count
    assert _excess(measured, segments) == pytest.approx(excess)


def _excess(measured: list[dict[Config, Loss]], segments: Iterable[Segment]) -> float:
    """Sum of the squares by which the losses are beyond the tolerance."""
    spans = [(i, segment.config) for segment in segments for i in range(segment.first, segment.last + 1)]
    return sum(max(0.0, measured[i].get(config, UNKNOWN).shown - 1.03) ** 2 for i, config in spans)


def _best(measured: list[dict[Config, Loss]], most: int) -> tuple[int, float]:
    """Fewest segments that are least beyond the tolerance, by trying all."""
    cuts: list[tuple[float, int]] = []
    last = len(measured) - 1
    for count in range(1, min(most, len(measured)) + 1):
        for inner in combinations(range(last), count - 1):
            ends = [*inner, last]
            for configs in product((SMALL, MIDDLE, LARGE), repeat=count):
                if all(config in measured[end] for config, end in zip(configs, ends, strict=True)):
                    starts = [0, *(end + 1 for end in ends[:-1])]
                    segments = [Segment(*span, 1.0) for span in zip(starts, ends, configs, strict=True)]
                    cuts.append((round(_excess(measured, segments), 9), count))
    excess, count = min(cuts)
    return count, excess
