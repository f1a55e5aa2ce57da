"""Measured peak rates of a device, from the store and from results files."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tirgemm.analysis.roofline import MeasuredRate, mma_rate
from tirgemm.bench.results import load
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Regime
from tirgemm.timings import StreamTiming
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.store import Store

_NEWEST = 100


def rates_in_store(store: Store, device: Device, record: KernelRecord | None = None) -> dict[str, MeasuredRate]:
    """The bandwidth of reading alone (``dram``), measured while ``record`` was tuned, else the newest other kernel that
    was tuned on such a device; nothing where none was."""
    for kernel in (*([record] if record else ()), *store.kernels(_NEWEST)):
        stream = kernel.timings.stream
        if kernel.device.key == device.key and isinstance(stream, StreamTiming):
            taken = f"reading alone, {stream.at}, beside the tuning of kernel {kernel.id}"
            return {"dram": MeasuredRate(float(stream.read_gbps), taken)}
    return {}


def rates_in_results(folder: Path, device: Device, regime: Regime) -> dict[str, MeasuredRate]:
    """What the results files in ``folder`` have of ``device``: the median of their streams (``dram``), and the most
    that ``mma.sync`` reached in ``regime``. Raises InvalidRequest for a folder that is not there or has neither, or
    with a file that is no document."""
    streams: list[float] = []
    rates: dict[str, MeasuredRate] = {}
    if not folder.is_dir():
        raise InvalidRequest(f"no results file can be read from {folder}: there is no such folder")
    files = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    for file in files:
        try:
            document = load(file)
            if isinstance(document, dict) and document.get("environment", {}).get("device_key") == device.key:
                streams += [float(stream["read_gbps"]) for stream in document.get("streams", ())]
                rates |= _of_mma(document, regime, file)
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"{file} is not a results file: {type(error).__name__}: {error}") from error
    if streams:
        taken = f"reading alone, the median of {len(streams)} runs in {folder}"
        rates["dram"] = MeasuredRate(statistics.median(streams), taken)
    if not rates:
        raise InvalidRequest(
            f"{folder} has no results file with a rate that was measured on {device.key}: a suite's streams, or "
            f"mma_ceiling"
        )
    return rates


def _of_mma(document: Mapping[str, Any], regime: Regime, file: Path) -> dict[str, MeasuredRate]:
    """What a file of ``benchmarks/mma_ceiling.py`` has; nothing of any other."""
    if document.get("suite") != "mma_ceiling":
        return {}
    taken = f"mma.sync out of registers alone, {regime}, {file}"
    rates = {kind: rates[regime] for kind, rates in document["summary"].items() if regime in rates}
    return {_named(kind): MeasuredRate(float(rate), taken) for kind, rate in rates.items()}


def _named(kind: str) -> str:
    """The rate of a kind as ``benchmarks/mma_ceiling.py`` writes it: ``f16``, ``bf16``, ``f16:acc=f16``."""
    dtype, _, acc = kind.partition(":acc=")
    return mma_rate(dtype, acc or "f32")
