"""The roofline of a GEMM on a device: arithmetic, bytes at each level, the time each ceiling allows, and which
binds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tirgemm.analysis.sass.program import Function
from tirgemm.device import Device
from tirgemm.errors import AnalysisFailed
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand
from tirgemm.hardware import ARCHITECTURES, l2_gbps, shared_gbps

Level = Literal["dram", "l2", "shared"]
LEVELS: tuple[Level, ...] = ("dram", "l2", "shared")


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """What a unit of a device was seen to do, in TFLOP/s or GB/s, and in what it was ``taken``, in words."""

    rate: float
    taken: str


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """A measured time of a call in microseconds, what it was ``taken`` in, in words, and the SM clock meanwhile, if
    known."""

    us: float
    taken: str
    clock_mhz: int | None = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was seen of a kernel and of its device: the kernel's time, and rates by the name of their ceiling
    (``compute`` in TFLOP/s, the others in GB/s), which take the place of nominal ones."""

    time: MeasuredTime | None = None
    rates: Mapping[str, MeasuredRate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What one unit allows: ``name`` (``compute``, ``dram``, ``l2``, ``shared``), its ``rate`` in TFLOP/s or GB/s,
    whether that was ``measured`` (``taken``: in what) or is nominal, the ``amount`` of work in FLOP or bytes, and the
    time in microseconds it takes.
    """

    name: str
    rate: float
    unit: Literal["TFLOP/s", "GB/s"]
    measured: bool
    amount: float
    taken: str = ""

    @property
    def us(self) -> float:
        return self.amount / (self.rate * 1e6) if self.unit == "TFLOP/s" else self.amount / (self.rate * 1e3)


@dataclass(frozen=True, slots=True)
class Roofline:
    """A GEMM's ceilings, and with ``time_us`` how near to the lowest of them a kernel came.

    ``intensity``: FLOP a byte at each level. ``ridge``: the intensity from which on arithmetic binds.
    """

    flops: int
    peak: str
    ceilings: tuple[Ceiling, ...]
    time_us: float | None = None

    def ceiling(self, name: str) -> Ceiling:
        """The ceiling ``name``. Raises AnalysisFailed with the known ones."""
        for candidate in self.ceilings:
            if candidate.name == name:
                return candidate
        raise AnalysisFailed(f"there is no ceiling {name!r}; there are {', '.join(c.name for c in self.ceilings)}")

    @property
    def bound(self) -> Ceiling:
        """The ceiling that allows the least speed: no kernel that does this work is faster."""
        return max(self.ceilings, key=lambda ceiling: ceiling.us)

    @property
    def intensity(self) -> dict[str, float]:
        return {c.name: self.flops / c.amount for c in self.ceilings if c.name != "compute" and c.amount}

    @property
    def ridge(self) -> dict[str, float]:
        top = self.ceiling("compute").rate * 1e3
        return {c.name: top / c.rate for c in self.ceilings if c.name != "compute"}

    @property
    def tflops(self) -> float | None:
        """What was reached, in TFLOP/s."""
        return self.flops / (self.time_us * 1e6) if self.time_us else None

    @property
    def shares(self) -> dict[str, float]:
        """The share of each ceiling that was reached: its own time over the measured one."""
        return {c.name: c.us / self.time_us for c in self.ceilings} if self.time_us else {}

    @property
    def share(self) -> float | None:
        """The share of what the binding ceiling allows that was reached."""
        return self.shares[self.bound.name] if self.time_us else None


def roofline(
    gemm: Gemm,
    device: Device,
    peak: str,
    *,
    m: int | None = None,
    moved: Mapping[str, float | None] | None = None,
    measured: Mapping[str, MeasuredRate] | None = None,
    clock_mhz: int | None = None,
    time_us: float | None = None,
) -> Roofline:
    """The roofline of ``gemm`` at ``m`` (the largest) on ``device``.

    ``peak``: which of the device's rates the kernel's arithmetic has (``peak_of``). ``moved``: bytes, for ``l2`` from
    L2 to the SMs (sectors times 32), for ``shared`` wavefronts times 128; a level left out has no ceiling.
    ``measured``: rates that records have, by ceiling name (``compute`` in TFLOP/s, the others in GB/s), in place of the
    nominal ones; ``clock_mhz``: the clock that the nominal ones are taken at, the device's highest by default (memory
    has its own). Raises AnalysisFailed for a rate that is not known.
    """
    m = gemm.m_max if m is None else m
    given = dict(measured or {})
    scale = clock_mhz / device.clock_mhz if clock_mhz and device.clock_mhz else 1.0
    rates = dict(device.peak_tflops)
    if peak not in rates and "compute" not in given:
        raise AnalysisFailed(f"{device.name} has no known rate {peak!r}; known are {', '.join(rates) or 'none'}")
    nominal = {
        "compute": rates.get(peak, 0.0) * scale,
        "dram": device.peak_gbps,
        "l2": l2_gbps(device) * scale,
        "shared": shared_gbps(device) * scale,
    }
    flops = 2 * m * gemm.n * gemm.k * gemm.batch
    amounts: dict[str, float | None] = {
        "compute": flops,
        "dram": compulsory_bytes(gemm, m),
        "l2": None,
        "shared": None,
    }
    amounts |= moved or {}
    ceilings = []
    for name, amount in amounts.items():
        seen = given.get(name)
        rate = seen.rate if seen is not None else nominal[name]
        if amount is None:
            continue
        if rate <= 0:
            raise AnalysisFailed(f"the rate of {name} of {device.name} is {rate}; give a measured one")
        unit: Literal["TFLOP/s", "GB/s"] = "TFLOP/s" if name == "compute" else "GB/s"
        ceilings.append(Ceiling(name, rate, unit, seen is not None, amount, seen.taken if seen is not None else ""))
    if time_us is not None and time_us <= 0:
        raise AnalysisFailed(f"the measured time is {time_us} us; it must be positive")
    return Roofline(flops, peak, tuple(ceilings), time_us)


def measured_for(known: Mapping[str, MeasuredRate], gemm: Gemm, function: Function) -> dict[str, MeasuredRate]:
    """Of the rates ``known`` of a device those that are ceilings of ``function``, by ceiling.

    Rates of arithmetic are of one instruction and kind (``mma_rate``): they bound no kernel that has another
    instruction.
    """
    rates: dict[str, MeasuredRate] = {level: known[level] for level in LEVELS if level in known}
    opcodes = {i.opcode for i in function.executed}
    rate = known.get(mma_rate(gemm.dtype, gemm.acc))
    if rate is not None and "HMMA" in opcodes and "HGMMA" not in opcodes:
        rates["compute"] = rate
    return rates


def mma_rate(dtype: str, acc: str) -> str:
    """The name of the measured rate of ``mma.sync`` on ``dtype`` that is summed in ``acc``."""
    return f"mma.sync:{dtype}:{acc}"


def peak_formula(device: Device, peak: str) -> str:
    """How the nominal rate comes about, as the articles have it: SMs x lanes x 2 x clock. Raises AnalysisFailed."""
    known = ARCHITECTURES.get(device.arch)
    flops = dict(known.flops_per_clock).get(peak) if known else None
    if flops is None:
        raise AnalysisFailed(f"{device.name} has no known rate {peak!r}")
    rate = device.units * flops * device.clock_mhz * 1e-6
    return f"{device.units} SMs x {flops // 2} lanes x 2 x {device.clock_mhz / 1000:g} GHz = {rate:.1f} TFLOP/s"


def peak_of(gemm: Gemm, function: Function) -> str:
    """Which rate the arithmetic of ``function`` has, by its opcodes: the tensor cores' for the dtype, else ``f32``, or
    ``f16_simt`` where pairs of halves are summed. Raises AnalysisFailed for code without arithmetic.
    """
    counts = {"HMMA": 0, "HGMMA": 0, "FFMA": 0, "HFMA2": 0}
    for instruction in function.executed:
        if instruction.opcode in counts:
            # HFMA2.MMA with two zeros is how the compiler sets a register.
            moves = instruction.opcode == "HFMA2" and "RZ" in "".join(instruction.operands[1:3])
            counts[instruction.opcode] += not moves
    if counts["HMMA"] or counts["HGMMA"]:
        if gemm.dtype == "f32":
            return "tf32"
        return "f16_acc16" if gemm.acc == "f16" else gemm.dtype
    if not counts["FFMA"] and not counts["HFMA2"]:
        raise AnalysisFailed(f"{function.name} has no multiply-adds that this analysis knows")
    return "f16_simt" if counts["HFMA2"] > counts["FFMA"] else "f32"


def compulsory_bytes(gemm: Gemm, m: int | None = None) -> int:
    """Bytes that must move to or from memory: every operand's elements once, at ``m`` (the largest)."""
    m = gemm.m_max if m is None else m
    elements = {"a": m * gemm.k, "b": gemm.k * gemm.n, "c": m * gemm.n, "d": m * gemm.n}
    used: list[Operand] = ["a", "b", "d", *(("c",) if gemm.beta else ())]
    total = sum(elements[operand] * gemm.batch * DTYPE_BYTES[gemm.operand_dtype(operand)] for operand in used)
    return total + (gemm.n * DTYPE_BYTES[gemm.out] if gemm.bias else 0)
