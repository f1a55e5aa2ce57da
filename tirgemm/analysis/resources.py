"""Resources, occupancy and waves of a kernel, from its cubin, its launch and the device."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from tirgemm import expr
from tirgemm.analysis.sass.cubin import KernelSections, kernels
from tirgemm.analysis.sass.program import Function
from tirgemm.device import Device
from tirgemm.errors import AnalysisFailed
from tirgemm.hardware import ARCHITECTURES, WARP, occupancy_limits, resident_clusters
from tirgemm.launch import KernelLaunch

# Named barriers that an SM has for each block that it can hold (cuda_occupancy.h).
_BARRIERS_PER_BLOCK = 2


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes, as its cubin says.

    ``registers`` and bytes of ``stack``, of spills (static: every store or refill once) and of other local memory, a
    thread; static ``shared_bytes`` a block; named ``barriers``. Local memory that is no spill holds arrays that are
    indexed at run time.
    """

    name: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    local_store_bytes: int
    local_load_bytes: int
    shared_bytes: int
    barriers: int

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes


def resources_of(cubin: bytes, functions: tuple[Function, ...]) -> dict[str, Resources]:
    """Every kernel's resources by symbol; ``functions`` are the cubin's (``disassemble``). Raises AnalysisFailed."""
    code = {function.name: function for function in functions}
    by_kernel = {}
    for kernel in kernels(cubin):
        if kernel.name not in code:
            raise AnalysisFailed(f"the cubin declares kernel {kernel.name}, but has no code of it")
        by_kernel[kernel.name] = _resources(kernel, code[kernel.name])
    return by_kernel


def _resources(kernel: KernelSections, function: Function) -> Resources:
    def moved(kind: str, *, spill: bool) -> int:
        return sum(
            i.memory.width
            for i in function.memory
            if i.memory and i.memory.space == "local" and i.memory.kind == kind and i.spill is spill
        )

    return Resources(
        kernel.name,
        kernel.registers,
        kernel.stack_bytes,
        moved("store", spill=True),
        moved("load", spill=True),
        moved("store", spill=False),
        moved("load", spill=False),
        kernel.shared_bytes,
        kernel.barriers,
    )


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks an SM holds at a time, by the vendor's rules, and what allows no more.

    ``limits``: the blocks that threads, registers, shared memory, the number of blocks and (from sm_90 on) named
    barriers alone would allow;
    ``bound_by`` names the least of them. ``share``: resident warps of all that an SM can hold.
    """

    threads: int
    registers: int
    shared_bytes: int
    limits: tuple[tuple[str, int], ...]
    max_warps: int

    @property
    def blocks(self) -> int:
        return min(count for _, count in self.limits)

    @property
    def bound_by(self) -> tuple[str, ...]:
        return tuple(name for name, count in self.limits if count == self.blocks)

    @property
    def warps(self) -> int:
        return self.blocks * -(-self.threads // WARP)

    @property
    def share(self) -> float:
        return self.warps / self.max_warps


def occupancy_of(launch: KernelLaunch, resources: Resources, device: Device) -> Occupancy:
    """The occupancy of ``launch`` with ``resources`` on ``device``. Raises AnalysisFailed where not one block fits."""
    threads = prod(launch.block)
    shared = launch.shared_bytes + resources.shared_bytes
    limits = occupancy_limits(device.limits, threads, resources.registers, shared)
    if resources.barriers and device.arch in ARCHITECTURES and ARCHITECTURES[device.arch].capability >= (9, 0):
        limits["barriers"] = _BARRIERS_PER_BLOCK * device.limits.blocks_per_sm // resources.barriers
    occupancy = Occupancy(
        threads, resources.registers, shared, tuple(limits.items()), max(1, device.limits.threads_per_sm // WARP)
    )
    if not occupancy.blocks:
        raise AnalysisFailed(
            f"no block of {launch.symbol} fits an SM of {device.name}: {threads} threads, {resources.registers} "
            f"registers, {shared} bytes of shared memory; bound by {', '.join(occupancy.bound_by)}"
        )
    return occupancy


@dataclass(frozen=True, slots=True)
class Waves:
    """How ``items`` of equal work fill the ``slots`` that run at a time: as many as the device holds, or as a
    persistent kernel launches.

    ``items`` are blocks, clusters or, in a persistent kernel, tiles; ``waves`` is their ratio, ``turns`` the whole
    waves that it takes, ``tail`` the items of the last. ``loss``: the share of all turns' slots that are idle.
    ``idle_units``: SMs that no cluster can use, of ``units``.
    """

    items: int
    slots: int
    cluster: int = 1
    units: int = 0
    idle_units: int = 0

    @property
    def waves(self) -> float:
        return self.items / self.slots

    @property
    def turns(self) -> int:
        return -(-self.items // self.slots)

    @property
    def tail(self) -> int:
        """Items of the last wave; ``slots`` where it is full."""
        return self.items - (self.turns - 1) * self.slots

    @property
    def loss(self) -> float:
        return float(1 - Fraction(self.items, self.turns * self.slots))


def waves_of(launch: KernelLaunch, occupancy: Occupancy, device: Device, *, m: int = 1) -> Waves:
    """How the blocks of ``launch`` at ``m`` fill ``device``, cluster by cluster. Raises AnalysisFailed for a launch of
    no blocks, InvalidDevice for clusters where there are none."""
    cluster = prod(launch.cluster)
    blocks = prod(expr.evaluate(extent, m) for extent in launch.grid)
    if blocks < 1 or blocks % cluster:
        raise AnalysisFailed(f"{launch.symbol} launches {blocks} blocks in clusters of {cluster} at m={m}")
    slots = resident_clusters(device, cluster, occupancy.blocks)
    idle = device.units - min(device.units, slots * cluster // max(1, occupancy.blocks))
    return Waves(blocks // cluster, slots, cluster, device.units, idle)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the tiles lies inside the matrix: ``tiles`` of them, ``loss`` the share of their work that is
    outside."""

    tiles: int
    loss: float


def coverage(m: int, n: int, k: int, tile: tuple[int, int, int], batch: int = 1) -> Coverage:
    """Cut ``m`` x ``n`` x ``k`` into whole ``tile`` (m, n, k): what the edges waste of the arithmetic."""
    counts = [-(-size // step) for size, step in zip((m, n, k), tile, strict=True)]
    whole = prod(counts) * prod(tile)
    return Coverage(counts[0] * counts[1] * batch, float(1 - Fraction(m * n * k, whole)))
