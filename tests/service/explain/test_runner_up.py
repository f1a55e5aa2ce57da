"""Why the others lost: the runner-up of a kernel, and the time that is told of a config."""

from __future__ import annotations

import json
from typing import cast

from tests.service.explain.explained_kernels import A100, SMALL, explained
from tirgemm.config import Config
from tirgemm.families import family_named
from tirgemm.service.explain.gather import Report, config_time
from tirgemm.service.explain.report_text import sections
from tirgemm.timings import SearchSummary, Timings
from tirgemm.tuning.records import Candidate, KernelRecord, Reason, SampleSet, Status
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.rivals import rivals_of


def record(config: Config, timings: Timings) -> KernelRecord:
    return KernelRecord(SMALL, A100, "sustained", "tuned", config, "a" * 64, "b" * 64, 1, None, timings)


def measured(config: Config, **medians: float) -> Candidate:
    sets = tuple(SampleSet((us,), cast(Reason, reason)) for reason, us in medians.items())
    return Candidate(SMALL, A100.key, "sustained", config, Status.MEASURED, sample_sets=sets)


def test_the_runner_up_is_the_fastest_of_those_measured_alike() -> None:
    config = family_named("simt").default(SMALL, A100, "sustained")
    near, far = config.with_(raster=4), config.with_(raster=8, unroll=16)
    rivals = rivals_of(
        record(config, Timings()), [measured(config, search=5), measured(near, search=6), measured(far, search=5.5)]
    )
    assert rivals.runner_up is not None
    assert (rivals.runner_up.us, rivals.runner_up.reason) == (5.5, "search")
    assert {d.knob for d in rivals.runner_up.differences} == {"raster", "unroll"}
    again = [
        measured(config, search=5, selection=7),
        measured(near, search=6, selection=6.9),
        measured(far, search=5.5),
    ]
    tie = rivals_of(record(config, Timings()), again).runner_up
    assert tie is not None
    assert (tie.us, tie.reason, tie.config) == (6.9, "selection", near)
    assert tie.behind < 0
    words = " ".join(
        line
        for part in sections(Report(explained(compiled=False), "1", rivals_of(record(config, Timings()), again)))
        for line in part.lines
    )
    assert "faster: a tie goes to the simpler config" in words


def test_the_runner_up_of_a_selection_ran_beside_the_kernel() -> None:
    """A problem that was tuned and searched again: the new kernel was raced against the old one alone, at a lower
    clock."""
    new = family_named("simt").default(SMALL, A100, "sustained")
    old, lost = new.with_(raster=4), new.with_(raster=8)

    def raced(config: Config, **medians: float) -> Candidate:
        sets = tuple(SampleSet((us,), "selection", conditions={"at": at}) for at, us in medians.items())
        return Candidate(SMALL, A100.key, "sustained", config, Status.MEASURED, sample_sets=sets)

    candidates = [raced(new, later=11), raced(old, first=10, later=11.4), raced(lost, first=10.2)]
    runner_up = rivals_of(record(new, Timings()), candidates).runner_up
    assert runner_up is not None
    assert (runner_up.config, runner_up.us, runner_up.kernel_us) == (old, 11.4, 11)
    kernel = rivals_of(record(old, Timings()), [candidates[1], candidates[2]]).runner_up
    assert kernel is None, "its last run had no other of these"


def test_a_kernel_without_records_has_no_runner_up_and_says_what_it_knows() -> None:
    config = family_named("simt").default(SMALL, A100, "sustained")
    rivals = rivals_of(record(config, Timings(search=SearchSummary(pruned={"lanes": 3}))), [])
    assert rivals.runner_up is None
    assert [(p.rule, p.count, p.sentence, p.config) for p in rivals.pruned] == [("lanes", 3, "", None)]
    assert json.loads(json.dumps(rivals.to_json()))["pruned"][0]["config"] is None


def test_the_time_of_a_config_is_that_of_the_race_that_says_most() -> None:
    store, config = MemoryStore(), family_named("simt").default(SMALL, A100, "sustained")
    assert config_time(store, SMALL, config, A100, "sustained") is None
    store.add_candidate(measured(config, search=5, selection=7, other_regime=1))
    time = config_time(store, SMALL, config, A100, "sustained")
    assert time is not None
    assert time.us == 7
    assert config_time(store, SMALL, config, A100, "isolated") is None
