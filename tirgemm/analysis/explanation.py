"""``Explanation``: memory, resources, waves, opcodes and roofline of all launches of a kernel, as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import gcd, prod
from typing import TYPE_CHECKING, Any, TypeVar

from tirgemm import expr
from tirgemm.analysis.bank_collision import worst_collision
from tirgemm.analysis.banks.coalescing import LINE_BYTES, SECTOR_BYTES
from tirgemm.analysis.explanation_documents import (
    latency_document,
    occupancy_document,
    opcodes_document,
    roofline_document,
    waves_document,
)
from tirgemm.analysis.ir.sites import Unknown
from tirgemm.analysis.latency import Latency, latency_of
from tirgemm.analysis.memory_traffic import KernelAnalysis, analyse
from tirgemm.analysis.resources import (
    Coverage,
    Occupancy,
    Resources,
    Waves,
    coverage,
    occupancy_of,
    resources_of,
    waves_of,
)
from tirgemm.analysis.roofline import Measurements, Roofline, measured_for, peak_formula, peak_of, roofline
from tirgemm.analysis.sass.opcode_mix import OpcodeMix, opcode_mix
from tirgemm.analysis.sass.program import Function, disassemble
from tirgemm.analysis.tile_shape import output_tile
from tirgemm.analysis.tma_box import Box, boxes_of
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import AnalysisFailed, InvalidDevice, MissingExtra
from tirgemm.families.base import OutputTile
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand, Range, Regime
from tirgemm.launch import KernelLaunch, Launch

if TYPE_CHECKING:
    from tvm import IRModule

_WAVEFRONT_BYTES = 128
AS_WRITTEN = "as written, not as compiled"

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Alignment:
    """``operand``'s rows, of which it has several, lie ``pitch_bytes`` apart, and begin, in every matrix of a batch, at
    multiples of ``nbytes`` (at most a line) beyond its base address; the problem promises that this one is a multiple
    of ``base_bytes``."""

    operand: str
    nbytes: int
    pitch_bytes: int
    base_bytes: int


@dataclass(frozen=True, slots=True)
class KernelExplanation:
    """One launch. What comes from machine code is None without it, or where ``missing`` says why there is none.

    ``boxes``: of its tensor maps, what TMA moves at once.
    """

    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared_bytes: int
    boxes: tuple[Box, ...]
    memory: KernelAnalysis
    resources: Resources | None
    occupancy: Occupancy | None
    waves: Waves | None
    opcodes: OpcodeMix | None
    missing: tuple[Unknown, ...]

    @property
    def threads(self) -> int:
        return prod(self.block)

    def to_json(self) -> dict[str, Any]:
        """Everything, with what is derived; an access that conflicts has two lanes that collide as ``clash``."""
        memory = self.memory.to_json()
        for access, document in zip(self.memory.accesses, memory["accesses"], strict=True):
            collision = worst_collision(access.example) if access.example is not None and access.conflicts else None
            document["clash"] = asdict(collision) if collision else None
        return {
            "symbol": self.symbol,
            "grid": list(self.grid),
            "block": list(self.block),
            "cluster": list(self.cluster),
            "dynamic_shared_bytes": self.dynamic_shared_bytes,
            "boxes": [box.to_json() for box in self.boxes],
            "memory": {name: value for name, value in memory.items() if name != "symbol"},
            "resources": asdict(self.resources) if self.resources else None,
            "occupancy": occupancy_document(self.occupancy) if self.occupancy else None,
            "waves": waves_document(self.waves) if self.waves else None,
            "opcodes": opcodes_document(self.opcodes) if self.opcodes else None,
            "missing": [asdict(each) for each in self.missing],
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why ``config`` of ``gemm`` is as fast as it is on ``device``; a range of m is taken at ``m``.

    ``compiled``: whether machine code was read; ``code``: where it is from, in words. ``time_us`` is measured, where it
    is known, and ``timed``: by what; ``clock_mhz``: the clock at which the ceilings are taken, the device's highest if
    None. ``missing``: what could not be told, by name. ``latency``: of a family that knows it.
    """

    gemm: Gemm
    m: int
    device: Device
    config: Config
    default: bool
    compiled: bool
    code: str
    kernels: tuple[KernelExplanation, ...]
    alignments: tuple[Alignment, ...]
    cut: OutputTile | None
    coverage: Coverage | None
    roofline: Roofline | None
    peak_formula: str
    timed: str
    clock_mhz: int | None
    missing: tuple[Unknown, ...]
    latency: Latency | None = None

    @property
    def estimated(self) -> Gemm:
        """The problem for estimates, which are of the largest m: no more rows than it is taken at."""
        return self.gemm.with_(m=Range(self.gemm.m_min, self.m))

    @property
    def verdict(self) -> str | None:
        """What bounds it: ``latency``, where a ceiling explains little of the least time, else the highest ceiling;
        None where that is not known."""
        if self.roofline is None:
            return None
        bound = self.roofline.bound
        return "latency" if self.latency is not None and self.latency.binds(bound.us) else bound.name

    @property
    def main(self) -> KernelExplanation:
        """The kernel that multiplies: the one with most arithmetic; without machine code the one that reads most of its
        shared memory, which repacking and adding up do not."""
        return max(self.kernels, key=lambda k: (_arithmetic(k.opcodes), _shared_reads(k.memory)))

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """Everything that is in no figure here, by name."""
        return (*self.missing, *(each for k in self.kernels for each in (*k.missing, *k.memory.unknown)))

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "gemm": str(self.gemm),
            "m": self.m,
            "device": {
                "key": self.device.key,
                "name": self.device.name,
                "model": self.device.model,
                "arch": self.device.arch,
                "units": self.device.units,
            },
            "family": self.config.family,
            "config": dict(self.config.knobs),
            "config_hash": self.config.digest,
            "default": self.default,
            "compiled": self.compiled,
            "code": self.code,
            "main": self.main.symbol,
            "kernels": [kernel.to_json() for kernel in self.kernels],
            "alignments": [asdict(each) for each in self.alignments],
            "cut": asdict(self.cut) if self.cut else None,
            "coverage": asdict(self.coverage) if self.coverage else None,
            "roofline": roofline_document(self.roofline, self.peak_formula, self.clock_mhz) if self.roofline else None,
            "latency": latency_document(self.latency) if self.latency else None,
            "verdict": self.verdict,
            "timed": self.timed,
            "unknown": [asdict(each) for each in self.unknown],
        }


@dataclass(frozen=True, slots=True)
class ExplainedConfig:
    """What is explained: a config of a gemm on a device at ``m`` rows in a regime, and whether it is its family's
    default."""

    gemm: Gemm
    config: Config
    device: Device
    m: int
    default: bool = False
    regime: Regime = "sustained"


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The cubin and, in words, where it is from; None with what is ``missing`` for one."""

    cubin: bytes | None = None
    origin: str = AS_WRITTEN
    missing: tuple[Unknown, ...] = ()


def explain_launch(
    mod: IRModule, launch: Launch, subject: ExplainedConfig, code: MachineCode, measured: Measurements
) -> Explanation:
    """The explanation of ``launch``; ``mod`` and ``launch`` as ``analyse`` takes them.

    Without a cubin, or without a disassembler, it is as written. The clock of the measured time is that of nominal
    rates. Raises what ``analyse`` raises.
    """
    gemm, config, device, at = subject.gemm, subject.config, subject.device, subject.m
    functions: dict[str, Function] = {}
    resources: dict[str, Resources] = {}
    if code.cubin is not None:
        try:
            disassembled = disassemble(code.cubin)
            functions, resources = {f.name: f for f in disassembled}, resources_of(code.cubin, disassembled)
        except MissingExtra as error:
            code = MachineCode(missing=(*code.missing, Unknown("machine code", str(error))))
    memory = analyse(mod, launch, gemm, device, code.cubin, at)
    cut = output_tile(gemm, config, device, at)
    kernels = tuple(
        _kernel(kernel, one, functions.get(kernel.symbol), resources.get(kernel.symbol), device, at)
        for kernel, one in zip(launch.kernels, memory, strict=True)
    )
    made = Explanation(
        gemm,
        at,
        device,
        config,
        subject.default,
        code.cubin is not None,
        code.origin,
        kernels,
        _alignments(gemm, at),
        cut,
        coverage(at, gemm.n, gemm.k, (cut.m, cut.n, cut.k), gemm.batch) if cut else None,
        None,
        "",
        measured.time.taken if measured.time else "",
        measured.time.clock_mhz if measured.time else None,
        code.missing,
    )
    made = _with_roofline(_with_tiles(made), functions, measured)
    waves = made.main.waves
    return (
        replace(made, latency=latency_of(made.estimated, config, device, subject.regime, waves.turns))
        if waves
        else made
    )


def _kernel(
    kernel: KernelLaunch,
    memory: KernelAnalysis,
    function: Function | None,
    resources: Resources | None,
    device: Device,
    m: int,
) -> KernelExplanation:
    missing: list[Unknown] = []
    occupancy = waves = None
    if resources is not None:
        occupancy = _or_missing("occupancy", lambda: occupancy_of(kernel, resources, device), missing)
    if occupancy is not None:
        known = occupancy
        waves = _or_missing("waves", lambda: waves_of(kernel, known, device, m=m), missing)
    if function is not None and function.unknown:
        missing.append(Unknown(", ".join(function.unknown), "opcodes that this analysis does not know"))
    x, y, z = (expr.evaluate(extent, m) for extent in kernel.grid)
    return KernelExplanation(
        kernel.symbol,
        (x, y, z),
        kernel.block,
        kernel.cluster,
        kernel.shared_bytes,
        boxes_of(kernel, m),
        memory,
        resources,
        occupancy,
        waves,
        opcode_mix(function) if function is not None else None,
        tuple(missing),
    )


def _with_tiles(made: Explanation) -> Explanation:
    """The main kernel's waves in tiles, where its blocks take tile after tile: as many at a time as are launched."""
    main, tiles = made.main, made.cut.tiles if made.cut else None
    if main.waves is None or tiles is None:
        return made
    items, launched = -(-tiles // main.waves.cluster), main.waves.items
    slots = main.waves.slots if items == launched else min(main.waves.slots, launched)
    waves = replace(main.waves, items=items, slots=slots)
    kernels = tuple(replace(k, waves=waves) if k is main else k for k in made.kernels)
    return replace(made, kernels=kernels)


def _with_roofline(made: Explanation, functions: Mapping[str, Function], measured: Measurements) -> Explanation:
    missing = list(made.missing)
    symbol = made.main.symbol
    if symbol not in functions:
        missing.append(Unknown("roofline", "which unit does the arithmetic is read from the machine code"))
        missing.append(Unknown("occupancy and waves", "registers are read from the machine code"))
        return replace(made, missing=tuple(missing))

    def lines() -> tuple[Roofline, str]:
        peak = peak_of(made.gemm, functions[symbol])
        known = roofline(
            made.gemm,
            made.device,
            peak,
            m=made.m,
            moved={"l2": _l2_bytes(made), "shared": _shared_bytes(made)},
            measured=measured_for(measured.rates, made.gemm, functions[symbol]),
            time_us=measured.time.us if measured.time else None,
            clock_mhz=made.clock_mhz,
        )
        return known, peak_formula(made.device, peak)

    computed = _or_missing("roofline", lines, missing)
    if computed is None:
        return replace(made, missing=tuple(missing))
    return replace(made, missing=tuple(missing), roofline=computed[0], peak_formula=computed[1])


def _l2_bytes(made: Explanation) -> float | None:
    """Bytes that pass between L2 and the SMs: sectors of the load/store unit, and TMA's boxes once an instruction."""
    total = 0.0
    for kernel in made.kernels:
        for access in kernel.memory.accesses:
            total += SECTOR_BYTES * access.sectors
            if access.op == "bulk" and access.space == "shared":
                if access.requests and not access.used_bytes:
                    return None
                total += access.used_bytes
    return total or None


def _shared_bytes(made: Explanation) -> float | None:
    """Bytes of all wavefronts; None where tensor cores read shared memory past the load/store unit, uncounted here."""
    accesses = [a for kernel in made.kernels for a in kernel.memory.accesses]
    if any(a.op == "matrix" for a in accesses):
        return None
    return float(sum(a.wavefronts for a in accesses) * _WAVEFRONT_BYTES) or None


def _alignments(gemm: Gemm, m: int) -> tuple[Alignment, ...]:
    operands: list[Operand] = ["a", "b", *(("c",) if gemm.beta else ()), "d"]
    alignments = []
    for operand in operands:
        several = expr.evaluate(gemm.matrix(operand)[0], m) > 1
        steps = [
            *([gemm.leading(operand)] if several else ()),
            *([gemm.batch_stride(operand)] if gemm.batch > 1 else ()),
        ]
        nbytes = [expr.evaluate(step, m) * DTYPE_BYTES[gemm.operand_dtype(operand)] for step in steps]
        if nbytes:
            alignments.append(Alignment(operand, gcd(*nbytes, LINE_BYTES), nbytes[0], gemm.align))
    return tuple(alignments)


def _or_missing(name: str, make: Callable[[], Part], missing: list[Unknown]) -> Part | None:
    try:
        return make()
    except (AnalysisFailed, InvalidDevice) as error:
        missing.append(Unknown(name, str(error)))
        return None


def _arithmetic(mix: OpcodeMix | None) -> tuple[int, int]:
    counts = dict(mix.units) if mix is not None else {}
    return counts.get("tensor", 0), counts.get("fp32", 0) + counts.get("fp16", 0)


def _shared_reads(memory: KernelAnalysis) -> int:
    """Requests that read shared memory; wgmma's are warp instructions."""
    reads = ("load", "ldmatrix", "matrix")
    return sum(a.requests for a in memory.accesses if a.op in reads and a.space in ("shared", "distributed"))
