"""Tuning records, as frozen values: samples, candidates, certificates, kernels."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm, Regime
from tirgemm.status import Role
from tirgemm.status import Status as Status
from tirgemm.timings import SearchSummary, Timings

# Why samples were taken. Those of ``selection`` choose a kernel, those of ``report`` are its figures: taken afterwards,
# because a choice flatters the samples that it was made by.
Reason = Literal["search", "selection", "report", "noise", "other_regime", "smaller_m"]
# The search's own: of these a candidate's time is taken while it goes on.
SEARCHED: tuple[Reason, ...] = ("search", "noise")
# Of a kernel for a range of m at a smaller m than its largest, ``conditions["m"]``: by the search of a kernel set.
SMALLER_M: Reason = "smaller_m"
# The baseline of a search's samples that makes them comparable: one kernel of the problem, beside every other.
YARDSTICK = "yardstick"


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Raw samples of one measurement in microseconds per call, why it was taken and what it was taken under.

    ``baselines`` holds the samples of what ran interleaved with it in the same run, by name (``numpy_f32``,
    ``torch.matmul``, ``default``, ``yardstick``; at a smaller m others by their configs' digests, ``races_below``).
    ``conditions``: clock_mhz, power_w, throttled, regime, m,
    fingerprint, at (UTC); beside a yardstick its config's digest and its time in the records (``yardstick``,
    ``yardstick_us``).
    """

    samples_us: tuple[float, ...]
    reason: Reason = "search"
    baselines: dict[str, tuple[float, ...]] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def comparable_us(self) -> float:
        """The median; beside a yardstick times ``conditions["yardstick_us"]`` over the yardstick's own median here."""
        beside, recorded = self.baselines.get(YARDSTICK), self.conditions.get("yardstick_us")
        return self.median_us * recorded / statistics.median(beside) if beside and recorded else self.median_us

    @property
    def began(self) -> str:
        """When the run of it was, ISO 8601 in UTC; empty where nothing says."""
        return str(self.conditions.get("at", ""))

    def beside(self, name: str, samples_us: tuple[float, ...]) -> SampleSet:
        """The same, with samples of the same run as those of the baseline ``name``."""
        return replace(self, baselines=self.baselines | {name: samples_us})

    def to_json(self) -> dict[str, Any]:
        return {
            "samples_us": list(self.samples_us),
            "reason": self.reason,
            "baselines": {name: list(samples) for name, samples in self.baselines.items()},
            "conditions": self.conditions,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SampleSet:
        baselines = {name: tuple(samples) for name, samples in value["baselines"].items()}
        return cls(tuple(value["samples_us"]), value["reason"], baselines, dict(value["conditions"]))


def latest_us(search_sets: Sequence[SampleSet]) -> float | None:
    """``Candidate.search_us`` by its search's own sample sets: what is merged in later may be of earlier clocks."""
    latest = max(reversed(search_sets), key=lambda samples: samples.began, default=None)
    return latest.comparable_us if latest else None


@dataclass(frozen=True, slots=True)
class CandidateKey:
    """What a candidate is the only one of: a config for a gemm on a device class in a regime."""

    gemm: Gemm
    device_key: str
    regime: Regime
    config_digest: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config of a family for a gemm on a device in a regime, with its status: the unit of the search.

    ``rule`` names the rule that pruned it; ``message`` is for a person; ``error`` is the largest error over its
    bound that verification saw; ``trace`` is a MetaSchedule trace as JSON, which older versions wrote;
    ``source_sha256`` hashes the generated source, ``binary_sha256`` the cubin or shared object, ``kernel_sha256`` the
    manifest's kernel part (which names the binary by its hash): what is measured and what is served have the same.
    ``attempt`` counts from 1.
    """

    gemm: Gemm
    device_key: str
    regime: Regime
    config: Config
    status: Status
    message: str = ""
    rule: str = ""
    error: float | None = None
    trace: Any = None
    source_sha256: str = ""
    binary_sha256: str = ""
    kernel_sha256: str = ""
    attempt: int = 1
    predicted_us: float | None = None
    sample_sets: tuple[SampleSet, ...] = ()

    @property
    def key(self) -> CandidateKey:
        return CandidateKey(self.gemm, self.device_key, self.regime, self.config.digest)

    @property
    def search_sets(self) -> list[SampleSet]:
        """The search's own sample sets."""
        return [samples for samples in self.sample_sets if samples.reason in SEARCHED]

    @property
    def search_us(self) -> float | None:
        """``comparable_us`` of the latest of these, of one time the last, or None where it was not measured."""
        return latest_us(self.search_sets)

    def with_(self, **changes: Any) -> Candidate:
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The evidence that a kernel is right: each test with its bound and what was found, for one kernel_sha256."""

    kernel_sha256: str
    passed: bool
    tests: tuple[dict[str, Any], ...]
    reference: str
    environment: dict[str, str] = field(default_factory=dict)
    at: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"tests": list(self.tests)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Certificate:
        return cls(**value | {"tests": tuple(value["tests"])})


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """The selected, certified candidate with its artifact: what the database answers with.

    ``role`` is ``fallback`` for the default served ahead of the search, ``tuned`` for the selected one, and
    ``unverified`` for a cross-compiled build. ``timings`` is the summary that people read. ``artifact_sha256``
    addresses the blob. ``trials`` is what the search spent. A ``pinned`` one answers before all others of its problem,
    device and regime.
    """

    gemm: Gemm
    device: Device
    regime: Regime
    role: Role
    config: Config
    kernel_sha256: str
    artifact_sha256: str
    artifact_bytes: int
    certificate: Certificate | None
    timings: Timings
    trials: int = 0
    created_at: str = ""
    id: str = ""
    pinned: bool = False

    @property
    def search(self) -> SearchSummary | None:
        """What the search behind it spent; None where nothing says."""
        return self.timings.search

    @property
    def interrupted(self) -> bool:
        """Whether the search was ended by its user before its budget was spent."""
        return self.timings.ended == "interrupted"

    @property
    def shipped(self) -> bool:
        """Whether its config was shipped, or won against those that were, with no search here."""
        return self.timings.ended == "shipped"

    @property
    def portable(self) -> bool:
        """Whether those configs were measured on another device, driver or TVM than this kernel's."""
        search = self.timings.search
        return self.shipped and not (search and search.shipped and search.shipped.same)

    @property
    def other_device(self) -> str | None:
        """The class of the other device whose shipped configs it was chosen from, for those alone who ask for such
        kernels; None where it was not. Old records do not say so of another class, which shows."""
        shipped = self.timings.search.shipped if self.timings.search is not None else None
        other = shipped is not None and (shipped.other_device or shipped.device != self.device.key)
        return shipped.device if shipped is not None and other else None
