"""Tables of the candidates that lost, by reason."""

from __future__ import annotations

from tirgemm.config import Value
from tirgemm.progress import role_description
from tirgemm.service.explain.tables import Section, count, duration, row, share, table
from tirgemm.tuning.rivals import Rivals, RunnerUp


def rivals(known: Rivals) -> tuple[Section, ...]:
    """What a kernel was chosen from: its choice, the runner-up, what the rules pruned, what failed."""
    statuses = ", ".join(f"{number} {status}" for status, number in known.statuses) or "none recorded"
    role = role_description(known.role, portable=known.portable)
    lines = [f"role: {role}, {known.regime}", f"trials: {known.trials}", f"candidates: {statuses}"]
    if known.why:
        lines.append(f"chosen: {known.why}")
    rows = [row(each.rule, "" if each.count is None else count(each.count), each.sentence) for each in known.pruned]
    failures = [f"{each.count} {each.status}: {each.message or 'no reason was recorded'}" for each in known.failures]
    notes = (
        ["Counts are of the points of the space that the search met; the sentence is of one of them."] if rows else []
    )
    heads = ("rule", ">pruned", "why, of one of them")
    return (
        Section("Why the others lost", tuple(lines)),
        *([_runner_up(known.runner_up)] if known.runner_up else []),
        table("What the rules pruned", heads, rows, notes=notes),
        Section("What failed", tuple(failures)),
    )


def _runner_up(other: RunnerUp) -> Section:
    how = "in one interleaved run" if other.reason == "selection" else "one after the other, in the search"
    behind = (
        f"{share(abs(other.behind))} {'slower' if other.behind >= 0 else 'faster: a tie goes to the simpler config'}"
    )
    lines = (f"times: {duration(other.us)} beside the kernel's {duration(other.kernel_us)}, {how}: {behind}",)
    rows = [row(each.knob, _shown(each.kernel), _shown(each.other)) for each in other.differences]
    return table(f"The runner-up, {other.config.family}", ("knob", "kernel", "runner-up"), rows, lines)


def _shown(value: Value | None) -> str:
    return "-" if value is None else str(value)
