"""Held-out suites: the same problems on every machine, apart from all that anything was fitted to."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.scripts import script
from tirgemm.bench import held_out as generator
from tirgemm.bench.held_out import (
    COUNT,
    FIRST_APART,
    GRID,
    GRID_COUNT,
    JUDGE_SEEDS,
    LAYERS,
    LEAST_SIDE,
    MOST_ROWS,
    MOST_SIDE,
    READ_SEEDS,
    held_out,
    recorded_sides,
    siblings,
    sides_of,
)
from tirgemm.bench.suite_file import Suite
from tirgemm.bench.suites import named_suites, suite_named
from tirgemm.errors import InvalidRequest
from tirgemm.expr import evaluate
from tirgemm.gemm import ACTIVATIONS, Gemm, Operand, Range
from tirgemm.tuning_db import records_file, shipped
from tirgemm.tuning_db.shipped.records import ShippedRecords

# How many judged problems have siblings among the shipped records, exact equals included; of any other seed none may.
SIBLINGS = {"judge-102": 12, "judge-103": 11, "judge-104": 15, "grid": 73}
# Of these, how many are in the records themselves: problems of the published suites, which were measured before.
EQUALS = {"grid": 10}
NEW_JUDGE = 130
OPERANDS: tuple[Operand, ...] = ("a", "b", "d")
JUDGES = [f"judge-{seed}" for seed in JUDGE_SEEDS]
# Published results name these problems: a change of the generator must not change them.
DIGESTS = {
    "judge-102": "e865723ffbbaf173",
    "judge-103": "5cc6f910a35336d5",
    "judge-104": "ca9f1180d7a061a3",
    "judge-105": "d8867cf41b2cd0f6",
    "judge-106": "ba49f5abc140ab10",
    "judge-107": "6cc4da7f37bf26ee",
    "judge-108": "c0a663829be726a3",
    "judge-116": "ab7aec36b1b36b1a",
    "judge-118": "e3897ec7eac32665",
    "judge-119": "0429b0a4bdda97b9",
    "judge-120": "45eb0791e06d94cc",
    "judge-121": "4575c443b825d28b",
    "judge-122": "1030507b7cf95771",
    "judge-123": "524afac53c2d6d6a",
    "grid": "c7dd4b4634a0e8c7",
}


def digest(suite: Suite) -> str:
    return hashlib.sha256("\n".join(map(str, suite.gemms)).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", [*JUDGES, "grid"])
def test_the_problems_of_a_name_never_change(name: str) -> None:
    assert digest(suite_named(name)) == DIGESTS[name]


def test_what_is_fitted_to_is_not_judged_by() -> None:
    suites = {name: suite_named(name).gemms for name in (*JUDGES, *(f"fit-{seed}" for seed in range(20)))}
    assert {name: COUNT - len(set(gemms)) for name, gemms in suites.items() if len(set(gemms)) != COUNT} == {
        "judge-104": 1
    }
    assert len(set(suites.values())) == len(suites)
    judged = {gemm for name in JUDGES for gemm in suites[name]} | set(suite_named("grid").gemms)
    assert not judged & {gemm for name, gemms in suites.items() if name not in JUDGES for gemm in gemms}


def test_no_judged_problem_was_measured_before_or_is_in_another_suite() -> None:
    judged = {gemm for name in JUDGES for gemm in suite_named(name).gemms}
    records = (record for path in shipped.FOLDER.glob("*.jsonl.gz") for record in records_file.read(path))
    recorded = {Gemm.parse(record["gemm"]) for record in records if record.get("kind") == "candidate"}
    assert len(recorded) > 100
    assert not judged & recorded
    assert not judged & {gemm for path in named_suites().values() for gemm in Suite.read(path).gemms}


def shipped_gemms(model: str = "") -> set[Gemm]:
    """The problems of the shipped records, of all devices or of one model."""
    files = (file for file in ShippedRecords().files() if file.path.name.startswith(model))
    return {gemm for file in files for gemm in file.gemms}


def published_gemms() -> set[Gemm]:
    return {gemm for path in named_suites().values() for gemm in Suite.read(path).gemms}


@pytest.mark.parametrize("name", [*JUDGES, "grid"])
def test_siblings_of_judged_problems_in_the_records_are_as_many_as_stated(name: str) -> None:
    recorded, gemms = shipped_gemms(), suite_named(name).gemms
    assert len(siblings(gemms, {sides_of(gemm) for gemm in recorded})) == SIBLINGS.get(name, 0)
    equals = recorded & set(gemms)
    assert len(equals) == EQUALS.get(name, 0)
    assert equals <= published_gemms()


def test_the_page_states_how_many_judged_problems_have_siblings() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "results.md").read_text().split())
    judged = [SIBLINGS[name] for name in ("judge-102", "judge-103", "judge-104")]
    assert f"{sum(judged)} of the 299 judged problems ({judged[0]}, {judged[1]} and {judged[2]} of the suites)" in page
    h200 = {sides_of(gemm) for gemm in shipped_gemms("nvidia-h200")}
    assert f"{sum(len(siblings(suite_named(name).gemms, h200)) for name in JUDGES[:3])} in those of the H200" in page
    assert f"{SIBLINGS['grid']} of the 300 of `grid`, of which {EQUALS['grid']} are in the records themselves" in page


def test_every_shipped_or_published_size_is_one_that_new_seeds_do_not_draw() -> None:
    missing = {sides_of(gemm) for gemm in shipped_gemms() | published_gemms()} - recorded_sides()
    assert not missing, "scripts/ship_records.py adds them to tirgemm/bench/recorded_sides.json"


def test_new_seeds_draw_no_size_of_the_records_or_of_the_other_side(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(*READ_SEEDS[:3], 3, 101) < FIRST_APART == 105
    assert max(JUDGE_SEEDS) < NEW_JUDGE
    monkeypatch.setattr(generator, "JUDGE_SEEDS", (*JUDGE_SEEDS, NEW_JUDGE))
    judged = {sides_of(gemm) for name in (*JUDGES, "grid") for gemm in suite_named(name).gemms}
    new = suite_named(f"judge-{NEW_JUDGE}").gemms
    fitted = {seed: suite_named(f"fit-{seed}").gemms for seed in (0, 1, 2, 3, 101, *range(110, 116))}
    shipped_sides = {sides_of(gemm) for gemm in shipped_gemms()}
    assert len(set(new)) == COUNT
    assert not siblings(new, shipped_sides)
    for seed, gemms in fitted.items():
        assert len(set(gemms)) == COUNT
        assert not siblings(gemms, {sides_of(gemm) for gemm in new}), seed
        if seed >= FIRST_APART:
            assert not siblings(gemms, shipped_sides | judged), seed


def test_a_judge_suite_stays_when_sizes_of_other_problems_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "JUDGE_SEEDS", (*JUDGE_SEEDS, NEW_JUDGE))
    before = suite_named(f"judge-{NEW_JUDGE}").gemms
    added = {sides_of(gemm) for seed in range(110, 116) for gemm in suite_named(f"fit-{seed}").gemms}
    monkeypatch.setattr(generator, "recorded_sides", lambda: recorded_sides() | added)
    assert suite_named(f"judge-{NEW_JUDGE}").gemms == before
    assert not siblings(suite_named("fit-110").gemms, added)


def test_a_distribution_that_is_used_up_loses_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "recorded_sides", lambda: frozenset(product(GRID, repeat=3)))
    gemms = suite_named("fit-110").gemms
    assert len(set(gemms)) == COUNT
    assert not {sides_of(gemm) for gemm in gemms} & set(product(GRID, repeat=3))


def test_records_of_a_judged_size_are_not_shipped_where_none_of_it_were_before(tmp_path: Path) -> None:
    module: Any = script("scripts/ship_records.py")
    gemms = [gemm for name in JUDGES for gemm in suite_named(name).gemms]
    known = siblings(gemms, {sides_of(gemm) for gemm in shipped_gemms()})
    is_judged = module._judged(shipped.FOLDER)
    assert all(map(is_judged, gemms))
    other = [Gemm(*sides_of(gemm), dtype="bf16" if gemm.dtype == "f16" else "f16") for gemm in gemms]
    assert {sides_of(gemm) for gemm in other if not is_judged(gemm)} <= {sides_of(gemm) for gemm in known}
    assert not is_judged(next(iter(shipped_gemms() & published_gemms())))
    module.add_recorded_sides(tmp_path / "sides.json", tmp_path)
    assert (tmp_path / "sides.json").read_text() == module.SIDES.read_text(), "none is taken away"


def test_problems_with_rows_off_lines_are_drawn_apart_from_what_is_judged() -> None:
    one, other = (suite_named(f"rows16-{seed}").gemms for seed in (1, 2))
    assert len(set(one)) == len(set(other)) == COUNT
    assert one == suite_named("rows16-1").gemms
    assert not set(one) & set(other)
    judged = {sides_of(gemm) for name in (*JUDGES, "grid") for gemm in suite_named(name).gemms}
    assert not siblings([*one, *other], recorded_sides() | judged)
    for gemm in one:
        rows = [2 * evaluate(gemm.leading(operand), gemm.m_max) for operand in OPERANDS]  # bytes
        assert all(row % 16 == 0 for row in rows)
        assert any(row % 128 for row in rows[:2])
    assert {gemm.layout for gemm in one} == {"nt", "nn", "tn", "tt"}


def test_problems_of_other_kinds_are_drawn_apart_from_what_is_judged() -> None:
    gemms = suite_named("kinds-1").gemms
    assert len(set(gemms)) == COUNT
    judged = {sides_of(gemm) for name in (*JUDGES, "grid") for gemm in suite_named(name).gemms}
    assert not siblings(gemms, recorded_sides() | judged)
    two = (*gemms, *suite_named("kinds-2").gemms)
    kinds = Counter((gemm.out == "f32", gemm.acc == "f16", gemm.batch > 1, gemm.beta) for gemm in two)
    assert len(kinds) == 4
    assert min(kinds.values()) > 30
    assert all(sum(kind) == 1 for kind in kinds)
    layouts = Counter(gemm.layout for gemm in two if gemm.batch > 1)
    assert layouts.keys() == {"nt", "nn", "tn", "tt"}
    assert min(layouts.values()) > 4


def test_layers_are_of_no_other_suite() -> None:
    pairs = {pair for model in LAYERS.values() for pair in model}
    assert not pairs & {(g.n, g.k) for path in named_suites().values() for g in Suite.read(path).gemms}


def test_the_three_distributions_have_a_third_each_and_stay_in_their_ranges() -> None:
    whole = [suite_named(name).gemms for name in (*JUDGES[:2], "fit-1")]
    gemms = [gemm for suite in whole for gemm in suite]
    pairs = {pair for model in LAYERS.values() for pair in model}
    layers, grid, free = ([gemm for suite in whole for gemm in suite[first::3]] for first in range(3))
    assert (len(layers), len(grid), len(free)) == tuple(len(whole) * count for count in (34, 33, 33))
    assert all((gemm.n, gemm.k) in pairs and 1 <= gemm.m_max <= MOST_ROWS for gemm in layers)
    assert all({gemm.m_max, gemm.n, gemm.k} <= set(GRID) for gemm in grid)
    assert all(LEAST_SIDE <= side <= MOST_SIDE for gemm in free for side in (gemm.m_max, gemm.n, gemm.k))
    assert any(gemm.k % 2 for gemm in gemms)
    assert {gemm.layout for gemm in gemms} == {"nn", "nt", "tn", "tt"}
    assert {gemm.dtype for gemm in gemms} == {"f16", "bf16"}


def test_the_grid_has_its_problems_once() -> None:
    gemms = suite_named("grid").gemms
    assert len(set(gemms)) == GRID_COUNT
    assert all({gemm.m_max, gemm.n, gemm.k} <= set(GRID) for gemm in gemms)


def test_what_is_searched_twice_are_the_first_problems_of_a_judge_seed() -> None:
    assert suite_named("twice-116").gemms == suite_named("judge-116").gemms[:40]


@pytest.mark.parametrize("name", ["judge-101", "twice-101", "fit-102"])
def test_a_seed_is_for_one_purpose(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"suite '{name}': the seeds to judge by are 102, 103, 104"):
        held_out(name)


@pytest.mark.parametrize("name", ["judge-", "judge-0101", "fit--1", "other", "fit-1e3", "Grid"])
def test_other_names_are_of_no_held_out_suite(name: str) -> None:
    assert held_out(name) is None


def test_breadth_has_every_kind_of_problem_beside_the_plain_one() -> None:
    gemms = suite_named("breadth").gemms
    plain = [gemm for gemm in gemms if str(gemm).endswith(":f16:nt") and isinstance(gemm.m, int)]
    assert (len(gemms), len(plain)) == (60, 3)
    kinds: tuple[dict[str, Any], ...] = (
        {},
        *({"layout": layout} for layout in ("nn", "tn", "tt")),
        *({"dtype": "bf16", "layout": layout} for layout in ("nt", "nn")),
        {"out": "f32"},
        {"acc": "f16"},
        *({"batch": batch} for batch in (8, 64)),
        *({"bias": True, "act": act} for act in ACTIVATIONS if act != "none"),
        {"alpha": True, "beta": True},
        {"align": 2},
    )
    for one in plain:
        ranged = one.with_(m=Range(1, one.m_max))
        misaligned = [one.with_(lda=one.k + 1), one.with_(ldb=one.k + 1), one.with_(ldd=one.n + 1)]
        wanted = {*(one.with_(**kind) for kind in kinds), ranged, *misaligned}
        assert wanted <= set(gemms)
        assert len(wanted) == 20
