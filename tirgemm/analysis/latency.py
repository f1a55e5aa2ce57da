"""Latency bound of a call: launch overhead and load latency, whatever the rates."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import families
from tirgemm.families.base import LoadWaits, WithLoadWaits
from tirgemm.gemm import Gemm, Regime


@dataclass(frozen=True, slots=True)
class Latency:
    """A launch, and ``turns`` of blocks one after the other, each of which ``waits`` for the loads of its steps."""

    waits: LoadWaits
    turns: int

    @property
    def step_us(self) -> float:
        """What a step waits for its loads, of which several steps' are under way at once."""
        return self.waits.load_us / self.waits.ahead

    @property
    def waiting_us(self) -> float:
        """What the loads of all turns take, one after the other."""
        return self.turns * self.waits.steps * self.step_us

    @property
    def us(self) -> float:
        """The time that is gone before any rate counts."""
        return self.waits.launch_us + self.waiting_us

    def binds(self, ceiling_us: float) -> bool:
        """Whether a ceiling of ``ceiling_us`` explains less than half of the least time: the launch, and the longer of
        waiting and the ceiling."""
        return 2 * ceiling_us < self.waits.launch_us + max(self.waiting_us, ceiling_us)


def latency_of(gemm: Gemm, config: Config, device: Device, regime: Regime, turns: int) -> Latency | None:
    """The latency of ``config``, whose blocks run in ``turns``; None for a family that does not know its own."""
    family: object = families().get(config.family)
    if not isinstance(family, WithLoadWaits):
        return None
    return Latency(family.load_waits(gemm, config, device, regime), turns)
