"""Which configs the search over many problems tries: valid, diverse, near what is fast, known to nobody yet."""

from __future__ import annotations

import pytest

from tests.helpers.toy_family import DEVICE, Toy, simulated_us, valid_configs
from tirgemm.config import Config, Knob, Space
from tirgemm.families import family_named, rejected
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.search.neighbourhood import Neighbourhood, adapted, distance, group, neighbours

GEMM = Gemm.parse("1023x517x333:f16:nt")
TOY = Toy()


def chooser(seed: int = 0) -> Neighbourhood:
    return Neighbourhood(GEMM, TOY, DEVICE, "sustained", seed=seed)


def test_where_the_default_failed_tiles_all_differ_from_it_and_from_each_other() -> None:
    default = TOY.default(GEMM, DEVICE, "sustained")
    first = chooser().next(5, {default: None})
    assert len(first) == 5
    assert len({(c["block_m"], c["block_n"]) for c in (default, *first)}) == 6
    estimates = [TOY.predict_us(GEMM, config, DEVICE, "sustained") for config in first]
    every = sorted(TOY.predict_us(GEMM, config, DEVICE, "sustained") for config in valid_configs(TOY, GEMM))
    assert max(estimates) < every[len(every) // 2]


def test_choices_are_valid_unknown_and_the_same_for_the_same_seed() -> None:
    known: dict[Config, float | None] = {c: simulated_us(GEMM, c) for c in chooser().next(5, {})}
    known[chooser().next(6, {})[-1]] = None
    others = [TOY.default(GEMM, DEVICE, "sustained").with_(block_m=128, block_n=128, thread_m=8, thread_n=8)]
    actual = chooser().next(7, known, others)
    assert actual == chooser().next(7, known, others)
    assert actual != chooser(seed=1).next(7, known, others)
    assert len(set(actual)) == 7
    assert others[0] in actual
    assert not set(actual) & set(known)
    assert all(rejected(TOY, GEMM, config, DEVICE) is None for config in actual)
    assert len({group(config) for config in actual}) >= 3


def test_rounds_come_close_to_the_best_of_the_space() -> None:
    """45 of thousands of configs: within a tenth of the best, where the estimate alone is not."""
    best = min(simulated_us(GEMM, config) for config in valid_configs(TOY, GEMM))
    search = chooser()
    known: dict[Config, float | None] = {config: simulated_us(GEMM, config) for config in search.next(5, {})}
    first = min(us for us in known.values() if us)
    for _ in range(8):
        known |= {config: simulated_us(GEMM, config) for config in search.next(5, known)}
    assert min(us for us in known.values() if us) < min(1.1 * best, 0.9 * first)


def test_where_everything_failed_other_tiles_are_tried() -> None:
    search = chooser()
    known: dict[Config, float | None] = dict.fromkeys(search.next(4, {}))
    actual = search.next(4, known)
    assert len(actual) == 4
    assert not {group(c) for c in actual} & {group(c) for c in known}


def test_a_small_space_is_exhausted() -> None:
    small = Toy(knobs=tuple(Knob(k.name, k.choices[: 2 if k.name in ("stages", "unroll") else 1]) for k in TOY.knobs))
    search = Neighbourhood(GEMM, small, DEVICE, "sustained")
    first = search.next(9, {})
    known: dict[Config, float | None] = dict.fromkeys(first, 10.0)
    while actual := search.next(9, known):
        known |= dict.fromkeys(actual, 10.0)
    assert set(known) == set(valid_configs(small, GEMM))


def test_neighbours_differ_in_one_knob() -> None:
    space = Space("x", (Knob("tile_m", (64, 128, 256)), Knob("order", ("m", "n")), Knob("one", (1,))))
    config = space.at(0)
    listed = list(neighbours(config, space))
    assert [c.with_(tile_m=64) for c in listed[:2]] == [config, config]
    assert [(c["tile_m"], c["order"]) for c in listed] == [(128, "m"), (256, "m"), (64, "n")]
    assert [distance(config, c) for c in listed] == [2, 2, 1]


def test_a_config_of_another_problem_becomes_a_point_of_this_space() -> None:
    space = Space("x", (Knob("tile_m", (64, 128)), Knob("split", (1, 2, 8)), Knob("new", (False, True))))
    foreign = Config("x", (("tile_m", 256), ("split", 8), ("gone", 3)))
    assert adapted(foreign, space) == Config("x", (("tile_m", 128), ("split", 8), ("new", False)))
    assert adapted(Config("x", (("tile_m", 64), ("split", 3))), space)["split"] == 2


@pytest.mark.parametrize("gemm", ["17x2113x7169:f16:nt", "4095x4097x4104:f16:nn", "1x576x7168:f16:nt"])
def test_real_families_are_searched_without_a_gpu(gemm: str) -> None:
    device, problem = named_device("sm_90a"), Gemm.parse(gemm)
    family = family_named("wgmma")
    if family.supports(problem, device):
        pytest.skip(f"wgmma does not write {gemm}")
    search = Neighbourhood(problem, family, device, "sustained")
    first = search.next(5, {})
    actual = search.next(5, {config: 2 * search.estimate(config) for config in first})
    assert len({*first, *actual}) == 10
    assert all(rejected(family, problem, config, device) is None for config in (*first, *actual))
