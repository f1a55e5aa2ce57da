"""A data folder with candidates and kernels of one problem, as a search leaves them: made by hand, nothing is
measured."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.helpers.artifact_samples import SIGNER, cpu, packed
from tirgemm._user_folders import SIGNING_KEY
from tirgemm.artifact import Signer, Trust, pack, read
from tirgemm.config import Config
from tirgemm.gemm import Gemm
from tirgemm.timings import BaselineTime, Timing, Timings
from tirgemm.tuning.records import Candidate, KernelRecord, SampleSet, Status
from tirgemm.tuning_db.data_folder import open_store

GEMM = Gemm.parse("33x17x19:f16:nt")
FAST = Config("sample", (("rows", 4), ("order", "rows"), ("pad", 0)))
SLOW = Config("sample", (("rows", 1), ("order", "columns"), ("pad", 0)))
OTHER = Config("sample", (("rows", 2), ("order", "rows"), ("pad", 0)))
PRUNED = Config("sample", (("rows", 64), ("order", "rows"), ("pad", 8)))
RUN = {"at": "2026-08-01T12:00:00+00:00", "regime": "sustained", "clock_mhz": 2600, "fingerprint": "f"}


def samples(median: float, count: int = 40, seed: int = 0) -> tuple[float, ...]:
    """Samples around ``median``, which is theirs exactly."""
    noise = np.random.default_rng(seed).normal(0, 0.01 * median, count - 1)
    paired = np.concatenate([noise[: count // 2], -noise[: count // 2], [0.0]])
    return tuple(float(median + each) for each in paired)


@dataclass(frozen=True)
class Made:
    """The folder, and the kernels by what they are: ``fast`` and ``slow``."""

    data: Path
    fast: KernelRecord
    slow: KernelRecord

    @property
    def key(self) -> str:
        return Signer.load(self.data / SIGNING_KEY).public


def made(data: Path) -> Made:
    """Two measured finalists of one run with their kernels, one that was only searched, one wrong, one pruned."""
    signer = Signer.load_or_create(data / SIGNING_KEY)
    with open_store(data) as store:
        kernels = {}
        for config, us in ((FAST, 8.0), (SLOW, 10.0)):
            timings = Timings({"sustained": Timing(us, 41, {"numpy_f32": BaselineTime(40.0, 40 / us)})})
            blob = packed(GEMM, config=config, signer=signer, timings=timings)
            package = read(blob, Trust.of(signer.public))
            digest = package.manifest.kernel_sha256
            search = SampleSet(samples(1.1 * us, seed=3), "search", {}, RUN | {"at": "2026-08-01T11:00:00+00:00"})
            again = SampleSet(samples(us, seed=1 + int(us)), "selection", {}, RUN)
            store.add_candidate(
                Candidate(
                    GEMM,
                    cpu().key,
                    "sustained",
                    config,
                    Status.MEASURED,
                    error=0.25,
                    kernel_sha256=digest,
                    predicted_us=9.0,
                    sample_sets=(search, again),
                )
            )
            kernels[config.digest] = store.put_kernel(
                KernelRecord(
                    GEMM,
                    cpu(),
                    "sustained",
                    "tuned" if config == FAST else "fallback",
                    config,
                    digest,
                    store.put_blob(blob),
                    len(blob),
                    None,
                    timings,
                    created_at="2026-08-01T12:00:01Z",
                )
            )
        for config, status, rule, message, sets in (
            (OTHER, Status.MEASURED, "", "", (SampleSet(samples(9.0), "search", {}, RUN),)),
            (PRUNED, Status.PRUNED, "registers", "64 rows need 70 registers; the CPU has 32", ()),
            (PRUNED.with_(rows=32), Status.WRONG, "", "the result is 7 times its bound away", ()),
        ):
            store.add_candidate(
                Candidate(
                    GEMM,
                    cpu().key,
                    "sustained",
                    config,
                    status,
                    message,
                    rule,
                    7.0 if status is Status.WRONG else 0.5 if sets else None,
                    kernel_sha256=hashlib.sha256(str(config).encode()).hexdigest(),
                    sample_sets=sets,
                )
            )
    return Made(data, kernels[FAST.digest], kernels[SLOW.digest])


def compiled_for_a_gpu(folder: Path) -> Path:
    """The artifact of a kernel of ``simt`` for an A100, compiled here and signed by the samples' key."""
    from tirgemm.families import family_named
    from tirgemm.hardware import named_device
    from tirgemm.tuning.build.compile import build

    gemm, device = Gemm.parse("64x64x512:f16:nt"), named_device("sm_80")
    config = family_named("simt").default(gemm, device, "sustained")
    binary = build(gemm, config, device)
    path = folder / "gpu.tirgemm"
    path.write_bytes(pack(binary.contents(gemm, config, device), SIGNER))
    return path
