"""Two artifacts side by side: the knobs in which they differ, their times with intervals, their machine code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tirgemm.artifact import Trust
from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, InvalidRequest, UntrustedArtifact
from tirgemm.gemm import Gemm, Regime
from tirgemm.service.views.artifact_file import OpenedArtifact
from tirgemm.service.views.code_figures import CodeFigures, code_figures
from tirgemm.timings import Timings
from tirgemm.tuning.intervals import Interval, median_interval, ratio_interval
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.records.comparable_times import by_stage
from tirgemm.tuning.rivals import Difference, differences

MIN_SAMPLES = {"sustained": 24, "isolated": 50}
# Why the times of two kernels do not tell which is faster.
OTHER_PROBLEM, OTHER_DEVICE = "they solve different problems", "they are for different devices"
_ONE_KERNEL = "they are one kernel"


@dataclass(frozen=True)
class ComparedTime:
    """A median in microseconds a call. Without raw ``samples`` it is the manifest's, and has no interval, as a shipped
    median has none, which stands for its samples."""

    us: float
    taken: str
    samples: SampleSet | None = None

    @property
    def interval(self) -> Interval | None:
        samples = self.samples.samples_us if self.samples is not None else ()
        return median_interval(samples) if len(samples) > 1 else None

    def to_json(self) -> dict[str, Any]:
        conditions = self.samples.conditions if self.samples is not None else {}
        return {
            "median_us": self.us,
            "interval": self.interval.to_json() if self.interval else None,
            "taken": self.taken,
            "samples_us": list(self.samples.samples_us) if self.samples else None,
            "conditions": conditions,
        }


class SampledKernel(Protocol):
    """A kernel as far as its speed goes: its raw samples, and the timings of its manifest or record."""

    @property
    def samples(self) -> tuple[SampleSet, ...]: ...

    @property
    def timings(self) -> Timings: ...


@dataclass(frozen=True)
class PairedTimes:
    """Times of two kernels in one regime. ``same_run``: both ran interleaved. ``not_comparable``: why they do not tell
    which is faster, in words; empty where they do. Of two devices they have a ratio all the same."""

    times: tuple[ComparedTime | None, ComparedTime | None]
    same_run: bool
    not_comparable: str

    @classmethod
    def of(cls, a: SampledKernel, b: SampledKernel, regime: Regime, not_comparable: str) -> PairedTimes:
        """What is recorded of both: of one interleaved run where there is one."""
        pair = _one_run(a, b, regime) if not not_comparable else None
        if pair is not None:
            return cls((_time(pair[0]), _time(pair[1])), True, not_comparable)
        return cls((recorded_time(a, regime), recorded_time(b, regime)), False, not_comparable)

    @property
    def ratio(self) -> float | None:
        """How many times as long the second takes; above 1, the first is faster."""
        one, two = self.times
        return two.us / one.us if one and two and self.not_comparable in ("", OTHER_DEVICE) else None

    @property
    def ratio_interval(self) -> Interval | None:
        one, two = self.times
        if self.ratio is None or not (one and two and one.samples and two.samples and one.interval and two.interval):
            return None
        return ratio_interval(two.samples.samples_us, one.samples.samples_us, paired=self.same_run)


def verdict(timing: PairedTimes, a: str, b: str) -> Iterator[str]:
    """What the times of the kernels that are called ``a`` and ``b`` say of which is faster, and how far that can be
    believed, in sentences."""
    ratio, interval = timing.ratio, timing.ratio_interval
    if timing.not_comparable and ratio is not None:
        yield (
            f"{b} takes {ratio:.3f} times as long as {a}, but {timing.not_comparable}: that compares each device with "
            "its kernel, not one kernel with the other."
        )
        return
    if timing.not_comparable:
        yield f"The times of {a} and {b} say nothing of which is faster: {timing.not_comparable}."
        return
    if ratio is None:
        yield f"There are not two times to compare of {a} and {b}: tirgemm compare --measure takes them, on the device."
        return
    spread = f" (95 %: {interval.low:.3f} to {interval.high:.3f})" if interval else ""
    words = f"{b} takes {ratio:.3f} times as long as {a}{spread}"
    if interval is None:
        yield f"{words}; without both kernels' samples in the data folder nobody knows how certain that is."
    elif interval.low > 1 or interval.high < 1:
        yield f"{words}: {a if interval.low > 1 else b} is faster."
    else:
        yield f"{words}: these samples do not tell which is faster."
    if not timing.same_run:
        yield (
            "They are of different runs, at which the machine may have been in different states: "
            "tirgemm compare --measure races both in one."
        )


def not_comparable(one: tuple[Gemm, Device, str], two: tuple[Gemm, Device, str]) -> str:
    """Why the times of kernels of these problems, devices and hashes do not tell which is faster; empty where they
    do."""
    if one[0] != two[0]:
        return OTHER_PROBLEM
    if one[1].key != two[1].key:
        return OTHER_DEVICE
    return _ONE_KERNEL if one[2] == two[2] else ""


@dataclass(frozen=True)
class Comparison:
    """``a`` and ``b`` with their times in ``regime``."""

    a: OpenedArtifact
    b: OpenedArtifact
    regime: Regime
    timing: PairedTimes

    @cached_property
    def code(self) -> tuple[CodeFigures, CodeFigures]:
        """Figures of the machine code of both."""
        return code_figures(self.a), code_figures(self.b)

    @property
    def differences(self) -> tuple[Difference, ...]:
        return differences(self.a.package.manifest.config, self.b.package.manifest.config)

    @property
    def same_kernel(self) -> bool:
        return self.a.package.manifest.kernel_sha256 == self.b.package.manifest.kernel_sha256

    def to_json(self) -> dict[str, Any]:
        timing, interval = self.timing, self.timing.ratio_interval
        return {
            "regime": self.regime,
            "same_kernel": self.same_kernel,
            "same_run": timing.same_run,
            "not_comparable": timing.not_comparable or None,
            "ratio": timing.ratio,
            "ratio_interval": interval.to_json() if interval else None,
            "differences": [asdict(each) for each in self.differences],
            **{
                name: _side(opened) | {"time": time.to_json() if time else None, "code": code.to_json()}
                for name, opened, time, code in zip("ab", (self.a, self.b), timing.times, self.code, strict=True)
            },
        }


def compare(a: OpenedArtifact, b: OpenedArtifact, regime: Regime) -> Comparison:
    """What is recorded of both. Raises InvalidRequest for an unknown regime."""
    one, two = ((m.gemm, m.device, m.kernel_sha256) for m in (a.package.manifest, b.package.manifest))
    return Comparison(a, b, regime, PairedTimes.of(a, b, regime, not_comparable(one, two)))


def compare_now(
    a: OpenedArtifact, b: OpenedArtifact, regime: Regime, seconds: float, lock_dir: Path | None
) -> Comparison:
    """The same, of a race on this machine: half of it with the buffers swapped.

    Raises UntrustedArtifact, InvalidRequest for kernels of different problems, DeviceUnavailable, MeasurementFailed.
    """
    comparison = compare(a, b, regime)
    if why := comparison.timing.not_comparable:
        raise InvalidRequest(f"{a.where} and {b.where} are not raced: {why}")
    device = device_here((a, b))
    one, two = (
        ComparedTime(taken.median_us, "here and now, interleaved", taken)
        for taken in timed_now({"a": a, "b": b}, device, regime, seconds, lock_dir)
    )
    return Comparison(a, b, regime, PairedTimes((one, two), True, ""))


def device_here(kernels: Sequence[OpenedArtifact], otherwise: str = "") -> Device:
    """The device of this machine that artifacts of one device are for, and may be run on.

    Raises UntrustedArtifact, and DeviceUnavailable, which says what to do ``otherwise``.
    """
    from tirgemm.detect import devices

    for opened in kernels:
        if not opened.trusted:
            key = opened.package.key
            raise UntrustedArtifact(
                f"{opened.where} would be run, and its key {key} is not trusted here: --trust {key}"
            )
    wanted, here = kernels[0].package.manifest.device.key, {device.key: device for device in devices()}
    if wanted not in here:
        listed = ", ".join(here)
        raise DeviceUnavailable(f"the kernel is for {wanted}, which is not on this machine; it has {listed}{otherwise}")
    return here[wanted]


def timed_now(
    kernels: Mapping[str, OpenedArtifact], device: Device, regime: Regime, seconds: float, lock_dir: Path | None
) -> list[SampleSet]:
    """Samples of a race of artifacts here and now: half of it with the buffers swapped. Raises MeasurementFailed."""
    from tirgemm.tuning.measure import Measurer
    from tirgemm.tuning.measure.race import Race, joined
    from tirgemm.tuning.measure.requests import RaceOptions

    trust = Trust.of(*(opened.package.key for opened in kernels.values()))
    entries = {name: opened.data for name, opened in kernels.items()}
    half = RaceOptions(regime, MIN_SAMPLES[regime], seconds / 2)
    with Measurer(device, trust, lock_dir=lock_dir) as measurer:
        result = joined(*(Race(measurer, replace(half, swap=swap)).run(entries, ()) for swap in (False, True)))
    return [result.of(name) for name in entries]


def _one_run(a: SampledKernel, b: SampledKernel, regime: Regime) -> tuple[SampleSet, SampleSet] | None:
    """The last samples of both that were taken in one interleaved run, where there are such."""
    for one in reversed(by_stage(a.samples, regime)):
        for two in reversed(by_stage(b.samples, regime)):
            if (
                one.reason == two.reason
                and one.reason in ("selection", "report")
                and one.conditions == two.conditions
                and one.conditions.get("at")
            ):
                return one, two
    return None


def recorded_time(kernel: SampledKernel, regime: Regime) -> ComparedTime | None:
    """The best recorded time of a kernel in ``regime``: of its samples, else its manifest's."""
    mine = by_stage(kernel.samples, regime)
    return _time(mine[-1]) if mine else manifest_time(kernel, regime)


def manifest_time(kernel: SampledKernel, regime: Regime) -> ComparedTime | None:
    """What a kernel's manifest says of its time in ``regime``, with the samples of that run where they are known."""
    timing = kernel.timings.of(regime)
    if timing is None:
        return None
    at = timing.conditions.get("at")
    of_run = [samples for samples in by_stage(kernel.samples, regime) if at and samples.conditions.get("at") == at]
    said = f"as its manifest says{_when(timing.conditions)}"
    return ComparedTime(float(timing.median_us), said, of_run[-1] if of_run else None)


def _time(samples: SampleSet) -> ComparedTime:
    stages = {
        "selection": "beside the other finalists",
        "report": "beside the default, after it was selected",
        "other_regime": "after it was selected",
    }
    stage = stages.get(samples.reason, "in the search")
    return ComparedTime(samples.median_us, f"{stage}{_when(samples.conditions)}", samples)


def _when(conditions: Mapping[str, Any]) -> str:
    """``, 2026-11-23 10:00:00 UTC``; empty where that is not known."""
    at = str(conditions.get("at") or "")
    return f", {at[:19].replace('T', ' ')} UTC" if at else ""


def _side(opened: OpenedArtifact) -> dict[str, Any]:
    manifest = opened.package.manifest
    return {
        "from": opened.where,
        "gemm": str(manifest.gemm),
        "device": manifest.device.key,
        "signer": opened.package.key,
        "trusted": opened.trusted,
        "family": manifest.config.family,
        "config": dict(manifest.config.knobs),
        "kernel_sha256": manifest.kernel_sha256,
        "artifact_sha256": opened.package.sha256,
        "tirgemm": manifest.tirgemm,
        "flags": list(manifest.flags),
        "certified": not manifest.certificate_fault,
    }
