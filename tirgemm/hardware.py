"""Limits and rates of CUDA architectures, as data, and occupancy as a pure function of them.

Sources: limits from the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; fp32 and fp16
rates from its "Throughput of Native Arithmetic Instructions"; tensor-core rates and memory from the vendor's white
papers (GA100, GA102, AD102, GH100) and the H200 data sheet. L2: 64 bytes a clock reach one SM, as Nsight Compute and
DeepGEMM's cost model have it; the slices of an A100 together give 5,120 bytes (GA100 white paper).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tirgemm.device import Device, Limits
from tirgemm.errors import InvalidDevice

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB

WARP = 32
_REGISTER_UNIT = 256  # registers are given to a warp in multiples of this
_WARP_UNIT = 4  # schedulers of an SM, each with its share of the registers
_SHARED_UNIT = 128
BANKS = 32
BANK_BYTES = 4
# Blocks of a grid along x, y and z that the driver takes.
MAX_GRID = (2**31 - 1, 65535, 65535)
_L2_PORT_BYTES = 64  # a clock into one SM
_FIRST_DEPENDENT = 90

# Clusters of 1 to 8 blocks that an H200's 132 SMs hold at once where a block takes a whole SM, as its driver counts
# them (cuOccupancyMaxActiveClusters): a cluster lies within one GPC, and the GPCs have unlike numbers of SMs.
CLUSTERS_OF_H200 = (132, 66, 39, 30, 22, 17, 15, 15)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture, and the model that its bare name stands for.

    ``flops_per_clock``: floating-point operations (an FMA is two) an SM finishes in a clock. ``f32`` and ``f16_simt``
    are the CUDA cores'; ``f16``, ``bf16`` and ``tf32`` the tensor cores' with fp32 accumulation, dense; ``f16_acc16``
    with fp16 accumulation. ``bus_bytes`` moves twice in a memory clock. ``l2_bytes_per_clock`` is what the slices of L2
    give together, 0 where the vendor does not say.
    """

    arch: str
    capability: tuple[int, int]
    model: str
    limits: Limits
    units: int
    memory_bytes: int
    clock_mhz: int
    memory_clock_mhz: int
    bus_bytes: int
    flops_per_clock: tuple[tuple[str, int], ...]
    l2_bytes_per_clock: int = 0


def _limits(shared_kib: int, threads_per_sm: int, blocks_per_sm: int, l2_mib: int) -> Limits:
    return Limits(
        shared_per_block=(shared_kib - 1) * _KIB,
        shared_per_sm=shared_kib * _KIB,
        shared_reserved_per_block=_KIB,
        registers_per_sm=65536,
        registers_per_thread=255,
        threads_per_block=1024,
        threads_per_sm=threads_per_sm,
        blocks_per_sm=blocks_per_sm,
        l2_bytes=l2_mib * _MIB,
    )


def _rates(f32: int, f16_simt: int, tensor: int, tensor_acc16: int) -> tuple[tuple[str, int], ...]:
    rates = {"f32": f32, "f16_simt": f16_simt, "f16": tensor, "bf16": tensor, "tf32": tensor // 2}
    return tuple((rates | {"f16_acc16": tensor_acc16}).items())


# sm_86 and sm_89 stand for the GeForce cards, whose tensor cores run at half rate with fp32 accumulation.
ARCHITECTURES: dict[str, Architecture] = {
    a.arch: a
    for a in (
        Architecture(
            arch="sm_80",
            capability=(8, 0),
            model="NVIDIA A100-SXM4-80GB",
            limits=_limits(164, 2048, 32, 40),
            units=108,
            memory_bytes=80 * _GIB,
            clock_mhz=1410,
            memory_clock_mhz=1593,
            bus_bytes=5120 // 8,
            flops_per_clock=_rates(128, 512, 2048, 2048),
            l2_bytes_per_clock=5120,
        ),
        Architecture(
            arch="sm_86",
            capability=(8, 6),
            model="NVIDIA GeForce RTX 3090",
            limits=_limits(100, 1536, 16, 6),
            units=82,
            memory_bytes=24 * _GIB,
            clock_mhz=1695,
            memory_clock_mhz=9751,
            bus_bytes=384 // 8,
            flops_per_clock=_rates(256, 256, 512, 1024),
        ),
        Architecture(
            arch="sm_89",
            capability=(8, 9),
            model="NVIDIA GeForce RTX 4090",
            limits=_limits(100, 1536, 24, 72),
            units=128,
            memory_bytes=24 * _GIB,
            clock_mhz=2520,
            memory_clock_mhz=10501,
            bus_bytes=384 // 8,
            flops_per_clock=_rates(256, 256, 512, 1024),
        ),
        Architecture(
            arch="sm_90a",
            capability=(9, 0),
            model="NVIDIA H200",
            limits=_limits(228, 2048, 32, 50),
            units=132,
            memory_bytes=143771 * _MIB,
            clock_mhz=1980,
            memory_clock_mhz=3201,
            bus_bytes=6144 // 8,
            flops_per_clock=_rates(256, 512, 4096, 4096),
        ),
    )
}


def arch_of(capability: tuple[int, int]) -> str:
    """The architecture name of a compute capability: ``sm_90a`` for (9, 0), ``sm_75`` for one not in the table."""
    for known in ARCHITECTURES.values():
        if known.capability == capability:
            return known.arch
    return f"sm_{capability[0]}{capability[1]}"


def dependent_launch_refusal(device: Device) -> str:
    """Why a device has no programmatic dependent launch, in a sentence that names it; empty where it has.

    ``griddepcontrol`` needs compute capability 9.0 (PTX ISA).
    """
    if device.kind == "cuda" and int(re.sub(r"\D", "", device.arch)) >= _FIRST_DEPENDENT:
        return ""
    what = f"an {device.arch}" if device.kind == "cuda" else "a CPU"
    return f"programmatic dependent launch needs a GPU of sm_90 or newer; {device.name} is {what}"


def peak_tflops(arch: str, units: int, clock_mhz: int) -> tuple[tuple[str, float], ...]:
    """Nominal rates in TFLOP/s by dtype at ``clock_mhz``; empty for an architecture not in the table."""
    if arch not in ARCHITECTURES:
        return ()
    scale = units * clock_mhz * 1e-6
    return tuple((dtype, round(flops * scale, 1)) for dtype, flops in ARCHITECTURES[arch].flops_per_clock)


def peak_gbps(memory_clock_mhz: int, bus_bytes: int) -> float:
    """Nominal memory bandwidth in GB/s: two transfers of the whole bus in a memory clock."""
    return round(2 * memory_clock_mhz * bus_bytes * 1e-3, 1)


def named_device(arch: str) -> Device:
    """The device that ``arch`` stands for, to compile for without having one.

    sm_80 is an A100 80 GB, sm_86 an RTX 3090, sm_89 an RTX 4090, sm_90a an H200. Raises InvalidDevice.
    """
    if arch not in ARCHITECTURES:
        raise unknown_device(arch)
    a = ARCHITECTURES[arch]
    return Device(
        kind="cuda",
        arch=a.arch,
        model=a.model,
        units=a.units,
        memory_bytes=a.memory_bytes,
        limits=a.limits,
        clock_mhz=a.clock_mhz,
        memory_clock_mhz=a.memory_clock_mhz,
        peak_tflops=peak_tflops(a.arch, a.units, a.clock_mhz),
        peak_gbps=peak_gbps(a.memory_clock_mhz, a.bus_bytes),
    )


def unknown_device(name: str) -> InvalidDevice:
    """The error that says what a device may be called."""
    return InvalidDevice(f"device {name!r:.80} is unknown; devices are cpu, cuda, cuda:N, {', '.join(ARCHITECTURES)}")


def l2_gbps(device: Device) -> float:
    """Nominal bandwidth in GB/s from L2 to the SMs: what their ports take, or what L2's slices give where that is
    less."""
    known = ARCHITECTURES.get(device.arch)
    ports = device.units * _L2_PORT_BYTES
    per_clock = min(ports, known.l2_bytes_per_clock) if known and known.l2_bytes_per_clock else ports
    return round(per_clock * device.clock_mhz * 1e-3, 1)


def shared_gbps(device: Device) -> float:
    """Nominal bandwidth in GB/s of all SMs' shared memory: every bank of every SM once a clock."""
    return round(device.units * BANKS * BANK_BYTES * device.clock_mhz * 1e-3, 1)


def resident_clusters(device: Device, cluster: int, blocks_per_sm: int) -> int:
    """Clusters of ``cluster`` blocks that the device holds at once where an SM holds ``blocks_per_sm``; 0: none.

    On an H200 as measured (``CLUSTERS_OF_H200``); on other sizes of its chip in proportion, which is an estimate.
    Raises InvalidDevice where the architecture has no clusters, or for more than 8 blocks, the portable limit.
    """
    if cluster == 1:
        return device.units * blocks_per_sm
    if device.arch not in ARCHITECTURES or ARCHITECTURES[device.arch].capability < (9, 0):
        raise InvalidDevice(f"a cluster of {cluster} blocks needs sm_90a; {device.name} is {device.arch}")
    if not 1 <= cluster <= len(CLUSTERS_OF_H200):
        raise InvalidDevice(f"a cluster has 1 to {len(CLUSTERS_OF_H200)} blocks, not {cluster}")
    return clusters_at_once(device.units * blocks_per_sm, cluster)


def clusters_at_once(slots: int, cluster: int) -> int:
    """Clusters of ``cluster`` blocks, at most 8, that run at once where ``slots`` single blocks do: in proportion to
    those of an H200."""
    return slots * CLUSTERS_OF_H200[cluster - 1] // CLUSTERS_OF_H200[0]


def occupancy(limits: Limits, threads: int, registers: int, shared: int) -> int:
    """Blocks of ``threads`` threads, ``registers`` a thread and ``shared`` bytes that one SM holds at a time; 0: none.

    The granularities (registers by 256 a warp, warps by the four schedulers, shared memory by 128 bytes and the
    driver's 1 KiB a block) are those of the vendor's ``cuda_occupancy.h`` for compute capability 8.0 to 9.0.
    """
    return min(occupancy_limits(limits, threads, registers, shared).values())


def occupancy_limits(limits: Limits, threads: int, registers: int, shared: int) -> dict[str, int]:
    """``occupancy`` by what limits it: the blocks that ``threads``, ``registers``, ``shared`` memory and the number of
    ``blocks`` alone would allow; 0 for what no block may have.
    """
    warps = max(1, -(-threads // WARP))
    per_warp = _round_up(max(registers, 1) * WARP, _REGISTER_UNIT)
    fits = {
        "threads": 1 <= threads <= limits.threads_per_block,
        # A block may not ask for more than there is with its warps rounded up to all schedulers.
        "registers": registers <= limits.registers_per_thread
        and per_warp * _round_up(warps, _WARP_UNIT) <= limits.registers_per_sm,
        "shared": shared <= limits.shared_per_block,
        "blocks": True,
    }
    most = {
        "threads": limits.threads_per_sm // (warps * WARP),
        "registers": limits.registers_per_sm // _WARP_UNIT // per_warp * _WARP_UNIT // warps,
        "shared": limits.shared_per_sm // (_round_up(shared, _SHARED_UNIT) + limits.shared_reserved_per_block),
        "blocks": limits.blocks_per_sm,
    }
    return {name: count if fits[name] else 0 for name, count in most.items()}


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
