"""Kernels of a set: each certified and timed for its part of the range, all of them packed and stored as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tirgemm.artifact import Trust, read
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families import is_valid
from tirgemm.families.choice import defaults_of
from tirgemm.gemm import Gemm, Range
from tirgemm.status import Role
from tirgemm.timings import MemberTiming, SearchSummary, Timings
from tirgemm.tuning.finish import Finalist, FinishPlan, built_finalists, certified, mark_failed, reported_timings
from tirgemm.tuning.kernel_set.partition import Segment, borders
from tirgemm.tuning.records import Certificate, KernelRecord
from tirgemm.tuning.records.row_signatures import RowsDiffer, row_signature
from tirgemm.tuning.tuning_task import TuningTask
from tirgemm.tuning.workbench import SetMember

# What a set may lose at a size that was searched, against the fastest there.
TOLERANCE = 0.03
# The number of sets of which some members give rows other bits at which it ends: then what is stored is at fault.
MOST_CUTS = 4


@dataclass(frozen=True, slots=True)
class SetPart:
    """A part of a range of m, as a problem of its own, and the config that serves it."""

    gemm: Gemm
    config: Config


def valid_parts(
    gemm: Gemm,
    device: Device,
    problems: Sequence[Gemm],
    cut: Callable[..., list[Segment]],
    times_at: Callable[[int], Mapping[Config, float]] = lambda _: {},
    has_failed: Callable[[Gemm, Config], bool] = lambda *_: False,
) -> list[SetPart]:
    """The parts of a problem's range of m, ascending, by the segments of ``problems`` that ``cut`` makes without those
    ``refused`` and ``borders`` by ``times_at``: valid ones, not failed; none where ``cut`` raises InvalidRequest."""
    assert isinstance(gemm.m, Range)
    refused: set[tuple[int, int, Config]] = set()
    while True:
        try:
            segments = cut(refused=refused)
        except InvalidRequest:
            return []
        ranges = borders(gemm.m, [problem.m_max for problem in problems], segments, times_at)
        parts = {s: SetPart(gemm.with_(m=m), s.config) for m, s in zip(ranges, segments, strict=True)}
        # A part of one m is a problem with a fixed m, which may have another space.
        wrong = {s for s, p in parts.items() if has_failed(p.gemm, p.config) or not is_valid(p.gemm, p.config, device)}
        if not wrong:
            return [*parts.values()]
        refused |= {(s.first, s.last, s.config) for s in wrong}


@dataclass(frozen=True)
class Member:
    """A kernel for a part of the range, or of shipped records for a problem, with its evidence and its times."""

    gemm: Gemm
    finalist: Finalist
    certificate: Certificate
    timings: Timings


def built_member(part: TuningTask, segment: Segment, summary: SearchSummary, plan: FinishPlan) -> Member:
    """The segment's config as the kernel of ``part``, certified and timed beside that part's default. Raises what ends
    it."""
    with part.workbench.waits_told(part.tell_wait):
        default = _default(part)
        finalists = built_finalists(part, list(dict.fromkeys([segment.config, *([default] if default else [])])))
        winner = next((f for f in finalists if f.config == segment.config), None)
        if winner is None:
            # Built once more, alone: the future raises why it does not.
            part.evaluator.built(part.workbench.build(part.gemm, segment.config))
            (winner,) = built_finalists(part, [segment.config])
        beside = next((f for f in finalists if f.config == default), None)
        if beside is not None and beside.kernel == winner.kernel:
            beside = winner  # another config that is the same kernel is no faster than itself
        evidence = certified(part, winner, beside, plan, TOLERANCE)
        reason = evidence.replaced or (
            f"at most {segment.loss - 1:.1%} behind the fastest at the sizes compared, and at those between by races "
            "or estimates"
        )
        timings = reported_timings(part, beside, evidence, f"serves m = {part.gemm.m}: {reason}", summary, plan)
    return Member(part.gemm, evidence.finalist, evidence.certificate, timings)


def _default(part: TuningTask) -> Config | None:
    """The fastest default of the part's families, of those that were measured."""
    defaults = defaults_of(part.families, part.gemm, part.device, part.regime).values()
    return next((config for config in part.measured() if config in defaults), None)


def set_record(tuning: TuningTask, members: Sequence[Member], trials: int, role: Role = "tuned") -> KernelRecord:
    """The members packed, signed and stored as the answer; one alone is a kernel like any other. Raises RowsDiffer
    where they are invariant and give a row other bits than one another, or than what is stored."""
    last, evaluator = members[-1], tuning.evaluator
    if len(members) == 1:
        return evaluator.store_kernel(
            last.finalist.config, last.finalist.binary, role, last.certificate, last.timings, trials
        )
    timings = replace(last.timings, members=tuple(_timing(tuning, member) for member in members))
    package = tuning.workbench.package_set(
        tuning.gemm,
        [SetMember(m.gemm, m.finalist.config, m.finalist.binary, m.certificate.to_json(), m.timings) for m in members],
        timings,
        (tuning.regime, role),
    )
    joined = read(package, Trust.of_signer(tuning.workbench.signer)).manifest.certificate
    assert joined is not None
    return evaluator.store_package(package, last.finalist.config, role, Certificate.from_json(joined), timings, trials)


def mark_differing(tuning: TuningTask, members: Sequence[Member], error: RowsDiffer) -> set[Config]:
    """Record members that do not give a row the expected bits as wrong; their configs. Raises ``error`` where there are
    none."""
    odd = [member for member in members if error.expected and row_signature(member.certificate) != error.expected]
    if not odd:
        raise error
    for member in odd:
        mark_failed(tuning, member.finalist.config, error, member.gemm)
    return {member.finalist.config for member in odd}


def _timing(tuning: TuningTask, member: Member) -> MemberTiming:
    timing, config = member.timings.of(tuning.regime), member.finalist.config
    return MemberTiming(
        str(member.gemm.m),
        config.family,
        str(config),
        config.digest,
        member.certificate.kernel_sha256,
        timing.median_us if timing else None,
    )
