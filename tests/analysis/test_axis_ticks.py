"""Ticks of axes: round values with labels that tell them apart; and the colours of timelines."""

from __future__ import annotations

import re

import pytest

from tirgemm.analysis.figures.svg import round_step, round_ticks
from tirgemm.analysis.figures.timeline_chart import colours_of
from tirgemm.analysis.timeline.recording import Recording
from tirgemm.service.explain.kernel_timeline import shipped_files
from tirgemm.service.pages.sample_drawings import sample_boxes


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (9.672, 15.84, ["10", "12", "14"]),
        (0.9931, 1.0072, ["0.995", "1.000", "1.005"]),
        (0.0, 341.8, ["0", "100", "200", "300"]),
        (98_000.0, 121_000.0, ["100,000", "110,000", "120,000"]),
    ],
)
def test_ticks_are_round_and_within(low: float, high: float, labels: list[str]) -> None:
    ticks = round_ticks(low, high, 4)
    assert [label for _, label in ticks] == labels
    assert all(low <= tick <= high for tick, _ in ticks)


def test_steps_are_1_2_and_5_times_powers_of_ten() -> None:
    assert [round_step(least) for least in (0.03, 1.0, 1.1, 4.9, 7.0, 1200.0)] == [0.05, 1.0, 2.0, 5.0, 10.0, 2000.0]


def test_the_axis_of_samples_has_round_values() -> None:
    picture = sample_boxes([("A", (9.9, 10.0, 10.3)), ("B", (15.0, 15.2))], "samples")
    assert re.findall(r'class="m">([^<]+)<', picture) == ["10", "11", "12", "13", "14", "15"]


def test_late_samples_leave_the_boxes_room_and_are_counted() -> None:
    usual = [30.0 + at % 7 / 10 for at in range(97)]
    picture = sample_boxes([("A", [*usual, 15_000.0, 16_000.0]), ("B", [us + 1 for us in usual])], "samples")
    assert [float(label) for label in re.findall(r'class="m">([^<]+)<', picture)][-1] < 35
    assert ">2 further right →</text>" in picture
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="[\d.]+" class="box', picture)]
    assert all(width > 20 for width in widths)
    assert len(widths) == 2


def test_a_kind_of_span_has_one_colour_in_all_timelines() -> None:
    of = [colours_of(Recording.read(path)) for path in shipped_files()]
    for kind in {kind for colours in of for kind in colours}:
        assert len({colours[kind] for colours in of if kind in colours}) == 1, kind
    for colours in of:
        assert len(set(colours.values())) == len(colours)
