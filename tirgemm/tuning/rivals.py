"""Summary of losing candidates: pruned by rule, failed, and the runner-up's differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tirgemm.config import Config, Value
from tirgemm.gemm import Regime
from tirgemm.status import Role
from tirgemm.tuning.records import SEARCHED, Candidate, KernelRecord, SampleSet, Status

_FAILURES = (Status.BUILD_FAILED, Status.WRONG, Status.TIMED_OUT, Status.CRASHED)


@dataclass(frozen=True, slots=True)
class PrunedBy:
    """What one rule rejected: ``count`` points of the space that the search met (None where only examples are known),
    and of one of them the rule's ``sentence`` and the ``config``."""

    rule: str
    count: int | None
    sentence: str
    config: Config | None


@dataclass(frozen=True, slots=True)
class Failure:
    """How many candidates ended with a ``status`` other than measured, and what is said of one of them."""

    status: Status
    count: int
    message: str
    config: Config


@dataclass(frozen=True, slots=True)
class Difference:
    """A knob in which two configs differ; None where a config does not have it."""

    knob: str
    kernel: Value | None
    other: Value | None


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The fastest of the others: its median beside the kernel's, both of one ``reason`` to measure (``selection``: in
    one interleaved run; ``search``: one after the other, comparable times)."""

    config: Config
    us: float
    kernel_us: float
    reason: str
    differences: tuple[Difference, ...]

    @property
    def behind(self) -> float:
        """By what share it is slower; negative where its median is lower (a tie goes to the simpler config)."""
        return self.us / self.kernel_us - 1


@dataclass(frozen=True, slots=True)
class Rivals:
    """What a kernel was chosen from. ``why``: the sentence of the selection; ``statuses``: candidates by status, pruned
    ones as far as they are recorded as examples."""

    regime: Regime
    role: Role
    portable: bool
    trials: int
    why: str
    statuses: tuple[tuple[str, int], ...]
    pruned: tuple[PrunedBy, ...]
    failures: tuple[Failure, ...]
    runner_up: RunnerUp | None

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        out = asdict(self) | {"statuses": dict(self.statuses)}
        for name, entries in (("pruned", self.pruned), ("failures", self.failures)):
            out[name] = [asdict(each) | {"config": _knobs(each.config)} for each in entries]
        if self.runner_up is not None:
            family = {"family": self.runner_up.config.family, "config": _knobs(self.runner_up.config)}
            out["runner_up"] = asdict(self.runner_up) | family | {"behind": self.runner_up.behind}
        return out


def rivals_of(record: KernelRecord, candidates: Sequence[Candidate]) -> Rivals:
    """The rivals of ``record`` among the ``candidates`` of its gemm, device and regime."""
    counts = Counter(candidate.status.value for candidate in candidates)
    return Rivals(
        record.regime,
        record.role,
        record.portable,
        record.trials,
        record.timings.reason,
        tuple(counts.most_common()),
        _pruned(record, candidates),
        tuple(_failures(candidates)),
        _runner_up(record, candidates),
    )


def _pruned(record: KernelRecord, candidates: Sequence[Candidate]) -> tuple[PrunedBy, ...]:
    counts = dict(record.timings.search.pruned) if record.timings.search else {}
    examples: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.status is Status.PRUNED:
            examples.setdefault(candidate.rule, candidate)
    rules = sorted({*counts, *examples}, key=lambda rule: (-counts.get(rule, 0), rule))
    return tuple(
        PrunedBy(rule, counts.get(rule), example.message if example else "", example.config if example else None)
        for rule in rules
        for example in [examples.get(rule)]
    )


def _failures(candidates: Sequence[Candidate]) -> list[Failure]:
    failures = []
    for status in _FAILURES:
        mine = [candidate for candidate in candidates if candidate.status is status]
        if mine:
            failures.append(Failure(status, len(mine), mine[0].message, mine[0].config))
    return failures


def _runner_up(record: KernelRecord, candidates: Sequence[Candidate]) -> RunnerUp | None:
    """The fastest other one, of those that were measured for the same reason as the kernel."""
    measured = [candidate for candidate in candidates if candidate.status is Status.MEASURED]
    kernel = next((c for c in measured if c.config.digest == record.config.digest), None)
    if kernel is None:
        return None
    for reason, reasons in (("selection", ("selection",)), ("search", SEARCHED)):
        own = _last(kernel, reasons)
        # A problem that is searched again is raced again, under another clock.
        run = own.conditions.get("at") if own and reason == "selection" else None
        others = [
            (last.comparable_us, c.config) for c in measured if c is not kernel and (last := _last(c, reasons, run))
        ]
        if own is not None and others:
            us, config = min(others, key=lambda pair: pair[0])
            return RunnerUp(config, us, own.comparable_us, reason, differences(record.config, config))
    return None


def _last(candidate: Candidate, reasons: tuple[str, ...], run: str | None = None) -> SampleSet | None:
    """The last sample set that was taken for one of ``reasons``, of the ``run`` that began then, where it is given."""
    mine = [s for s in candidate.sample_sets if s.reason in reasons and run in (None, s.conditions.get("at"))]
    return mine[-1] if mine else None


def differences(kernel: Config, other: Config) -> tuple[Difference, ...]:
    """The knobs in which two configs differ, the family first where that does."""
    mine, theirs = dict(kernel.knobs), dict(other.knobs)
    family_differences = [Difference("family", kernel.family, other.family)] if kernel.family != other.family else []
    return (
        *family_differences,
        *(Difference(k, mine.get(k), theirs.get(k)) for k in {**mine, **theirs} if mine.get(k) != theirs.get(k)),
    )


def _knobs(config: Config | None) -> dict[str, Value] | None:
    return None if config is None else dict(config.knobs)
