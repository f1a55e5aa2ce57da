"""Tables of the candidates that lost, by reason."""

from __future__ import annotations

from tirgemm.config import Value
from tirgemm.progress import role_words
from tirgemm.service.explain.tables import Section, count, duration, row, share, table
from tirgemm.tuning.rivals import Rivals, RunnerUp


def rivals(found: Rivals) -> tuple[Section, ...]:
    """What a kernel was chosen from: its choice, the runner-up, what the rules pruned, what failed."""
    statuses = ", ".join(f"{number} {status}" for status, number in found.statuses) or "none recorded"
    role = role_words(found.role, portable=found.portable)
    lines = [f"role: {role}, {found.regime}", f"trials: {found.trials}", f"candidates: {statuses}"]
    if found.why:
        lines.append(f"chosen: {found.why}")
    rows = [row(each.rule, "" if each.count is None else count(each.count), each.sentence) for each in found.pruned]
    failures = [f"{each.count} {each.status}: {each.message or 'no reason was recorded'}" for each in found.failures]
    notes = (
        ["Counts are of the points of the space that the search met; the sentence is of one of them."] if rows else []
    )
    heads = ("rule", ">pruned", "why, of one of them")
    return (
        Section("Why the others lost", tuple(lines)),
        *([_runner_up(found.runner_up)] if found.runner_up else []),
        table("What the rules pruned", heads, rows, notes=notes),
        Section("What failed", tuple(failures)),
    )


def _runner_up(found: RunnerUp) -> Section:
    how = "in one interleaved run" if found.reason == "selection" else "one after the other, in the search"
    behind = (
        f"{share(abs(found.behind))} {'slower' if found.behind >= 0 else 'faster: a tie goes to the simpler config'}"
    )
    lines = (f"times: {duration(found.us)} beside the kernel's {duration(found.kernel_us)}, {how}: {behind}",)
    rows = [row(each.knob, _shown(each.kernel), _shown(each.other)) for each in found.differences]
    return table(f"The runner-up, {found.config.family}", ("knob", "kernel", "runner-up"), rows, lines)


def _shown(value: Value | None) -> str:
    return "-" if value is None else str(value)
