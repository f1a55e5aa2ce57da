"""What the measuring process is asked, as frozen values that are pickled to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tirgemm.artifact import Trust
from tirgemm.device import Device
from tirgemm.tuning.records import Reason


@dataclass(frozen=True, slots=True)
class Verify:
    """Verify the packaged kernel at a level, with operands of a seed."""

    level: str
    seed: int


@dataclass(frozen=True, slots=True)
class Time:
    """Time the packaged kernel in a regime, beside the ``against`` packages and the baselines, in alternating blocks.

    At least ``min_samples`` samples each, for ``budget_s`` seconds in all. ``swap`` gives every contender the buffers
    of the next one; ``shared`` gives all of them the same, which saves a search most of its memory and filling.
    """

    regime: str
    min_samples: int
    budget_s: float
    reason: Reason
    seed: int
    against: dict[str, bytes] = field(default_factory=dict)
    baselines: tuple[str, ...] = ()
    swap: bool = False
    shared: bool = False


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
class Stream:
    """Measure the bandwidth of reading memory alone."""

    device: Device
    lock_dir: Path
