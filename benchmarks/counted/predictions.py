"""The analysis' predictions for a kernel, under the names of ``metrics.COUNTERS``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tirgemm.analysis.banks.shared_access import SharedAccess
from tirgemm.analysis.banks.wavefronts import BankModel, bank_model
from tirgemm.analysis.resources import occupancy_of, resources_of
from tirgemm.analysis.sass.program import disassemble
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import family_named
from tirgemm.gemm import Gemm

if TYPE_CHECKING:
    from tirgemm.analysis.memory_traffic import KernelAnalysis


@dataclass(frozen=True, slots=True)
class Prediction:
    """One kernel of a launch: its symbol, what is predicted by counter, and in words what is not in the figures.

    ``bounds``: the counters whose prediction is the most that can be counted.
    """

    symbol: str
    counters: dict[str, float]
    unknown: tuple[str, ...]
    bounds: frozenset[str] = frozenset()


def predicted(gemm: Gemm, config: Config, device: Device, cubin: bytes) -> tuple[Prediction, ...]:
    """The predictions for every kernel of the config's launch, in order. Raises AnalysisFailed, BuildFailed."""
    from tirgemm.analysis.memory_traffic import analyse
    from tirgemm.tuning.build.cuda import checked_launch, lower_all

    program = family_named(config.family).instantiate(gemm, config, device)
    host, functions, _ = lower_all(program, device.arch)
    launch = checked_launch(program, host)
    code = disassemble(cubin)
    resources = resources_of(cubin, code)
    predictions = []
    for kernel, analysis in zip(launch.kernels, analyse(functions, launch, gemm, device, cubin), strict=True):
        occupancy = occupancy_of(kernel, resources[kernel.symbol], device)
        counters = memory_counters(analysis, bank_model(device.arch)) | {"occupancy_percent": 100 * occupancy.share}
        unknown = tuple(map(str, analysis.unknown))
        predictions.append(Prediction(kernel.symbol, counters, unknown, bounds(analysis)))
    return tuple(predictions)


def bounds(analysis: KernelAnalysis) -> frozenset[str]:
    """The counters of loads of which some run under a condition that is not in the IR."""
    spaces = {access.space for access in analysis.accesses if access.bound and access.op == "load"}
    return frozenset(
        name
        for space in spaces
        for name in (f"{space}_loads", f"{space}_load_wavefronts", f"{space}_load_requests", f"{space}_load_sectors")
    )


def memory_counters(analysis: KernelAnalysis, model: BankModel) -> dict[str, float]:
    """The accesses of the load/store unit; what TMA and wgmma move passes no such counter.

    ``..._fewest`` are no counters but what conflicts are counted beyond. For copies past L1 the addresses decide
    requests and sectors, and that there are no conflicts where every lane copies. Passes, and conflicts where some
    lanes copy nothing, depend on when data arrive and are not predicted.
    """
    counters: dict[str, float] = {}
    for name, kind, ops in (
        ("shared_loads", "shared_load", ("load",)),
        ("matrix_loads", "matrix_load", ("ldmatrix",)),
        ("shared_stores", "shared_store", ("store",)),
        ("matrix_stores", "matrix_store", ("stmatrix",)),
        ("copies", "copy", ("copy",)),
    ):
        traffic = analysis.traffic("shared", *ops)
        counters |= {name: traffic.requests, f"{kind}_wavefronts": traffic.wavefronts}
        counters |= {f"{kind}_conflicts": traffic.conflicts, f"{kind}_fewest": traffic.wavefronts - traffic.conflicts}
    for name in ("load", "store"):
        traffic = analysis.traffic("global", name)
        counters |= {f"global_{name}s": traffic.requests, f"global_{name}_requests": traffic.requests}
        counters |= {f"global_{name}_sectors": traffic.sectors}
    copied, written = analysis.traffic("global", "copy"), analysis.traffic("shared", "copy")
    counters |= {"copy_requests": copied.requests, "copy_sectors": copied.sectors}
    counters["global_load_requests"] += copied.requests
    counters["global_load_sectors"] += written.looked_up_sectors
    copies = [a for a in analysis.accesses if a.space == "shared" and a.op == "copy"]
    if not all(model.tells(SharedAccess("cp.async", a.width)) for a in copies):
        del counters["copy_wavefronts"], counters["copy_sectors"]
        read = sum(a.lanes for a in analysis.accesses if a.space == "global" and a.op == "copy")
        if read < sum(a.lanes for a in copies):
            del counters["copy_conflicts"]
    return counters
