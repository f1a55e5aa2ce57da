"""What the analysis predicts of a kernel, under the names of ``metrics.COUNTERS``: the one place that knows both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tirgemm.analysis.resources import occupancy_of, resources_of
from tirgemm.analysis.sass import disassemble
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import family_named
from tirgemm.gemm import Gemm

if TYPE_CHECKING:
    from tirgemm.analysis.kernel import KernelAnalysis


@dataclass(frozen=True, slots=True)
class Prediction:
    """One kernel of a launch: its symbol, what is predicted by counter, and in words what is not in the figures."""

    symbol: str
    counters: dict[str, float]
    unknown: tuple[str, ...]


def predicted(gemm: Gemm, config: Config, device: Device, cubin: bytes) -> tuple[Prediction, ...]:
    """The predictions for every kernel of the config's launch, in order. Raises AnalysisFailed, BuildFailed."""
    from tirgemm.analysis.kernel import analyse
    from tirgemm.tuning.compile.cuda import checked_launch, lower_all

    program = family_named(config.family).instantiate(gemm, config, device)
    host, functions, _ = lower_all(program, device.arch)
    launch = checked_launch(program, host)
    code = disassemble(cubin)
    resources = resources_of(cubin, code)
    found = []
    for kernel, analysis in zip(launch.kernels, analyse(functions, launch, gemm, device, cubin), strict=True):
        occupancy = occupancy_of(kernel, resources[kernel.symbol], device)
        counters = memory_counters(analysis) | {"occupancy_percent": 100 * occupancy.share}
        found.append(Prediction(kernel.symbol, counters, tuple(map(str, analysis.unknown))))
    return tuple(found)


def memory_counters(analysis: KernelAnalysis) -> dict[str, float]:
    """The accesses of the load/store unit; what TMA and wgmma move passes no such counter."""
    counters: dict[str, float] = {}
    for name, wavefronts, conflicts, ops in (
        ("shared_loads", "shared_load_wavefronts", "shared_load_conflicts", ("load",)),
        ("matrix_loads", "matrix_load_wavefronts", "matrix_load_conflicts", ("ldmatrix",)),
        ("shared_stores", "shared_store_wavefronts", "shared_store_conflicts", ("store",)),
        ("matrix_stores", "matrix_store_wavefronts", "matrix_store_conflicts", ("stmatrix",)),
        ("copies", "copy_wavefronts", "copy_conflicts", ("copy",)),
    ):
        traffic = analysis.traffic("shared", *ops)
        counters |= {name: traffic.requests, wavefronts: traffic.wavefronts, conflicts: traffic.conflicts}
    for name, requests, sectors, ops in (
        ("global_loads", "global_load_requests", "global_load_sectors", ("load",)),
        ("global_stores", "global_store_requests", "global_store_sectors", ("store",)),
        ("", "copy_requests", "copy_sectors", ("copy",)),
    ):
        traffic = analysis.traffic("global", *ops)
        counters |= {requests: traffic.requests, sectors: traffic.sectors}
        if name:
            counters[name] = traffic.requests
    return counters
