"""A search of a small problem on a made-up workbench, and what it leaves in the store."""

from __future__ import annotations

from typing import Any

from tests.helpers.fake_workbench import FakeBench, Timed
from tirgemm import Budget, Config, Gemm
from tirgemm.families import FAMILIES
from tirgemm.gemm import Regime
from tirgemm.tuning.records import CandidateKey, SampleSet, Status
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control

GEMM = Gemm.parse("61x67x71:f16:nt")

REGIME: Regime = "sustained"


def candidates(bench: FakeBench, gemm: Gemm = GEMM) -> list[Any]:
    return [c for c in bench.store.candidates(gemm, bench.device.key, REGIME) if c.status is not Status.PRUNED]


def tuning(
    bench: FakeBench,
    trials: int = 12,
    *,
    seconds: float = 600.0,
    seed: int = 0,
    families: list[str] | None = None,
    **control: Any,
) -> Tuning:
    budget = Budget(trials, seconds)
    return Tuning(GEMM, bench, REGIME, budget, seed=seed, families=families, control=Control(**control))


def races(bench: FakeBench, reason: str) -> list[Timed]:
    """The runs that were asked for, for a reason, of several kernels."""
    return [timed for timed in bench.fake.timed if timed.options.reason == reason and len(timed.configs) > 1]


def samples_of(bench: FakeBench, config: Config, reason: str) -> list[SampleSet]:
    """What is stored of a config, of those taken for a reason."""
    stored = bench.store.candidate(CandidateKey(GEMM, bench.device.key, REGIME, config.digest))
    assert stored is not None
    return [samples for samples in stored.sample_sets if samples.reason == reason]


def default(bench: FakeBench) -> Config:
    return FAMILIES["x86"].default(GEMM, bench.device, REGIME)
