"""Text of a report, section by section, in sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tirgemm.analysis.explanation import Explanation, KernelExplanation
from tirgemm.analysis.sass.opcode_mix import Counts
from tirgemm.service.explain.gather import Report
from tirgemm.service.explain.glossary import knobs, legend
from tirgemm.service.explain.memory import LSU_SPACES, buffer_name, global_memory, plural, shared, tiles
from tirgemm.service.explain.rivals import rivals
from tirgemm.service.explain.tables import (
    Cell,
    Section,
    Tone,
    count,
    duration,
    flops,
    listed,
    rate,
    rounded_to,
    row,
    share,
    size,
    table,
)

_UNITS = {"fp32": "fp32 arithmetic", "fp16": "fp16 arithmetic", "tensor": "tensor cores", "shared": "shared memory"}
_FEW = 8
_NAMES = {"dram": "memory (every operand once)", "l2": "L2 to the SMs", "shared": "shared memory"}


def sections(report: Report, *, with_words: bool = True) -> tuple[Section, ...]:
    """Everything, the kernel that multiplies first; ``with_words`` ends with what knobs, words and signs mean."""
    explanation = report.explanation
    others = [kernel for kernel in explanation.kernels if kernel is not explanation.main]
    parts = [summary(explanation), roofline(explanation)]
    for kernel in (explanation.main, *others):
        named = f" of {kernel.symbol}" if others else ""
        parts += [
            shared(explanation, kernel, report.fixes, named),
            global_memory(explanation, kernel, named),
            tiles(kernel, named),
        ]
        parts += [resources(explanation, kernel, named), opcodes(kernel, named)]
    parts += [unknown(explanation), *(rivals(report.rivals) if report.rivals else ())]
    told = tuple(part for part in parts if part.lines or part.rows or part.notes)
    return (*told, knobs(explanation), legend(explanation, told)) if with_words else told


# What it is, and the sentences that matter most


def summary(explanation: Explanation) -> Section:
    """What the kernel is, and in a sentence each what its parts come to."""
    device, gemm, main = explanation.device, explanation.gemm, explanation.main
    at = f" at m={explanation.m}" if gemm.m_max != explanation.m or "." in str(gemm.m) else ""
    config = ", ".join(f"{name}={value}" for name, value in explanation.config.knobs)
    lines = [
        f"problem: {gemm}{at}",
        f"device: {device.model}, {device.arch}, {device.units} SMs",
        f"family: {explanation.config.family}{', its default config' if explanation.default else ''}",
        f"config: {config}",
        f"machine code: {explanation.code}",
    ]
    return Section("What it is", tuple(lines), notes=tuple(_verdicts(explanation, main)))


def _verdicts(explanation: Explanation, main: KernelExplanation) -> Iterator[str]:
    if explanation.verdict == "latency":
        yield _latency_words(explanation)
    elif explanation.roofline is not None:
        bound = explanation.roofline.bound
        name = _ceiling_name(bound.name, explanation.roofline.peak)
        known = explanation.roofline
        part = ""
        if known.time_us is not None and known.share is not None:
            part = f"; measured {duration(known.time_us)}, so {share(known.share)} of it is reached"
        yield f"Bound by {name}, which takes at least {duration(bound.us)}{part}."
    loads = [a for a in main.memory.accesses if a.space in LSU_SPACES and a.wavefronts]
    bad = [a for a in loads if a.conflicts]
    if bad:
        lost, total = sum(a.conflicts for a in bad), sum(a.wavefronts for a in loads)
        where = listed(sorted({f"{plural(a)} of {buffer_name(a)}" for a in bad}))
        yield f"Bank conflicts in {where}: {count(lost)} of {count(total)} wavefronts ({share(lost / total)})."
    elif loads:
        yield f"No bank conflicts in {count(sum(a.wavefronts for a in loads))} wavefronts of shared memory."
    wasteful = [a for a in main.memory.accesses if a.space == "global" and a.sectors > a.fewest_sectors]
    if wasteful:
        where = listed(sorted({f"{plural(a)} of {a.operand}" for a in wasteful}))
        most, least = sum(a.sectors for a in wasteful), sum(a.fewest_sectors for a in wasteful)
        yield f"Sectors beyond the fewest in {where}: {count(most)} for {count(least)}."
    if main.occupancy is not None:
        yield _occupancy_words(main) + "."
    if main.waves is not None:
        yield _wave_words(explanation, main) + "."
    if main.resources is not None and main.resources.spill_bytes:
        yield f"Registers spill: {main.resources.spill_bytes} bytes of spill code a thread."


def _latency_words(explanation: Explanation) -> str:
    """Why a small problem is bound by no ceiling, by which figures."""
    latency, known = explanation.latency, explanation.roofline
    assert latency is not None
    assert known is not None
    waits, turns = latency.waits, latency.turns
    part = f" It was measured at {duration(known.time_us)}." if known.time_us is not None else ""
    return (
        f"Small: bound by latency, not by a ceiling. Launches take about {duration(waits.launch_us)}, and {turns} "
        f"wave{'s' if turns > 1 else ''} of {waits.steps} step{'s' if waits.steps > 1 else ''} of k "
        f"wait{'' if turns > 1 else 's'} about {duration(latency.waiting_us)} for loads: {duration(latency.us)}, where "
        f"the highest ceiling, {_ceiling_name(known.bound.name, known.peak)}, is {duration(known.bound.us)}.{part}"
    )


def _occupancy_words(kernel: KernelExplanation) -> str:
    occupancy = kernel.occupancy
    assert occupancy is not None
    blocks = f"{occupancy.blocks} block{'s' if occupancy.blocks > 1 else ''} of {occupancy.threads} threads"
    limits = listed(_LIMIT_NAMES.get(name, name) for name in occupancy.bound_by)
    warps = f"{occupancy.warps} of {occupancy.max_warps} warps ({share(occupancy.share)})"
    return f"{blocks} an SM: {warps}, limited by {limits}"


_LIMIT_NAMES = {
    "shared": "shared memory",
    "blocks": "the number of blocks",
    "barriers": "named barriers",
}


def wave_items(explanation: Explanation, kernel: KernelExplanation) -> str:
    """What the waves of ``kernel`` consist of: tiles where its blocks take one after the other, by as many as a cluster
    has."""
    cluster = kernel.waves.cluster if kernel.waves is not None else 1
    if explanation.cut is not None and explanation.cut.tiles is not None and kernel is explanation.main:
        what = "parts of tiles" if explanation.cut.parts > 1 else "tiles"
        return what if cluster == 1 else f"groups of {cluster} {what}"
    return "clusters" if cluster > 1 else "blocks"


def _wave_words(explanation: Explanation, kernel: KernelExplanation) -> str:
    waves = kernel.waves
    assert waves is not None
    what = wave_items(explanation, kernel)
    number = f"{waves.waves:.2f}" if waves.waves >= 0.1 else f"{waves.waves:.2g}"
    whole = f"{count(waves.items)} {what} over {count(waves.slots)} at a time: {number} waves"
    if waves.turns == 1:
        return f"{whole}, {share(1 - waves.waves)} of the places empty" if waves.waves < 1 else f"{whole}, a full one"
    tail = f"the last of {waves.turns} has {waves.tail}" if waves.tail < waves.slots else "all full"
    return f"{whole}, {tail}: {share(waves.loss)} of the places idle"


# What it takes, and how it fills the device


def resources(explanation: Explanation, kernel: KernelExplanation, named: str = "") -> Section:
    """Registers, spills, shared memory, occupancy with each limit, waves."""
    taken = kernel.resources
    grid = " x ".join(map(str, kernel.grid))
    lines = [
        f"launch: {grid} blocks of {kernel.threads} threads"
        + (f" in clusters of {' x '.join(map(str, kernel.cluster))}" if max(kernel.cluster) > 1 else "")
    ]
    if taken is not None:
        spills = (
            f"{taken.spill_store_bytes} bytes of spill stores and {taken.spill_load_bytes} of refills in the code"
            if taken.spill_bytes
            else "no spills"
        )
        lines.append(f"registers: {taken.registers} a thread, {spills}")
        if taken.local_store_bytes or taken.local_load_bytes:
            lines.append("local memory: arrays of a thread that are indexed at run time")
    static = f" and {count(taken.shared_bytes)} static" if taken is not None and taken.shared_bytes else ""
    lines.append(f"shared memory: {count(kernel.dynamic_shared_bytes)} bytes a block{static}")
    if kernel.occupancy is not None:
        limits = ", ".join(f"{_LIMIT_NAMES.get(name, name)} {blocks}" for name, blocks in kernel.occupancy.limits)
        lines.append(f"occupancy: {_occupancy_words(kernel)}")
        lines.append(f"blocks by limit: {limits}")
    if kernel.waves is not None:
        lines.append(f"waves: {_wave_words(explanation, kernel)}")
        if kernel.waves.idle_units:
            lines.append(f"unused: {kernel.waves.idle_units} SMs, in which no cluster fits")
        spare = kernel.waves.units - kernel.waves.idle_units - prod(kernel.grid)
        if kernel.waves.turns > 1 and spare > 0:
            lines.append(f"unused: {spare} SMs, which get no block: so few blocks take no more waves")
    if explanation.coverage is not None and kernel is explanation.main and explanation.cut is not None:
        cut = explanation.cut
        edge = (
            f"{share(explanation.coverage.loss)} of the arithmetic is outside the matrices"
            if explanation.coverage.loss
            else "no edge is cut"
        )
        lines.append(f"tiles: {count(explanation.coverage.tiles)} of {cut.m} x {cut.n}, k in steps of {cut.k}; {edge}")
    return Section(f"Resources{named}", tuple(lines), topic="resources")


def opcodes(kernel: KernelExplanation, named: str = "") -> Section:
    """What the main loop is made of, and the whole code."""
    mix = kernel.opcodes
    if mix is None:
        return Section(f"Opcodes{named}")
    lines = []
    if mix.loop_instructions:
        shares = _shares(mix.loop_units, mix.loop_instructions)
        lines.append(f"main loop: {count(mix.loop_instructions)} instructions, of which {shares}")
        shown = ", ".join(f"{number} {name}" for name, number in mix.loop_opcodes[:_FEW])
        lines.append(f"by opcode: {shown}{', ...' if len(mix.loop_opcodes) > _FEW else ''}")
    whole = ", ".join(f"{_UNITS.get(unit, unit)} {count(number)}" for unit, number in mix.units[:_FEW])
    lines.append(f"whole code: {count(mix.instructions)} instructions, of which {whole}")
    lines.append(
        f"as run: {count(mix.executed)} instructions of a warp that takes every path, of which "
        f"{_shares(mix.executed_units, mix.executed)}"
    )
    turns = [f"the one at {address} {count(number)} times" for address, number in mix.turns if number > 1]
    if mix.once:
        turns.append(f"counted once, for no constants say how often: {listed(mix.once)}")
    if turns:
        lines.append(f"loops turn: {'; '.join(turns)}")
    return Section(f"Opcodes{named}", tuple(lines))


def _shares(units: Counts, total: int) -> str:
    return ", ".join(
        f"{_UNITS.get(unit, unit)} {count(number)} ({share(number / total)})" for unit, number in units[:_FEW]
    )


# The roofline


def roofline(explanation: Explanation) -> Section:
    """Every ceiling: what it is, the work, the time that it allows, which binds, and the share reached."""
    known = explanation.roofline
    if known is None:
        return Section("Roofline")
    rows = []
    for ceiling in sorted(known.ceilings, key=lambda each: -each.us):
        binds = ceiling.name == explanation.verdict
        tone: Tone = "strong" if binds else "plain"
        arithmetic = ceiling.unit == "TFLOP/s"
        work = flops(ceiling.amount) if arithmetic else size(ceiling.amount)
        speed = f"{ceiling.rate:,.4g} TFLOP/s" if arithmetic else rate(ceiling.rate)
        intensity = known.intensity.get(ceiling.name)
        rows.append(
            row(
                Cell(_ceiling_name(ceiling.name, known.peak), tone),
                speed,
                "measured" if ceiling.measured else "by formula",
                work,
                rounded_to(intensity, 4) if intensity else "",
                Cell(duration(ceiling.us), tone),
                share(known.shares[ceiling.name]) if known.shares else "",
                Cell("binds" if binds else "", "strong"),
            )
        )
    heads = ("ceiling", ">rate", "", ">work", ">FLOP a byte", ">at least", ">reached", "")
    lines = [f"peak: {explanation.peak_formula}"]
    clock = (
        f"the {count(explanation.clock_mhz)} MHz at which it was measured"
        if explanation.clock_mhz
        else "the highest clock"
    )
    some = "; measured where the table says so" if any(c.measured for c in known.ceilings) else ""
    lines.append(f"rates: by formula, of the SMs at {clock}{some}")
    lines += [f"measured: {_ceiling_name(c.name, known.peak)}: {c.taken}" for c in known.ceilings if c.measured]
    if known.time_us:
        lines.append(f"time: {duration(known.time_us)}, {known.tflops:.4g} TFLOP/s ({explanation.timed})")
    notes = []
    if explanation.verdict == "latency" and explanation.latency is not None:
        notes.append(f"None of these binds: latency is {duration(explanation.latency.us)}.")
    if any(a.op == "matrix" for a in explanation.main.memory.accesses):
        notes.append("What wgmma reads of shared memory has no ceiling here: it passes the load/store unit by.")
    return table("Roofline", heads, rows, lines, notes, "roofline")


def _ceiling_name(name: str, peak: str) -> str:
    return f"arithmetic ({peak})" if name == "compute" else _NAMES.get(name, name)


def unknown(explanation: Explanation) -> Section:
    """All that is in no figure, by name."""
    return Section("Not in these figures", tuple(str(each) for each in explanation.unknown))
