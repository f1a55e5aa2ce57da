"""Reproduction of a kernel: built again from its config, its hashes compared, measured beside its recorded figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tirgemm.artifact import Manifest, Trust, read
from tirgemm.detect import devices, environment
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Regime
from tirgemm.service.views.artifact_file import OpenedArtifact
from tirgemm.service.views.comparison import device_here, manifest_time, recorded_time, timed_now
from tirgemm.tuning.intervals import Interval, median_interval
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench

# The share by which runs of one kernel on different days may differ: clocks and heat are never quite the same.
SPREAD = 0.05


@dataclass(frozen=True)
class RebuiltKernel:
    """A kernel, or a member of a set, as it was and as it is built now."""

    gemm: str
    config: str
    kernel_sha256: str
    binary_sha256: str
    rebuilt_kernel_sha256: str
    rebuilt_binary_sha256: str

    @property
    def same(self) -> bool:
        return self.rebuilt_kernel_sha256 == self.kernel_sha256


@dataclass(frozen=True)
class Figure:
    """A recorded time in microseconds with its interval, where its samples are here, and the one measured now.
    ``taken``: in which run it was recorded, in words.

    It holds where the kernel is not slower than recorded, by more than ``spread`` beyond both intervals.
    """

    regime: Regime
    recorded_us: float
    recorded: Interval | None
    taken: str
    measured: Interval
    spread: float

    @property
    def holds(self) -> bool:
        slowest = max(self.recorded_us, self.recorded.high if self.recorded is not None else 0.0)
        return self.measured.low <= slowest * (1 + self.spread)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.measured.value / self.recorded_us, "holds": self.holds}


@dataclass(frozen=True)
class Reproduction:
    """What came of building and measuring a kernel again. ``figure`` is None where nothing was to be measured; the
    environments are the certificate's and this one."""

    where: str
    kernels: tuple[RebuiltKernel, ...]
    figure: Figure | None
    environment: dict[str, str]
    environment_now: dict[str, str]

    @property
    def same(self) -> bool:
        return all(kernel.same for kernel in self.kernels)

    @property
    def reproduced(self) -> bool:
        return self.same and (self.figure is None or self.figure.holds)

    def to_json(self) -> dict[str, Any]:
        return {
            "from": self.where,
            "reproduced": self.reproduced,
            "same": self.same,
            "kernels": [asdict(kernel) | {"same": kernel.same} for kernel in self.kernels],
            "figure": self.figure.to_json() if self.figure is not None else None,
            "environment": self.environment,
            "environment_now": self.environment_now,
        }


def reproduce(
    opened: OpenedArtifact,
    *,
    regime: Regime | None = None,
    measure: bool = True,
    seconds: float = 4.0,
    spread: float = SPREAD,
    lock_dir: Path | None = None,
) -> Reproduction:
    """Build a kernel again, and measure the artifact in ``regime``, by default the one that it was selected in. It is
    held to the time that its manifest says, where that has none to the one that the data folder knows.

    Raises UntrustedArtifact, DeviceUnavailable where it is to be measured and its device is not here, InvalidRequest
    where no figure is recorded, BuildFailed, MeasurementFailed.
    """
    manifest = opened.package.manifest
    asked = regime or manifest.regime or "sustained"
    recorded = manifest_time(opened, asked) or recorded_time(opened, asked)
    if measure and recorded is None:
        raise InvalidRequest(f"{opened.where} has no recorded time in the regime {asked}: --no-measure builds alone")
    if measure:
        device = device_here((opened,), ": --no-measure builds alone")
    else:
        device = next((here for here in devices() if here.key == manifest.device.key), manifest.device)
    kernels = _rebuilt(manifest, device, lock_dir)
    figure = None
    if measure and recorded is not None:
        (now,) = timed_now({"kernel": opened}, device, asked, seconds, lock_dir)
        measured = median_interval(now.samples_us)
        figure = Figure(asked, recorded.us, recorded.interval, recorded.taken, measured, spread)
    said = (manifest.certificate or {}).get("environment")
    then = {str(name): str(value) for name, value in said.items()} if isinstance(said, dict) else {}
    return Reproduction(opened.where, kernels, figure, then, dict(environment()))


def _rebuilt(manifest: Manifest, device: Device, lock_dir: Path | None) -> tuple[RebuiltKernel, ...]:
    # Its memory is in the kernel's hash, and not in its key: another kernel of Linux, or a container, has another.
    device = device.with_(memory_bytes=manifest.device.memory_bytes)
    with Workbench(device, MemoryStore(), lock_dir=lock_dir, processes=1) as bench:
        builds = [(one, bench.build(one.gemm, one.config)) for one in manifest.kernels]
        made = []
        for one, build in builds:
            package = bench.package(one.gemm, one.config, build.result())
            fresh = read(package, Trust.of_signer(bench.signer)).manifest
            hashes = (one.kernel_sha256, one.binary_sha256, fresh.kernel_sha256, fresh.binary_sha256)
            made.append(RebuiltKernel(str(one.gemm), str(one.config), *hashes))
    return tuple(made)
