"""Requests to the measuring process, as frozen values that are pickled to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tirgemm.artifact import Trust
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Reason


@dataclass(frozen=True, slots=True)
class Verify:
    """Verify the packaged kernel at a level, with operands of a seed."""

    level: str
    seed: int


# After a pause kernels run at a higher clock than the power limit leaves them: on an H200 for 0.06 to 0.12 s after one
# of 0.3 s.
WARM_S = 0.15


@dataclass(frozen=True, slots=True)
class RaceOptions:
    """How contenders are timed beside one another, in a regime.

    At least ``min_samples`` samples each, for ``budget_s`` seconds in all. In the sustained regime on a GPU, but for a
    search's candidates beside their yardstick, ``warm_s`` seconds come first, which are not counted, and are taken from
    the others as far as these reach. ``seed`` draws the operands, and the order of the contenders anew for every round.
    ``swap`` gives every contender the buffers of the next one; ``shared`` gives all of them the same, which saves most
    of the memory and filling. ``m`` is what is timed of problems whose m is a range; None: its high end.
    """

    regime: Regime
    min_samples: int = 50
    budget_s: float = 1.0
    reason: Reason = "selection"
    seed: int = 0
    swap: bool = False
    shared: bool = False
    m: int | None = None
    warm_s: float = WARM_S

    def problem(self, gemm: Gemm) -> Gemm:
        """What is timed of ``gemm``. Raises InvalidRequest for an m that it does not have."""
        if self.m is None:
            return gemm
        if not gemm.m_min <= self.m <= gemm.m_max:
            raise InvalidRequest(f"m is {self.m}; {gemm} has m from {gemm.m_min} to {gemm.m_max}")
        return gemm.with_(m=self.m)

    def conditions(self, device: Device, gemm: Gemm, sets: int, rotated_bytes: int, cache_bytes: int) -> dict[str, Any]:
        """What samples of ``gemm``, from ``problem``, were taken under on any device."""
        return {
            "regime": self.regime,
            "fingerprint": device.fingerprint,
            "device": device.key,
            "m": gemm.m_max,
            "operand_sets": sets,
            "rotated_bytes": rotated_bytes,
            "cache_bytes": cache_bytes,
            "swapped": self.swap,
            "shared": self.shared,
        }


@dataclass(frozen=True, slots=True)
class Time:
    """Time the packaged kernel beside the ``against`` packages and the baselines, interleaved."""

    options: RaceOptions
    against: dict[str, bytes] = field(default_factory=dict)
    baselines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """One request about one package; timed only where the verification asked for has passed."""

    device: Device
    trust: Trust
    lock_dir: Path
    package: bytes
    verify: Verify | None = None
    time: Time | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Open the device, where that has not been done."""

    device: Device
    lock_dir: Path


@dataclass(frozen=True, slots=True)
class ReadBandwidth:
    """Measure the bandwidth of reading memory alone, on a GPU that of writing, too."""

    device: Device
    lock_dir: Path
