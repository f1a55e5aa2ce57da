"""What configs lose at sizes at which they were not measured, and cuts by that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tirgemm import Config, Gemm
from tirgemm.families import family_named, is_valid
from tirgemm.families.choice import expected_time_us, expected_times_us
from tirgemm.families.common.ranking_model import ranking_model
from tirgemm.gemm import Range
from tirgemm.hardware import named_device
from tirgemm.tuning import default_set as default_set_module
from tirgemm.tuning import set_members as set_members_module
from tirgemm.tuning.default_set import MOST_DEFAULTS, default_parts
from tirgemm.tuning.kernel_set import losses as losses_module
from tirgemm.tuning.kernel_set import partition as partition_module
from tirgemm.tuning.kernel_set.losses import CARRIED, fast_configs, losses_everywhere, untried
from tirgemm.tuning.kernel_set.partition import MOST_KERNELS, Loss, valid_segments

HOPPER = named_device("sm_90a")
WHOLE = Gemm.parse("1..4096x4096x4096:f16:nt")
PROBLEMS = [WHOLE.with_(m=Range(1, size)) for size in (512, 640, 768, 896, 1024)]
ONE, TWO, THREE = (family_named(name).default(PROBLEMS[0], HOPPER, "sustained") for name in ("wgmma", "mma", "simt"))


def everywhere(
    measured: Mapping[int, Mapping[Config, float]], configs: tuple[Config, ...]
) -> list[dict[Config, float]]:
    given = {PROBLEMS[i]: {c: Loss(ratio, ratio) for c, ratio in row.items()} for i, row in measured.items()}
    losses = losses_everywhere(PROBLEMS, configs, given, HOPPER, "sustained")
    return [{config: loss.ratio for config, loss in row.items()} for row in losses]


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Times that are expected of ONE, TWO and THREE, a row for each problem."""
    times = np.array([[10.0, 20.0, 40.0], [11, 20, 40], [12, 20, 40], [13, 20, 40], [14, 20, 40]])

    def answer(problems: object, configs: Mapping[Config, object], *_: object) -> Any:
        del problems
        return times[:, [[ONE, TWO, THREE].index(config) for config in configs]]

    monkeypatch.setattr(losses_module, "expected_times_us", answer)
    return times


def test_where_nothing_was_measured_the_losses_are_those_that_are_expected(expected: Any) -> None:
    for row, times in zip(everywhere({}, (ONE, TWO)), expected, strict=True):
        assert row == {ONE: 1.0, TWO: pytest.approx(times[1] / times[0])}


def test_what_was_measured_stands_and_corrects_what_is_expected_between(expected: Any) -> None:
    """TWO takes half of what is expected beside ONE at the first size, and a quarter at the last: between them a share
    of that is expected."""
    measured = {0: {ONE: 1.0, TWO: 1.0}, 4: {ONE: 14 / 5, TWO: 1.0}}
    rows = everywhere(measured, (ONE, TWO))
    assert (rows[0], rows[4]) == (measured[0], measured[4])
    for place in (1, 2, 3):
        shorter = 2 ** (CARRIED * (1 + place / 4))  # the logarithm is interpolated
        one, two = expected[place, 0], expected[place, 1] / shorter
        assert rows[place] == pytest.approx({ONE: max(1.0, one / two), TWO: max(1.0, two / one)})


@pytest.mark.usefixtures("expected")
def test_a_config_that_was_measured_at_one_of_two_sizes_is_corrected_by_that_and_at_none_is_unknown() -> None:
    rows = everywhere({0: {ONE: 1.0, TWO: 2.0}, 2: {ONE: 1.0, TWO: 20 / 12, THREE: 40 / 12}}, (ONE, TWO, THREE))
    assert set(rows[0]) == {ONE, TWO}
    assert set(rows[1]) == {ONE, TWO, THREE}
    assert rows[1][TWO] == pytest.approx(20 / 11)
    assert rows[4] == pytest.approx({ONE: 1.0, TWO: 20 / 14, THREE: 40 / 14}), "beyond the last by that alone"
    rows = everywhere({0: {ONE: 1.0}, 2: {ONE: 1.0}, 4: {ONE: 1.0, TWO: 2.0}}, (ONE, TWO))
    assert set(rows[1]) == {ONE}
    assert everywhere({0: {ONE: 1.0}}, ()) == [{ONE: 1.0}, {}, {}, {}, {}]


@pytest.mark.usefixtures("expected")
def test_what_is_untried_at_a_size_is_estimated_there_alone_and_not_corrected() -> None:
    ones = {gemm: {ONE: Loss(1.0, 1.0)} for gemm in (PROBLEMS[0], PROBLEMS[4])}
    rows = losses_everywhere(PROBLEMS, (ONE, THREE), ones, HOPPER, "sustained", {PROBLEMS[2]: [THREE]})
    assert [set(row) for row in rows] == [{ONE}, {ONE}, {ONE, THREE}, {ONE}, {ONE}]
    assert rows[2][THREE].ratio == pytest.approx(40 / 12)


def test_what_was_measured_at_the_next_size_below_or_above_is_not_untried() -> None:
    proposed = {gemm: [ONE, TWO, THREE] for gemm in PROBLEMS[:4]}
    left = untried(PROBLEMS, proposed, {PROBLEMS[0]: {ONE: 1}, PROBLEMS[3]: {TWO: 1}})
    assert left == {PROBLEMS[1]: [THREE], PROBLEMS[2]: [THREE], PROBLEMS[4]: []}
    assert untried(PROBLEMS[:2], proposed, {PROBLEMS[0]: {ONE: 1}}) == {PROBLEMS[1]: [TWO, THREE]}


def test_of_each_size_the_fastest_are_looked_at_between_sizes() -> None:
    made = [Config("made_up", (("tile", tile),)) for tile in range(40)]
    sizes = [{config: Loss(float(1 + place), 1.0) for place, config in enumerate(made[i:])} for i in (0, 10)]
    assert fast_configs(sizes) == made[:26]


def test_times_of_many_configs_and_problems_are_those_of_each_alone() -> None:
    configs = {config: family_named(config.family) for config in (ONE, TWO, THREE)}
    times = expected_times_us(PROBLEMS, configs, HOPPER, "sustained")
    model = ranking_model(HOPPER)
    for gemm, row in zip(PROBLEMS, times.tolist(), strict=True):
        assert row == [expected_time_us(f, config, gemm, HOPPER, "sustained", model) for config, f in configs.items()]


def test_a_config_serves_no_part_up_to_a_size_for_which_it_is_not_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [{ONE: Loss(1.0, 1.0), TWO: Loss(1.2, 1.2)} for _ in PROBLEMS]
    monkeypatch.setattr(partition_module, "is_valid", lambda gemm, config, _: config == TWO or gemm.m_max < 800)
    segments = valid_segments(PROBLEMS, losses, (ONE, TWO), HOPPER, tolerance=0.03)
    assert [(s.first, s.last, s.config) for s in segments] == [(0, 2, ONE), (3, 4, TWO)]
    monkeypatch.setattr(partition_module, "is_valid", is_valid)
    (whole,) = valid_segments(PROBLEMS, losses, (ONE, TWO), HOPPER, tolerance=0.03)
    assert whole.config == ONE
    again = valid_segments(PROBLEMS, losses, (ONE, TWO), HOPPER, tolerance=0.03, refused={(0, 4, ONE)})
    assert [(s.first, s.last, s.config) for s in again] != [(0, 4, ONE)]


def test_a_set_has_at_most_so_many_kernels() -> None:
    best, worse = Loss(1.0, 1.0), Loss(2.0, 2.0)
    losses = [{ONE: best, TWO: worse}, {ONE: worse, TWO: best}] * 2 + [{ONE: best, TWO: worse}]
    assert len(valid_segments(PROBLEMS, losses, (ONE, TWO), HOPPER, tolerance=0.03)) == 5
    assert len(valid_segments(PROBLEMS, losses, (ONE, TWO), HOPPER, tolerance=0.03, most=3)) == 3


def test_a_searched_set_may_have_more_kernels_than_one_of_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where at every size another config is the fastest, by far."""
    problems = [WHOLE.with_(m=Range(1, size)) for size in range(8, 8 * 70, 8)]
    made = [ONE.with_(stages=2 + place) for place in range(len(problems))]
    losses = [{config: Loss(1.0 + (config != best), 1.0 + (config != best)) for config in made} for best in made]
    monkeypatch.setattr(partition_module, "is_valid", lambda *_: True)
    assert len(valid_segments(problems, losses, made, HOPPER, tolerance=0.03)) == MOST_KERNELS == 64
    defaults = {gemm: (family_named("wgmma"), config) for gemm, config in zip(problems, made, strict=True)}
    monkeypatch.setattr(default_set_module, "size_defaults", lambda *_: defaults)
    monkeypatch.setattr(default_set_module, "losses_everywhere", lambda *_: losses)
    monkeypatch.setattr(set_members_module, "is_valid", lambda *_: True)
    assert len(default_parts(problems[-1], HOPPER, "sustained")) == MOST_DEFAULTS == 44
