"""Packing of records files into the package: ``tuning_db/shipped/MODEL.jsonl.gz``, one for each device model in them.

usage: ship_records.py FILE.jsonl.gz...     files of `tirgemm db export`, later ones on top of earlier ones. What was
                                            shipped of a model before is replaced: give it, too, or start from a
                                            database that has imported it. Problems by which kernels are judged
                                            are left out, unless they are a published suite's too
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tirgemm.bench.held_out import GRID_NAME, JUDGE_SEEDS
from tirgemm.bench.suites import named_suites, suite_named
from tirgemm.device import Device
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import Candidate, CandidateKey, Status
from tirgemm.tuning.records.json_values import merged
from tirgemm.tuning_db import shipped
from tirgemm.tuning_db.shipped.packing import pack
from tirgemm.tuning_db.transfer import read_candidates, read_devices

# Of every measurement so many samples, and all conditions but those that follow from the problem and the regime.
SAMPLES = 7
DROPPED = ("regime", "device", "m", "rotated_bytes", "cache_bytes", "swapped", "shared", "clock")


def ship(paths: list[Path], folder: Path) -> list[Path]:
    """Write the records of ``paths`` into ``folder``, a file for each model; pruned candidates are left out."""
    judged = _judged()
    devices: dict[tuple[str, str], Device] = {}
    candidates: dict[CandidateKey, Candidate] = {}
    for path in paths:
        devices |= {(device.key, device.fingerprint): device for device in read_devices(path)}
        for candidate in read_candidates(path):
            if candidate.gemm in judged:
                continue
            known = candidates.get(candidate.key)
            sets = merged(known.sample_sets if known else (), candidate.sample_sets)
            candidates[candidate.key] = _compact(candidate.with_(sample_sets=sets))
    written = []
    for model in dict.fromkeys(_model(key) for key, _ in devices):
        path = folder / shipped.file_of(model).name
        kept = [c for c in candidates.values() if _model(c.device_key) == model and c.status is not Status.PRUNED]
        pack(path, [device for (key, _), device in devices.items() if _model(key) == model], kept)
        written.append(path)
    return written


def _compact(candidate: Candidate) -> Candidate:
    """The candidate with what its time follows from: some of the samples, by rank, the median among them."""
    sets = tuple(
        replace(
            samples,
            samples_us=_thinned(samples.samples_us),
            baselines={name: _thinned(raw) for name, raw in samples.baselines.items()},
            conditions={name: value for name, value in samples.conditions.items() if name not in DROPPED},
        )
        for samples in candidate.sample_sets
    )
    error = None if candidate.error is None else _rounded(candidate.error)
    predicted = None if candidate.predicted_us is None else _rounded(candidate.predicted_us)
    # Of a build or a version, which may be others where it is built again; and not to be compressed.
    hashes = {"source_sha256": "", "binary_sha256": "", "kernel_sha256": ""}
    return candidate.with_(sample_sets=sets, trace=None, error=error, predicted_us=predicted, **hashes)


def _thinned(samples: Sequence[float]) -> tuple[float, ...]:
    """Samples of the ranks 1/14, 3/14 ... 13/14; the middle one is the median."""
    ordered = sorted(samples)
    if len(ordered) <= SAMPLES:
        return tuple(map(_rounded, samples))
    chosen = [ordered[(2 * rank + 1) * len(ordered) // (2 * SAMPLES)] for rank in range(SAMPLES)]
    chosen[SAMPLES // 2] = statistics.median(ordered)
    return tuple(map(_rounded, chosen))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _judged() -> set[Gemm]:
    """The problems of the held-out suites that no other suite has."""
    held_out = {gemm for name in (GRID_NAME, *(f"judge-{s}" for s in JUDGE_SEEDS)) for gemm in suite_named(name).gemms}
    return held_out - {gemm for name in named_suites() for gemm in suite_named(name).gemms}


def _model(device_key: str) -> str:
    return device_key.split(":")[2]


def main(arguments: list[str]) -> int:
    if not arguments or any(argument.startswith("-") for argument in arguments):
        print((__doc__ or "").partition("\n\n")[2])
        return 2
    for path in ship([Path(argument) for argument in arguments], shipped.FOLDER):
        print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
