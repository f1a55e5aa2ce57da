"""Sentences on the knobs that remove bank conflicts, and on how far they were searched for."""

from __future__ import annotations

from collections.abc import Iterator

from tirgemm.analysis.memory_traffic import AccessReport
from tirgemm.service.explain.tables import duration, listed
from tirgemm.tuning.conflict_fixes import ConflictFixes

# The share of an estimate below which two are called alike.
_ALIKE = 1e-4


def conflict_fix_sentence(fixes: ConflictFixes, access: AccessReport) -> str:
    """A sentence, after a space, on what removes the conflicts of ``access``; empty where that was not asked."""
    fix = fixes.of(access)
    if fix is None:
        return ""
    if fix.knobs is None or fix.gain_us is None:
        return " No neighbouring config that was tried removes this."
    knobs = listed(f"{each.knob}={each.other} (not {each.kernel})" for each in fix.knobs)
    return f" {knobs} would remove it: {_gain(*fix.gain_us, fix.estimate_us)}."


def _gain(low: float, high: float, estimate_us: float) -> str:
    """A gain between two times, of a kernel that is estimated to take ``estimate_us``."""
    if high <= 0:
        return f"a loss of {duration(-high)} at least is predicted beside {duration(estimate_us)}"
    most = f"a gain of {duration(high)} at most is predicted beside {duration(estimate_us)}"
    if abs(low) < _ALIKE * estimate_us:
        return most
    least = f"{duration(low)} at least" if low > 0 else f"a loss of {duration(-low)} if nothing waits for these passes"
    return f"{most}, {least}"


def conflict_fix_notes(fixes: ConflictFixes) -> Iterator[str]:
    """What a prediction means, and what was tried."""
    if not fixes.fixes:
        return
    if any(fix.knobs is not None for fix in fixes.fixes):
        yield (
            "Predicted: the family's estimates of both configs, and at most the passes that are spared, one a clock of "
            "every SM; those cost nothing where something else takes longer."
        )
    counts = [f"{fixes.tried} of {fixes.neighbours} neighbouring configs were lowered and counted anew"]
    if fixes.hopeless:
        counts.append(f"{fixes.hopeless} are estimated to lose more than all conflicts cost")
    if fixes.untried:
        over = all(fix.knobs is not None for fix in fixes.fixes)
        counts.append(f"{fixes.untried} were left out, {'for these did' if over else 'for the search is short'}")
    yield f"Of the configs that differ in one knob, and in what the rules then need: {'; '.join(counts)}."
