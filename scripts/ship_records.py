"""Packing of records files into the package: ``tuning_db/shipped/MODEL.jsonl.gz``, one for each device model in them.

usage: ship_records.py FILE.jsonl.gz...     files of `tirgemm db export`, later ones on top of earlier ones. What was
                                            shipped of a model before is replaced: give it, too, or start from a
                                            database that has imported it
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tirgemm.device import Device
from tirgemm.tuning.records import Candidate, CandidateKey, Status
from tirgemm.tuning.records.json_values import merged
from tirgemm.tuning_db import shipped
from tirgemm.tuning_db.shipped.packing import pack
from tirgemm.tuning_db.transfer import read_candidates, read_devices


def ship(paths: list[Path], folder: Path) -> list[Path]:
    """Write the records of ``paths`` into ``folder``, a file for each model; pruned candidates are left out."""
    devices: dict[tuple[str, str], Device] = {}
    candidates: dict[CandidateKey, Candidate] = {}
    for path in paths:
        devices |= {(device.key, device.fingerprint): device for device in read_devices(path)}
        for candidate in read_candidates(path):
            known = candidates.get(candidate.key)
            sets = merged(known.sample_sets if known else (), candidate.sample_sets)
            candidates[candidate.key] = candidate.with_(sample_sets=sets, trace=None)
    written = []
    for model in dict.fromkeys(_model(key) for key, _ in devices):
        path = folder / shipped.file_of(model).name
        kept = [c for c in candidates.values() if _model(c.device_key) == model and c.status is not Status.PRUNED]
        pack(path, [device for (key, _), device in devices.items() if _model(key) == model], kept)
        written.append(path)
    return written


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
