"""Inputs of a report: a config of a problem, or a stored kernel with the candidates that it was chosen from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tirgemm.analysis.explanation import Explanation
from tirgemm.analysis.roofline import MeasuredTime, Measurements
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm, Regime
from tirgemm.progress import role_name
from tirgemm.service.explain.stored_kernel import StoredKernelInput
from tirgemm.tuning.conflict_fixes import NO_FIXES, ConflictFixes, conflict_fixes
from tirgemm.tuning.explain import explain
from tirgemm.tuning.records import CandidateKey, KernelRecord
from tirgemm.tuning.records.comparable_times import by_stage
from tirgemm.tuning.records.store import Store
from tirgemm.tuning.rivals import Rivals, rivals_of


@dataclass(frozen=True, slots=True)
class Report:
    """An explanation, with what would remove its conflicts; of a kernel of the store its id and its ``rivals`` too."""

    explanation: Explanation
    kernel_id: str | None = None
    rivals: Rivals | None = None
    fixes: ConflictFixes = NO_FIXES

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        rivals = self.rivals.to_json() if self.rivals else None
        beside = {"conflict_fixes": self.fixes.to_json(), "rivals": rivals}
        return {"kernel": self.kernel_id} | self.explanation.to_json() | beside


def explained(stored: StoredKernelInput) -> Report:
    """The report of a kernel. Raises what ``explain`` raises."""
    record = stored.record
    package = stored.package()
    # Of a set the kernel is explained whose config the record has: that of the largest m.
    explanation = explain(
        record.gemm if package is None else package.manifest.kernels[-1].gemm,
        record.config,
        record.device,
        regime=record.regime,
        package=package,
        measured=Measurements(time_of(record), stored.rates),
    )
    if package is None and explanation.compiled:
        why = "not stored" if stored.artifact is None else "damaged or signed with a key that is not trusted here"
        explanation = replace(explanation, code=f"{explanation.code}: the artifact is {why}")
    fixes = conflict_fixes(explanation, record.regime)
    return Report(explanation, record.id, rivals_of(record, stored.candidates), fixes)


def time_of(record: KernelRecord) -> MeasuredTime | None:
    """The kernel's measured time in its regime."""
    timing = record.timings.of(record.regime)
    if timing is None:
        return None
    taken = f"the {role_name(record.role)} kernel's median, {record.regime}"
    return MeasuredTime(float(timing.median_us), taken, _clock(timing.conditions))


def _clock(conditions: Mapping[str, Any]) -> int | None:
    return int(conditions["clock_mhz"]) if conditions.get("clock_mhz") else None


def config_time(store: Store, gemm: Gemm, config: Config, device: Device, regime: Regime) -> MeasuredTime | None:
    """The time of a config in ``regime`` that says most, of those that ``store`` has."""
    candidate = store.candidate(CandidateKey(gemm, device.key, regime, config.digest))
    if candidate is None:
        return None
    mine = by_stage((each for each in candidate.sample_sets if each.reason != "other_regime"), regime)
    if not mine:
        return None
    return MeasuredTime(mine[-1].median_us, f"recorded here, {regime}, {mine[-1].reason}", _clock(mine[-1].conditions))
