"""Shipped records of the tests' own: a folder with the files of one device, of candidates that were measured in one
environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scripts.packed_records import pack
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning_db.shipped import SUFFIX, kernel_sets_file
from tirgemm.tuning_db.shipped.records import ShippedRecords


def measured_on(
    device: Device, gemm: Gemm, times: Sequence[tuple[Config, float]], regime: Regime = "sustained"
) -> list[Candidate]:
    """Candidates as a search on ``device`` in its environment records them."""
    under = {"fingerprint": device.fingerprint, "at": "2026-01-01T00:00:00+00:00"}
    return [
        Candidate(
            gemm,
            device.key,
            regime,
            config,
            Status.MEASURED,
            sample_sets=(SampleSet((us, us), conditions=under),),
            error=0.25,
        )
        for config, us in times
    ]


def ship(
    folder: Path, device: Device, candidates: Sequence[Candidate], sets: Sequence[Candidate] = ()
) -> ShippedRecords:
    """The folder's records, whose one file has ``candidates`` and ``device``, and where there are records of kernel
    ``sets`` another one those."""
    folder.mkdir(exist_ok=True)
    model = device.key.split(":")[2]
    pack(folder / f"{model}{SUFFIX}", [device], candidates)
    if sets:
        pack(folder / kernel_sets_file(model).name, [device], sets)
    return ShippedRecords(folder)


def elsewhere(device: Device) -> Device:
    """The same device class under another TVM."""
    return device.with_(environment=tuple((name, "0.1" if name == "tvm" else v) for name, v in device.environment))
