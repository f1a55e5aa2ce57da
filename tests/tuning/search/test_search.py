"""Proposals of the search: those it makes, and those it never makes."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence

import pytest

from tests.helpers.toy_family import DEVICE, Toy, measured, simulated_us, valid_configs
from tests.tuning.search.uniform_model import Uniform
from tirgemm.config import Config, Knob
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families.base import Rule
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning.search import evolution
from tirgemm.tuning.search.cost_model import CostModel
from tirgemm.tuning.search.search import Proposal, Search, SearchOptions
from tirgemm.tuning.search.space_trace import Point

GEMM = Gemm(1023, 1021, 1027)
TOY = Toy()
DEFAULT = TOY.default(GEMM, DEVICE, "sustained")
SMALL = (
    Knob("block_m", (16, 32, 64)),
    Knob("block_n", (16, 64)),
    Knob("only", (1,)),
    Knob("stages", (1, 2, 3, 4, 5, 6, 7)),
)


class Ruled(Toy):
    """A toy with rules of its own and no estimate worth mentioning."""

    def __init__(self, *rules: Rule, name: str = "toy", knobs: tuple[Knob, ...] | None = None) -> None:
        super().__init__(name, knobs)
        self.own = rules

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.own

    def predict_us(self, gemm: Gemm, config: Config, device: object, regime: str) -> float:  # noqa: ARG002
        return 1.0


def search(
    *families: Toy,
    seed: int = 0,
    recorded: Sequence[Candidate] = (),
    history: Sequence[Candidate] = (),
    cost_model: CostModel | None = None,
) -> Search:
    options = SearchOptions(cost_model=cost_model)
    chosen = families or (TOY,)
    return Search(GEMM, DEVICE, "sustained", chosen, options, seed=seed, recorded=recorded, history=history)


def results(proposals: Sequence[Proposal]) -> list[Candidate]:
    return [measured(GEMM, proposal.config) for proposal in proposals]


def configs(proposals: Sequence[Proposal]) -> list[Config]:
    return [proposal.config for proposal in proposals]


def tuned(actual: Search, batches: Sequence[int]) -> list[Config]:
    tried: list[Config] = []
    for count in batches:
        proposals = actual.ask(count)
        actual.tell(results(proposals))
        tried += configs(proposals)
    return tried


def test_the_default_comes_first_and_once() -> None:
    searched = search()
    tried = tuned(searched, [3, 8, 8])
    assert tried[0] == DEFAULT
    assert tried.count(DEFAULT) == 1


def test_a_default_that_is_recorded_is_not_proposed() -> None:
    assert DEFAULT not in configs(search(recorded=[measured(GEMM, DEFAULT)]).ask(8))


def test_every_familys_default_comes_first_and_every_family_is_searched() -> None:
    one, other = Ruled(name="one", knobs=TOY.knobs), Ruled(name="other", knobs=SMALL)
    searched = search(one, other, seed=3, cost_model=Uniform())
    proposals = searched.ask(20)
    assert [p.config.family for p in proposals[:2]] == ["one", "other"]
    assert {p.config.family for p in proposals[2:]} == {"one", "other"}


def test_what_is_fast_in_problems_of_the_same_sizes_comes_behind_the_default() -> None:
    twin, other = GEMM.with_(invariant=True), Gemm(1023, 1021, 1024)
    slow, second, fast = (DEFAULT.with_(stages=stages, unroll=True) for stages in (2, 3, 4))
    history = [measured(twin, config, us) for config, us in ((slow, 9.0), (second, 8.0), (fast, 7.0))]
    history.append(measured(other, DEFAULT.with_(stages=4), 1.0))
    assert configs(search(history=history, cost_model=Uniform()).ask(3)) == [DEFAULT, fast, second]


def test_a_config_of_the_same_sizes_is_fitted_to_the_space_and_refused_by_rules() -> None:
    refused = Rule("no 64", lambda _gemm, config, _device: "64" if config["block_n"] == 64 else None)
    twin = GEMM.with_(dtype="bf16")
    knobs = (("block_m", 64), ("block_n", 64), ("stages", 9))
    times = {Config("toy", knobs): 1.0, Config("toy", knobs).with_(block_n=16): 2.0}
    history = [measured(twin, config, us) for config, us in times.items()]
    searched = search(Ruled(refused, knobs=SMALL), history=history, cost_model=Uniform())
    assert configs(searched.ask(2))[1] == Config("toy", (("block_m", 64), ("block_n", 16), ("only", 1), ("stages", 7)))


def test_one_at_a_time_works() -> None:
    tried = tuned(search(), [1] * 4)
    assert len(set(tried)) == 4


def test_nothing_is_proposed_twice_and_every_proposal_passes_the_rules() -> None:
    tried = tuned(search(), [7, 9, 5])
    assert len(tried) == len(set(tried)) == 21
    assert set(tried) <= set(valid_configs(TOY, GEMM))


@pytest.mark.parametrize("status", [Status.WRONG, Status.BUILD_FAILED, Status.CRASHED, Status.TIMED_OUT])
def test_what_failed_is_never_proposed_again(status: Status) -> None:
    searched = search()
    first = searched.ask(8)
    searched.tell([Candidate(GEMM, DEVICE.key, "sustained", p.config, status) for p in first])
    assert not set(configs(first)) & set(configs(searched.ask(16)))


def test_what_is_in_flight_is_not_proposed_again() -> None:
    searched = search()
    tried = [config for _ in range(2) for config in configs(searched.ask(16))]
    assert len(set(tried)) == 32


def test_a_seed_fixes_what_is_proposed_for_given_measurements() -> None:
    first = tuned(search(seed=11), [8, 8, 8])
    assert tuned(search(seed=11), [8, 8, 8]) == first
    assert tuned(search(seed=12), [8]) != first[:8]


def test_the_order_in_which_results_come_changes_nothing() -> None:
    one, other = search(seed=5), search(seed=5)
    for _ in range(2):
        proposals = one.ask(8)
        assert configs(other.ask(8)) == configs(proposals)
        one.tell(results(proposals))
        shuffled = random.Random(1).sample(results(proposals), 8)
        other.tell(shuffled[:3])
        other.tell(shuffled[3:])


def test_a_search_that_is_started_again_goes_on_as_if_never_stopped() -> None:
    whole = search(seed=2)
    tried = tuned(whole, [8, 8])
    again = search(seed=2, recorded=[measured(GEMM, config) for config in tried])
    assert configs(again.ask(8)) == configs(whole.ask(8))


def test_records_of_other_shapes_make_the_first_batch_better() -> None:
    shapes = (Gemm(777, 1500, 2048), Gemm(2100, 515, 999), Gemm(900, 900, 4100))
    history = [
        measured(gemm, config)
        for gemm in shapes
        for config in random.Random(gemm.k).sample(valid_configs(TOY, gemm), 64)
    ]
    warm, cold = (
        statistics.median(simulated_us(GEMM, config) for config in tuned(search(history=actual), [9])[1:])
        for actual in (history, [])
    )
    assert warm < 0.8 * cold


def test_a_small_space_is_proposed_in_full_and_then_nothing() -> None:
    family = Ruled(knobs=SMALL)
    searched = search(family, cost_model=Uniform())
    tried = [config for _ in range(6) for config in configs(searched.ask(8))]
    assert sorted(map(str, tried)) == sorted(map(str, family.space(GEMM, DEVICE)))
    assert searched.ask(8) == []


def test_a_space_ends_behind_a_model_that_has_learnt_all_of_it() -> None:
    family = Toy(knobs=tuple(Knob(knob.name, knob.choices[:2]) for knob in TOY.knobs))
    whole = len(valid_configs(family, GEMM))
    searched = search(family)
    assert len(tuned(searched, [8] * (whole // 8 + 2))) == whole
    assert searched.model.trained
    assert searched.ask(8) == []


def test_a_space_that_ends_behind_the_evolution_is_proposed_in_full_and_then_nothing() -> None:
    knobs = (*SMALL, Knob("unroll", (1, 2, 4)))
    searched = search(Ruled(knobs=knobs), cost_model=Uniform())
    tried = [config for _ in range(8) for config in configs(searched.ask(20))]
    assert len(tried) == len(set(tried)) == 3 * 2 * 7 * 3
    assert searched.ask(1) == []


@pytest.mark.parametrize("enlarged", [False, True], ids=["enumerated", "drawn"])
def test_a_space_of_which_rules_leave_the_default_alone_ends(enlarged: bool) -> None:
    def only_the_default(_gemm: Gemm, config: Config, _device: Device) -> str | None:
        small = all(value in (64, 32, 4, 1, "plain", False) for _, value in config.knobs[1:])
        block = (config["block_m"], config["block_n"], config["block_k"], config["stages"]) == (64, 64, 32, 1)
        default = small and block and config["thread_m"] == config["thread_n"] == 4
        return None if default else "only the default will do"

    rule = Rule("nothing_else", only_the_default)
    knobs = (*TOY.knobs, Knob("more", tuple(range(50)))) if enlarged else TOY.knobs
    family = Ruled(rule, knobs=knobs)
    searched = search(family, cost_model=Uniform())
    if enlarged:
        assert family.space(GEMM, DEVICE).size > 1_000_000
    assert DEFAULT.knobs == searched.ask(4)[0].config.knobs[: len(DEFAULT.knobs)]
    left = sum(len(searched.ask(8)) for _ in range(8))
    assert left <= 49
    assert searched.ask(8) == []
    assert searched.filter.pruned["nothing_else"] > 1000


def test_what_rules_reject_is_counted_by_rule_with_examples() -> None:
    searched = search()
    tuned(searched, [8, 8])
    assert set(searched.filter.pruned) <= {"threads", "shared_memory"}
    assert set(searched.filter.examples) == set(searched.filter.pruned)
    assert searched.filter.pruned["threads"] > 50
    config, reason = searched.filter.examples["threads"][0]
    assert "threads a block" in reason
    assert config not in valid_configs(TOY, GEMM)


def test_known_points_are_not_counted_as_rejected_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = search(Ruled(knobs=(*SMALL, Knob("unroll", (1, 2, 4)))), cost_model=Uniform())
    admits, known = searched.filter.admits, list[bool]()

    def noted(point: Point | None) -> bool:
        known.append(point in searched.filter.seen_points)
        return admits(point)

    monkeypatch.setattr(searched.filter, "admits", noted)
    searched.ask(40)
    searched.ask(40)
    assert searched.filter.pruned == {}
    assert any(known)


def test_a_pruned_example_in_the_records_is_neither_known_nor_learnt() -> None:
    pruned = Candidate(GEMM, DEVICE.key, "sustained", DEFAULT, Status.PRUNED, rule="old", message="no more")
    assert configs(search(recorded=[pruned]).ask(1)) == [DEFAULT]


def test_records_of_knobs_that_are_no_more_do_no_harm() -> None:
    old = measured(GEMM, DEFAULT).with_(config=Config("toy", (("gone", 1),)))
    strange = measured(GEMM, DEFAULT).with_(config=Config("gone", (("block_m", 1),)))
    assert configs(search(recorded=[old, strange]).ask(2))[0] == DEFAULT


def test_predictions_come_from_the_estimate_first_and_from_measurements_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolution, "GENERATIONS", 4)  # the model has learnt what is fast, and later ones are
    searched = search()
    first = searched.ask(16)
    assert first[0].predicted_us == TOY.predict_us(GEMM, DEFAULT, DEVICE, "sustained")
    searched.tell(results(first))
    later = searched.ask(8)
    errors = [abs((p.predicted_us or 0.0) / simulated_us(GEMM, p.config) - 1) for p in later]
    assert sorted(errors)[4] < 0.5


def test_results_of_another_problem_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="was reported to the search of"):
        search().tell([measured(Gemm(7, 5, 3), DEFAULT)])


def test_a_search_needs_a_family_and_a_count() -> None:
    with pytest.raises(InvalidRequest, match="no family"):
        Search(GEMM, DEVICE, "sustained", [])
    with pytest.raises(InvalidRequest, match="at least 1"):
        search().ask(0)


def test_searching_does_not_import_the_slow_intrinsics() -> None:
    """tvm.s_tir.tensor_intrin takes 11 seconds to import; MetaSchedule's own TuneContext would."""
    before = "tvm.s_tir.tensor_intrin" in sys.modules
    search(seed=9).ask(8)
    assert ("tvm.s_tir.tensor_intrin" in sys.modules) == before
