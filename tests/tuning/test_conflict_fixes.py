"""Knobs that remove bank conflicts: found by counting again, bounded, told with what they should gain."""

from __future__ import annotations

import json
from functools import lru_cache

import pytest

from tests.analysis import handmade
from tests.analysis.memory_accesses import memory_of, memory_of_program
from tirgemm.analysis.explanation import Explanation
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.explain.conflict_fix_text import conflict_fix_notes, conflict_fix_sentence
from tirgemm.service.explain.gather import Report
from tirgemm.service.explain.report_text import sections
from tirgemm.tuning import conflict_fixes as module
from tirgemm.tuning import explain as explaining
from tirgemm.tuning.conflict_fixes import NO_FIXES, ConflictFix, ConflictFixes, access_key, conflict_fixes
from tirgemm.tuning.explain import chosen, explain, rolled_memory_of
from tirgemm.tuning.rivals import Difference

GEMM = Gemm.parse("256x256x256:f16:nt")
A100 = named_device("sm_80")


@lru_cache(maxsize=8)
def explained(family: str, knobs: str = "") -> Explanation:
    return explain(GEMM, chosen(GEMM, A100, family, knobs), A100, compiled=False)


@pytest.mark.parametrize(("family", "knobs", "cure"), [("mma", "shared=none", "shared"), ("wmma", "pad=0", "pad")])
def test_what_removes_a_conflict_does_so_when_counted_again(family: str, knobs: str, cure: str) -> None:
    explanation = explained(family, knobs)
    fixes = conflict_fixes(explanation, "sustained")
    assert {fix.operand for fix in fixes.fixes} >= {"a", "b"}
    for fix in fixes.fixes:
        assert fix.knobs is not None
        changes = {each.knob: each.other for each in fix.knobs if each.other is not None}
        if fix.op == "ldmatrix":
            assert cure in changes
        config = explanation.config.with_(**changes)
        again = memory_of(GEMM, config, A100, compiled=False)
        assert not [a for k in again for a in k.accesses if access_key(a) == access_key(fix) and a.conflicts]
        assert all(each.kernel == explanation.config[each.knob] for each in fix.knobs)
        predicted = family_named(family).predict_us(GEMM, config, A100, "sustained")
        assert fix.estimate_us + fix.slower_us == pytest.approx(predicted)
        assert fix.spared_us > 0
    assert 0 < fixes.tried <= module.MOST_TRIED


def test_estimates_of_a_range_are_of_the_m_at_which_it_is_explained() -> None:
    gemm, small = Gemm.parse("1..8192x136x72:f16:nt"), Gemm.parse("1..16x136x72:f16:nt")
    config = chosen(gemm, A100, "wmma", "pad=0")
    fixes = conflict_fixes(explain(gemm, config, A100, m=16, compiled=False), "sustained").fixes
    wmma = family_named("wmma")
    assert {fix.estimate_us for fix in fixes} == {wmma.predict_us(small, config, A100, "sustained")}
    told = [fix for fix in fixes if fix.knobs]
    assert told
    for fix in told:
        other = config.with_(**{each.knob: each.other for each in fix.knobs or () if each.other is not None})
        assert fix.estimate_us + fix.slower_us == pytest.approx(wmma.predict_us(small, other, A100, "sustained"))


@pytest.mark.parametrize(
    ("family", "text", "arch", "knobs"),
    [
        ("simt", "129x67x31:f32:nn", "sm_80", ""),
        ("simt", "1..300x513x255:bf16:nt", "sm_80", "pad=0"),
        ("mma", "1000x1000x520:f16:nn:bias", "sm_80", "shared=none"),
        ("wmma", "256x128x192:f16:tt:beta", "sm_80", "pad=0"),
        ("wgmma", "129x136x67:f16:nt", "sm_90a", ""),
    ],
)
def test_loops_tell_what_their_unrolled_copies_tell(family: str, text: str, arch: str, knobs: str) -> None:
    gemm, device = Gemm.parse(text), named_device(arch)
    config = chosen(gemm, device, family, knobs)
    rolled = rolled_memory_of(gemm, config, device)
    unrolled = memory_of(gemm, config, device, compiled=False)
    assert [kernel.totals for kernel in rolled] == [kernel.totals for kernel in unrolled]
    assert module._conflicts(a for k in rolled for a in k.accesses) == module._conflicts(
        a for k in unrolled for a in k.accesses
    )


def test_what_only_unrolled_copies_tell_is_told_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the elements of an integer array, which a loop computes, nothing is known while it is a loop."""
    program = handmade.program(
        'r = T.sblock_alloc_buffer((4,), "int32", scope="local")\n'
        "for i in T.unroll(4):\n    r[i] = tx * i\nfor i in T.unroll(4):\n    d[r[i]] = a[tx]"
    )
    monkeypatch.setattr(explaining, "_program", lambda *_: program)
    config = chosen(GEMM, A100, "simt")
    (rolled,) = rolled_memory_of(GEMM, config, A100)
    (unrolled,) = memory_of_program(program, GEMM, A100, compiled=False)
    assert rolled == unrolled
    assert not rolled.unknown
    assert rolled.totals["global_stores"].requests == 16


def test_a_fix_is_told_beside_the_conflict_in_the_report_and_the_document() -> None:
    explanation = explained("mma", "shared=none")
    report = Report(explanation, fixes=conflict_fixes(explanation, "sustained"))
    (shared,) = [section for section in sections(report) if section.topic == "shared"]
    (note,) = [note for note in shared.notes if note.startswith("[1]")]
    assert "shared=padded (not none) would remove it: a gain of " in note
    (searched,) = [note for note in shared.notes if "neighbouring configs were lowered and counted anew" in note]
    assert searched.endswith("were left out, for these did.")
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))["conflict_fixes"]
    low, high = document["fixes"][0]["gain_us"]
    assert low == 0 < high
    assert document["fixes"][0]["knobs"] == [{"knob": "shared", "kernel": "none", "other": "padded"}]
    assert document["neighbours"] == document["tried"] + document["hopeless"] + document["untried"]


def test_the_search_is_bounded_and_says_so() -> None:
    explanation = explained("simt")
    fixes = conflict_fixes(explanation, "sustained", most=1)
    assert (fixes.tried, [fix.knobs for fix in fixes.fixes]) == (1, [None, None])
    (told,) = conflict_fix_notes(fixes)
    assert "1 of " in told
    assert f"{fixes.untried} were left out, for the search is short" in told
    conflicting = next(a for a in explanation.main.memory.accesses if a.conflicts)
    assert conflict_fix_sentence(fixes, conflicting) == " No neighbouring config that was tried removes this."
    assert conflict_fix_sentence(NO_FIXES, conflicting) == ""


def test_a_neighbour_that_cannot_be_lowered_removes_nothing_and_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("an error of TVM's C++")

    monkeypatch.setattr(module, "rolled_memory_of", broken)
    fixes = conflict_fixes(explained("mma", "shared=none"), "sustained")
    assert fixes.tried == module.MOST_TRIED
    assert {fix.knobs for fix in fixes.fixes} == {None}


def test_nothing_is_lowered_where_nothing_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = explained("mma", "epilogue=direct")
    assert not [a for kernel in explanation.kernels for a in kernel.memory.accesses if a.conflicts]
    monkeypatch.setattr(module, "rolled_memory_of", None)
    assert conflict_fixes(explanation, "sustained") == NO_FIXES
    assert list(conflict_fix_notes(NO_FIXES)) == []


@pytest.mark.parametrize(
    ("slower_us", "spared_us", "says"),
    [
        (0.0, 4.0, "a gain of 4 us at most is predicted beside 100 us."),
        (-3.0, 4.0, "a gain of 7 us at most is predicted beside 100 us, 3 us at least."),
        (
            3.0,
            4.0,
            "a gain of 1 us at most is predicted beside 100 us, a loss of 3 us if nothing waits for these passes.",
        ),
        (5.0, 4.0, "a loss of 1 us at least is predicted beside 100 us."),
    ],
)
def test_what_is_predicted_is_told_with_both_its_ends(slower_us: float, spared_us: float, says: str) -> None:
    access = next(a for a in explained("simt").main.memory.accesses if a.conflicts)
    knobs = (Difference("pad", 0, 8),)
    fix = ConflictFix(access.buffer, access.operand, access.op, knobs, 100.0, slower_us, spared_us)
    assert conflict_fix_sentence(ConflictFixes((fix,)), access) == f" pad=8 (not 0) would remove it: {says}"
