"""Raw samples that a store has of one kernel."""

from __future__ import annotations

from tirgemm.config import Config
from tirgemm.gemm import REGIMES, Gemm
from tirgemm.tuning.records import CandidateKey, SampleSet
from tirgemm.tuning.records.store import Store


def samples_of(
    store: Store, gemm: Gemm, device_key: str, config: Config, kernel_sha256: str | None
) -> tuple[SampleSet, ...]:
    """The samples that are stored of a kernel, in every regime; of any build of its config where ``kernel_sha256`` is
    None."""
    samples: list[SampleSet] = []
    for regime in REGIMES:
        candidate = store.candidate(CandidateKey(gemm, device_key, regime, config.digest))
        if candidate is not None and kernel_sha256 in (None, candidate.kernel_sha256):
            samples += candidate.sample_sets
    return tuple(samples)
