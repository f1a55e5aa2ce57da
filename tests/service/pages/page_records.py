"""Kernels as a search leaves them, for tests of pages: samples of the default and a baseline in the same run, a
certificate, and an artifact that a page may open."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tirgemm.artifact import Signer, Trust, pack, read
from tirgemm.artifact.package import signing_key
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm, Regime
from tirgemm.hardware import named_device
from tirgemm.timings import MemberTiming, SearchSummary, SelectionReason, Timings
from tirgemm.tuning.evaluate import timing_summary
from tirgemm.tuning.records import Candidate, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning.records.store import Store

H200 = named_device("sm_90a").with_(
    model="NVIDIA H200", environment=(("driver", "580.65"), ("tvm", "0.27.0"), ("cuda", "13.0"))
)
A100 = named_device("sm_80")
WGMMA = Config("wgmma", (("tile_m", 128), ("tile_n", 136), ("schedule", "pingpong"), ("unheard_of", 3)))
SIZES = {"m": 129, "n": 67, "k": 31}
TESTS: tuple[dict[str, Any], ...] = (
    {"name": "exact", **SIZES, "bound": "equal", "passed": True, "error": 0.0, "method": "full", "checked": 8643},
    {"name": "normal", **SIZES, "bound": "9.02e-07 |a_i| |b_j|", "passed": True, "error": 0.966, "method": "full"},
)


def samples_us(median: float, seed: int, count: int = 41) -> tuple[float, ...]:
    """Samples of which ``median`` is exactly the median, skewed as times are."""
    late = np.sort(np.random.default_rng(seed).gamma(2.0, 0.01 * median, count // 2))
    early = np.random.default_rng(seed + 1).uniform(0, 0.01 * median, count // 2)
    return tuple(float(us) for us in (*(median - early), median, *(median + late)))


def searched_kernel(
    store: Store,
    gemm: str = "129x67x31:f16:nt",
    *,
    us: float = 10.0,
    default_us: float = 12.5,
    device: Device = H200,
    config: Config = WGMMA,
    role: Any = "tuned",
    regime: Any = "sustained",
    artifact: bytes = b"",
    members: tuple[MemberTiming, ...] | None = None,
) -> KernelRecord:
    """A kernel with the samples that report it, in its regime and in part in the other; an unverified one with
    neither."""
    problem, seed = Gemm.parse(gemm), int(us * 1000)
    blob = artifact or f"an artifact of {gemm} {us} {role} {device.key} {regime}".encode()
    kernel_sha256 = hashlib.sha256(blob).hexdigest()
    if artifact:
        kernel_sha256 = read(artifact, Trust.of(signing_key(artifact))).manifest.kernel_sha256
    digest = store.put_blob(blob)
    other: Regime = "isolated" if regime == "sustained" else "sustained"
    conditions = {"clock_mhz": 1755, "power_w": 512.5, "throttled": False, "at": "2026-11-23T10:00:00+00:00"}
    baselines = {"default": samples_us(default_us, seed + 2), "torch.matmul": samples_us(1.1 * us, seed + 4)}
    sets = (
        SampleSet(samples_us(1.02 * us, seed), "search", {}, conditions | {"regime": regime}),
        SampleSet(samples_us(us, seed), "report", baselines, conditions | {"regime": regime}),
        SampleSet(samples_us(1.5 * us, seed + 6), "other_regime", {}, conditions | {"regime": other}),
    )
    timings = Timings(predicted_us=us)
    certificate = None
    if role != "unverified":
        candidate = Candidate(problem, device.key, regime, config, Status.MEASURED, kernel_sha256=kernel_sha256)
        store.add_candidate(candidate.with_(sample_sets=sets))
        certificate = Certificate(kernel_sha256, True, TESTS, "numpy fp64", {"tvm": "0.27.0"}, "2026-11-23T10:00:00Z")
        timings = Timings(
            {regime: timing_summary(sets[1]), other: timing_summary(sets[2])},
            default="wgmma(tile_m=64)",
            selection=SelectionReason(f"{default_us / us:.2f} times as fast as the default", 1.2),
            search=SearchSummary.from_json({"trials": 64, "effort": "standard", "ended": "trials"}),
            members=members,
        )
    return store.put_kernel(
        KernelRecord(
            problem,
            device,
            regime,
            role,
            config,
            kernel_sha256,
            digest,
            len(blob),
            certificate,
            timings,
            trials=64,
            created_at="2026-11-23T10:00:00.000+00:00",
        )
    )


def compiled_kernel(store: Store, signer: Signer, gemm: str = "64x64x512:f16:nt") -> KernelRecord:
    """The default of ``simt`` for an A100, compiled here, with the samples of a search that nobody ran."""
    from tirgemm.families import family_named
    from tirgemm.tuning.build.compile import build

    problem = Gemm.parse(gemm)
    config = family_named("simt").default(problem, A100, "sustained")
    artifact = pack(build(problem, config, A100).contents(problem, config, A100), signer)
    return searched_kernel(store, gemm, device=A100, config=config, artifact=artifact)
