"""A workbench on which the shipped ranking model stands for the GPU: a kernel takes what it expects. Nothing here is a
real time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.helpers.fake_workbench import FakeBench, FakeMeasurer
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import family_named
from tirgemm.families.choice import expected_time_us
from tirgemm.families.common.ranking_model import ranking_model
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.verify.result import Verification

HOPPER = named_device("sm_90a").with_(uuid="GPU-0", index=0)
# Seconds of a measurement, by the bench's clock.
EACH = 4.0


def expected_us(gemm: Gemm, config: Config) -> float:
    family = family_named(config.family)
    return expected_time_us(family, config, gemm, HOPPER, "sustained", ranking_model(HOPPER))


class Expecting(FakeMeasurer):
    """Takes as long as the ranking model expects; ``order`` has the problem of every evaluation."""

    def __init__(self, bench: ExpectingBench) -> None:
        super().__init__(bench)
        self.clock = bench.clock
        self.order: list[Gemm] = []

    def evaluate(self, package: bytes, regime: str, **_: Any) -> tuple[Verification, SampleSet]:
        del regime
        self.clock.now += EACH
        manifest = self.manifest(package)
        self.order.append(manifest.gemm)
        return self._verification(package, "candidate"), SampleSet((expected_us(manifest.gemm, manifest.config),) * 5)

    def time(self, package: bytes, options: RaceOptions, *, against: dict[str, bytes], **_: Any) -> SampleSet:
        manifests = [self.manifest(each) for each in (package, *against.values())]
        ours, *others = [(expected_us(options.problem(each.gemm), each.config),) * 6 for each in manifests]
        under = {"regime": options.regime, "m": options.problem(manifests[0].gemm).m_max}
        return SampleSet(ours, options.reason, dict(zip(against, others, strict=True)), under)


class ExpectingBench(FakeBench):
    def __init__(self) -> None:
        super().__init__()
        self.device: Device = HOPPER
        self.clock = SimpleNamespace(now=0.0)
        self.pool.processes = 16
        self.measurer = self.fake = Expecting(self)
        self.fake.offered = ()
