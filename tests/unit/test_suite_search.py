"""The search over many problems: order, interleaving, resuming, failures, the time limit. Nothing here is a real time."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.scripts import script
from tests.unit.search_bench import SearchBench
from tests.unit.toy_family import DEVICE, Toy, simulated_us, valid_configs
from tirgemm.config import Config
from tirgemm.errors import DoesNotFit, InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.tuning.burst import Contender, burst
from tirgemm.tuning.measure import Measurer
from tirgemm.tuning.measured_configs import Entry, MeasuredConfigs
from tirgemm.tuning.records import Status
from tirgemm.tuning.suite_search import SuiteSearch
from tirgemm.tuning.workbench import Workbench

SMALL, LARGE, THIN = (Gemm.parse(t) for t in ("63x65x1027:f16:nt", "1023x1021x1027:f16:nt", "3x129x511:f16:nt"))
SUITES = {"few": [LARGE], "many": [SMALL, THIN, LARGE]}
TOY = Toy()


def found() -> MeasuredConfigs:
    return MeasuredConfigs(DEVICE, "torch.matmul", [{}])


def search(bench: SearchBench, into: MeasuredConfigs, regimes: Sequence[str] = ("sustained",), **options: Any) -> Any:
    options = {"families": [TOY], "first": 3, "batch": 3, "tell": lambda _: None} | options
    return SuiteSearch(options.pop("suites", SUITES), cast(Workbench, bench), into, regimes, **options)


class Stop(Exception):
    """Ends a search after some rounds."""


def rounds(count: int, bench: SearchBench, into: MeasuredConfigs, *regimes: str, **options: Any) -> list[str]:
    """Search until ``count`` rounds of any problem are done; the lines that it told."""
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if len(lines) == count:
            raise Stop

    with pytest.raises(Stop):
        search(bench, into, regimes or ("sustained",), tell=tell, **options).run(600)
    return lines


def test_every_shape_has_its_first_round_before_any_has_its_second() -> None:
    bench, into = SearchBench(), found()
    lines = rounds(6, bench, into)
    assert all(" r1 " in line for line in lines[:3])
    assert all(" r2 " in line for line in lines[3:])
    assert len({gemm for gemm, _, _ in bench.timed[:3]}) == 3
    assert bench.timed[0][0] == LARGE, "the smallest suite first: its shapes weigh most in the mean"
    assert "3 measured" in lines[0]
    assert "torch" not in lines[0]


def test_time_goes_to_the_shapes_that_are_slow_against_the_reference() -> None:
    gemms = [Gemm.parse(f"{m}x65x1027:f16:nt") for m in (63, 127, 191, 255, 319, 383, 447, 511)]
    slowest = min(simulated_us(gemms[3], config) for config in valid_configs(TOY, gemms[3]))
    reference = dict.fromkeys(gemms, 1000.0) | {gemms[3]: 0.7 * slowest}
    bench, into = SearchBench(reference_us=lambda gemm: reference[gemm]), found()
    rounds(24, bench, into, suites={"one": gemms})
    counts = Counter(gemm for gemm, _ in bench.built)
    assert counts[gemms[3]] > 1.5 * max(count for gemm, count in counts.items() if gemm != gemms[3])


def test_new_configs_run_beside_the_reference_and_the_best_so_far() -> None:
    bench, into = SearchBench(reference_us=lambda _: 1e6), found()
    rounds(2, bench, into, suites={"one": [LARGE]})
    (_, _, first), (_, _, second) = bench.timed
    fastest = min(first, key=lambda config: simulated_us(LARGE, config))
    assert len(first) == 3
    assert second[-1] == fastest
    assert len(second) == 4
    assert not set(second[:3]) & set(first)
    assert all(session.reference_us for session in into.sessions)
    assert into.sessions[0].power_w == 500.5
    entry = into.entries[0]
    assert (entry.registers, entry.samples, entry.error, entry.status) == (168, 2, 0.25, Status.MEASURED)
    assert entry.predicted_us == pytest.approx(TOY.predict_us(LARGE, entry.config, DEVICE, "sustained"), abs=0.01)


def test_a_shape_behind_the_reference_has_larger_rounds_in_several_bursts() -> None:
    bench, into = SearchBench(reference_us=lambda _: 1.0), found()
    rounds(2, bench, into, suites={"one": [LARGE]}, batch=6)
    assert [len(configs) for _, _, configs in bench.timed] == [3, 9, 4], "12 new ones and the best so far"


def test_both_regimes_are_measured_of_one_build() -> None:
    bench, into = SearchBench(), found()
    rounds(4, bench, into, "sustained", "isolated")
    assert [regime for _, regime, _ in bench.timed] == ["sustained", "isolated"] * 4
    assert len(bench.built) >= 4 * 3
    assert len(bench.built) == len(set(bench.built))
    assert into.best(LARGE, "isolated") == into.best(LARGE, "sustained")


def test_a_search_goes_on_from_its_file(tmp_path: Path) -> None:
    bench, into = SearchBench(), found()
    path = tmp_path / "found.json.gz"
    rounds(5, bench, into)
    into.save(path)
    again = MeasuredConfigs.load(path)
    again.runs.append({})
    second = SearchBench()
    lines = rounds(4, second, again)
    assert " r1 " not in "".join(lines), "every shape had its first round"
    known = {(again.sessions[e.session].gemm, e.config) for e in into.entries}
    assert not known & set(second.built)
    assert {s.run for s in again.sessions} == {0, 1}


def test_a_file_of_an_earlier_space_is_gone_on_from() -> None:
    """Its configs lack a knob that there is now: they cannot be estimated, but tell where to look."""
    bench, into = SearchBench(), found()
    rounds(4, bench, into)
    earlier = MeasuredConfigs(DEVICE, "torch.matmul", [{}])
    for session in into.sessions:
        entries = [
            replace(e, config=Config(e.config.family, e.config.knobs[:-1]))
            for _, e in into.of(session.gemm)
            if _ is session
        ]
        earlier.add(session, entries)
    assert all(entry.config.knobs for entry in earlier.entries)
    second = SearchBench()
    rounds(4, second, earlier)
    names = {knob.name for knob in TOY.space(SMALL, DEVICE).knobs}
    assert second.built
    assert all({name for name, _ in config.knobs} == names for _, config in second.built)


def test_what_is_wrong_unbuildable_or_deadly_is_recorded_as_such_and_costs_only_itself() -> None:
    default = TOY.default(LARGE, DEVICE, "sustained")
    fates: dict[Config, str] = {}

    def fate(_: Gemm, config: Config) -> str:
        kinds = ("wrong", "unbuildable", "crashes", "dies")
        return "right" if config == default else fates.setdefault(config, kinds[len(fates) % 4])

    bench, into = SearchBench(fate), found()
    rounds(1, bench, into, suites={"one": [LARGE]}, first=5)
    statuses = {entry.config: entry for entry in into.entries}
    expected = {"wrong": "wrong", "unbuildable": "build_failed", "crashes": "crashed", "dies": "crashed"}
    assert {config: statuses[config].status.value for config in fates} == {c: expected[f] for c, f in fates.items()}
    messages = {fates[config]: statuses[config].message for config in fates}
    assert "element [0, 1]" in messages["wrong"]
    assert "register allocation" in messages["unbuildable"]
    assert "signal 11" in messages["crashes"]
    assert "signal 9" in messages["dies"]
    assert statuses[default].us is not None
    assert into.best(LARGE, "sustained", 9) == [default]


def test_an_exhausted_space_ends_the_search() -> None:
    small = Toy(knobs=tuple(type(k)(k.name, k.choices[: 2 if k.name == "stages" else 1]) for k in TOY.knobs))
    bench, into = SearchBench(), found()
    search(bench, into, families=[small]).run(600)
    assert {gemm for gemm, _, _ in bench.timed} == {SMALL, THIN, LARGE}
    assert len(bench.built) == 6
    assert into.runs[-1]["read_gbps"] == 4000.0


def test_the_time_limit_is_kept_and_what_was_found_is_saved() -> None:
    saves: list[int] = []
    bench, into = SearchBench(), found()
    started = time.monotonic()
    search(bench, into).run(13.0, lambda: saves.append(len(into.entries)))
    assert time.monotonic() - started < 20
    assert saves[-1] == len(into.entries) > 9


def test_a_problem_that_cannot_be_timed_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, into, lines = SearchBench(), found(), list[str]()
    right = bench.time

    def timed(package: bytes, *arguments: Any, **options: Any) -> Any:
        if bench._packages[package][0] == LARGE:
            raise DoesNotFit("timing needs 1 TB")
        return right(package, *arguments, **options)

    monkeypatch.setattr(bench, "time", timed)
    small = Toy(knobs=tuple(type(k)(k.name, k.choices[: 2 if k.name == "stages" else 1]) for k in TOY.knobs))
    search(bench, into, families=[small], tell=lines.append).run(600)
    assert {gemm for gemm, _, _ in bench.timed} == {SMALL, THIN}
    assert f"{LARGE}: timing needs 1 TB" in lines


def test_shapes_that_no_family_writes_are_skipped_with_the_reason() -> None:
    half = Gemm.parse("64x64x64:f16:nt:acc=f16")
    it = search(SearchBench(), found(), suites={"one": [half, SMALL]})
    assert [problem.gemm for problem in it.problems] == [SMALL]
    assert it.skipped == {half: "toy sums in f32, not f16"}


def test_a_search_may_go_without_some_choices() -> None:
    bench, into = SearchBench(), found()
    family = script("benchmarks/search_configs.py").limited(TOY, ["block_m=64", "layout=padded"])
    rounds(3, bench, into, suites={"one": [LARGE]}, families=[family])
    assert bench.built
    assert not [c for _, c in bench.built if c["block_m"] == 64 or c["layout"] == "padded"]
    with pytest.raises(InvalidRequest, match="--without layout is not KNOB=CHOICE"):
        script("benchmarks/search_configs.py").limited(TOY, ["layout"])


def test_the_summary_is_over_suites_and_against_the_reference() -> None:
    bench, into = SearchBench(reference_us=lambda _: 1000.0), found()
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if len(lines) == 4:
            raise Stop

    it = search(bench, into, tell=tell)
    with pytest.raises(Stop):
        it.run(600)
    ratios = {gemm: it.ratio(gemm, "sustained") for gemm in SUITES["many"]}
    few, many, mean = script("benchmarks/search_configs.py").summary(it)
    assert few.startswith(
        f"sustained few: {ratios[LARGE]:.3f} x torch.matmul, least {ratios[LARGE]:.3f}, 1 of 1 shapes"
    )
    geomean = math.prod(ratios.values()) ** (1 / 3)
    assert many.startswith(f"sustained many: {geomean:.3f} x torch.matmul, least {min(ratios.values()):.3f}, 3 of 3")
    assert mean == f"sustained, mean over 2 suites: {math.sqrt(ratios[LARGE] * geomean):.3f}"
    assert "of the best" in many


def test_those_of_a_burst_that_died_are_timed_alone_and_stay_comparable() -> None:
    configs = valid_configs(TOY, SMALL)[:3]
    bench = SearchBench(lambda _, config: "dies" if config == configs[1] else "right")
    contenders = [Contender(Entry(0, c, Status.MEASURED), bench.package(SMALL, c, None)) for c in configs]
    done = burst(cast(Measurer, bench), contenders, "sustained", reference="torch.matmul", seconds=0.01)
    assert [entry.status for entry in done.entries] == [Status.MEASURED, Status.CRASHED, Status.MEASURED]
    first, _, third = done.entries
    assert first.us is not None
    assert third.us is not None
    assert third.us / first.us == pytest.approx(simulated_us(SMALL, configs[2]) / simulated_us(SMALL, configs[0]))
