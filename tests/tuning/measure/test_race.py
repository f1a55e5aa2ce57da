"""Races on a measurer that is made up: who is blamed for a run that dies, and what two runs say together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from tirgemm import Gemm
from tirgemm.errors import Cancelled, DoesNotFit, InvalidRequest, LaunchFailed, TirgemmError
from tirgemm.status import Status
from tirgemm.tuning.measure import MeasurementCrashed, MeasurementTimedOut, Measurer
from tirgemm.tuning.measure.race import ATTEMPTS, Race, RaceResult
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import SampleSet

ENTRIES = {"one": b"1", "two": b"2", "three": b"3"}
OPTIONS = RaceOptions("sustained", 24, 1.0, seed=5)
US = {"1": 10.0, "2": 20.0, "3": 30.0, "theirs": 40.0, "slow": 80.0}


class MadeUp:
    """A run dies with what ``fails`` says of its contenders and of how many runs there were; a package names itself."""

    def __init__(
        self, fails: Callable[[set[str], int], TirgemmError | None] = lambda *_: None, us: dict[str, float] = US
    ) -> None:
        self.fails, self.us = fails, us
        self.runs: list[tuple[list[str], RaceOptions]] = []

    def time(
        self, package: bytes, options: RaceOptions, *, against: dict[str, bytes], baselines: tuple[str, ...], **_: Any
    ) -> SampleSet:
        names = [package.decode(), *(data.decode() for data in against.values()), *baselines]
        self.runs.append((names, options))
        error = self.fails(set(names), len(self.runs))
        if error is not None:
            raise error
        others: dict[str, tuple[float, ...]] = {name: (self.us[data.decode()],) * 4 for name, data in against.items()}
        beside = {name: (self.us[name],) * 4 for name in baselines}
        conditions = {"swapped": options.swap, "throttled": ["power_cap"] if options.swap else []}
        return SampleSet((self.us[names[0]],) * 4, options.reason, others | beside, conditions)


def run(made_up: MadeUp, *baselines: str, how: Callable[..., RaceResult] = Race.run, **more: bool) -> RaceResult:
    return how(Race(cast(Measurer, made_up), OPTIONS), ENTRIES, baselines, **more)


def dies_with(*names: str, error: TirgemmError | None = None) -> Callable[[set[str], int], TirgemmError | None]:
    """A run dies when all of ``names`` are in it."""
    return lambda contenders, _: (error or MeasurementCrashed("signal 11")) if set(names) <= contenders else None


def test_every_entry_has_its_samples_beside_the_baselines_of_one_run() -> None:
    made_up = MadeUp()
    result = run(made_up, "theirs", "slow")
    assert made_up.runs == [(["1", "2", "3", "theirs", "slow"], OPTIONS)]
    assert {name: samples.median_us for name, samples in result.samples.items()} == {"one": 10, "two": 20, "three": 30}
    assert all(samples.baselines == {"theirs": (40.0,) * 4, "slow": (80.0,) * 4} for samples in result.samples.values())
    assert not result.failed


@pytest.mark.parametrize(
    ("error", "status", "together"),
    [
        (MeasurementCrashed("signal 11"), Status.CRASHED, ATTEMPTS),
        (MeasurementTimedOut("60 s"), Status.TIMED_OUT, 1),
        (LaunchFailed("too many resources"), Status.CRASHED, ATTEMPTS),
    ],
)
def test_an_entry_that_fails_has_its_status_and_the_others_are_raced(
    error: TirgemmError, status: Status, together: int
) -> None:
    made_up = MadeUp(dies_with("2", error=error))
    result = run(made_up, "theirs")
    assert {name: failure.outcome for name, failure in result.failed.items()} == {"two": status}
    assert list(result.samples) == ["one", "three"]
    assert result.samples["one"].conditions["left_out"] == {"two": str(error)}
    names = [names for names, _ in made_up.runs]
    assert names[:together] == [["1", "2", "3", "theirs"]] * together, "what hangs is not waited for again"
    assert names[together:] == [["1"], ["2"], ["3"], ["1", "theirs"], ["1", "3", "theirs"]]
    assert {options.min_samples for contenders, options in made_up.runs if len(contenders) < 3} == {1}
    with pytest.raises(type(error), match=str(error)):
        result.of("two")


def test_a_kill_that_nothing_explains_costs_no_entry() -> None:
    result = run(MadeUp(lambda _, count: MeasurementCrashed("signal 9") if count < ATTEMPTS else None), "theirs")
    assert list(result.samples) == list(ENTRIES)
    assert "left_out" not in result.samples["one"].conditions


def test_a_baseline_that_ends_every_run_is_left_out_with_the_reason() -> None:
    result = run(MadeUp(dies_with("slow")), "theirs", "slow")
    assert list(result.samples) == list(ENTRIES)
    assert all(list(samples.baselines) == ["theirs"] for samples in result.samples.values())
    assert result.samples["three"].conditions["left_out"] == {"slow": "signal 11"}
    assert not result.failed


def test_where_only_the_crowd_dies_the_first_is_raced_without_the_others() -> None:
    result = run(MadeUp(dies_with("1", "3")), "theirs")
    assert list(result.samples) == ["one"]
    assert {name: failure.outcome for name, failure in result.failed.items()} == dict.fromkeys(
        ["two", "three"], Status.CRASHED
    )
    assert result.samples["one"].baselines == {"theirs": (40.0,) * 4}


def test_where_everything_dies_every_entry_has_failed() -> None:
    result = run(MadeUp(dies_with()), "theirs")
    assert not result.samples
    assert list(result.failed) == list(ENTRIES)


@pytest.mark.parametrize("error", [DoesNotFit("it needs 1 TB"), Cancelled("given up")])
def test_what_is_no_contenders_fault_is_raised_at_once(error: TirgemmError) -> None:
    made_up = MadeUp(dies_with("2", error=error))
    with pytest.raises(type(error)):
        run(made_up)
    assert len(made_up.runs) == 1


def test_where_operands_for_each_do_not_fit_a_tuner_s_race_gives_all_the_same() -> None:
    made_up = MadeUp(lambda _, count: DoesNotFit("it needs 1 TB") if count == 1 else None)
    result = run(made_up, "theirs", how=Race.fitting, confirm=False)
    assert [(names, options.shared) for names, options in made_up.runs] == [
        (["1", "2", "3", "theirs"], False),
        (["1", "2", "3", "theirs"], True),
    ]
    assert list(result.samples) == list(ENTRIES)


def test_a_race_is_kept_where_the_second_one_has_no_memory_left() -> None:
    made_up = MadeUp(lambda _, count: DoesNotFit("it needs 1 TB") if count == 2 else None, US | {"2": 10.2})
    result = run(made_up, how=Race.fitting, confirm=True)
    assert [(options.swap, options.shared) for _, options in made_up.runs] == [(False, False), (True, False)]
    assert result.samples["two"].samples_us == (10.2,) * 4


def test_a_race_with_swapped_buffers_is_never_one_with_shared_operands() -> None:
    made_up = MadeUp(dies_with("2", error=DoesNotFit("it needs 1 TB")))
    with pytest.raises(DoesNotFit):
        Race(cast(Measurer, made_up), replace(OPTIONS, swap=True)).fitting(ENTRIES, (), confirm=False)
    assert len(made_up.runs) == 1


def test_what_does_not_fit_with_shared_operands_is_told() -> None:
    made_up = MadeUp(dies_with("2", error=DoesNotFit("it needs 1 TB")))
    with pytest.raises(DoesNotFit, match="it needs 1 TB"):
        run(made_up, how=Race.fitting, confirm=False)
    assert [options.shared for _, options in made_up.runs] == [False, True]


@pytest.mark.parametrize(
    ("us", "runs"),
    [
        (US, 1),
        (US | {"2": 10.2}, 2),
        (US | {"theirs": 9.9}, 2),
        ({name: 1e4 * us for name, us in (US | {"2": 10.2}).items()}, 1),
    ],
)
def test_a_small_gap_is_raced_again_with_the_buffers_swapped_where_that_takes_seconds(
    us: dict[str, float], runs: int
) -> None:
    made_up = MadeUp(us=us)
    result = run(made_up, "theirs", how=Race.confirmed)
    assert [options.swap for _, options in made_up.runs] == [False, True][:runs]
    assert len(result.samples["two"].samples_us) == len(result.samples["two"].baselines["theirs"]) == 4 * runs
    assert result.samples["two"].conditions == {
        "swapped": runs == 2,
        "throttled": ["power_cap"] if runs == 2 else [],
    }


def test_what_fails_in_the_second_of_two_races_has_failed() -> None:
    us = US | {"2": 10.2}
    made_up = MadeUp(lambda names, count: MeasurementCrashed("signal 11") if "3" in names and count > 1 else None, us)
    result = run(made_up, how=Race.confirmed)
    assert (list(result.samples), list(result.failed)) == (["one", "two"], ["three"])
    assert result.samples["one"].conditions["left_out"] == {"three": "signal 11"}


def test_what_is_timed_of_a_range_is_its_high_end_unless_an_m_is_asked_for() -> None:
    gemm = Gemm.parse("3..17x5x7:f16:nt")
    assert RaceOptions("sustained").problem(gemm) == gemm
    assert RaceOptions("sustained", m=8).problem(gemm) == Gemm.parse("8x5x7:f16:nt")
    assert RaceOptions("sustained", m=8).problem(Gemm.parse("8x5x7:f16:nt")) == Gemm.parse("8x5x7:f16:nt")
    for m in (2, 18):
        with pytest.raises(InvalidRequest, match=rf"m is {m}; 3\.\.17x5x7:f16:nt has m from 3 to 17"):
            RaceOptions("sustained", m=m).problem(gemm)
