"""Glossary of a report: terms and knobs with their meanings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tirgemm.analysis.explanation import Explanation
from tirgemm.families import family_named
from tirgemm.service.explain.tables import Section, row, table


@dataclass(frozen=True, slots=True)
class ReportWord:
    """A ``name`` with its ``meaning``, told where ``pattern`` occurs in a report."""

    name: str
    pattern: str
    meaning: str


_WORDS = (
    ReportWord("us", r"\d us\b", "microseconds"),
    ReportWord("sm_80, sm_90a", r"\bsm_\d+a?\b", "the GPU's architecture, as CUDA names it"),
    ReportWord("SM", r"\bSMs?\b", "streaming multiprocessor: a processor of the GPU, with a shared memory of its own"),
    ReportWord("block", r"\bblocks?\b", "threads that run on one SM and share its shared memory"),
    ReportWord("warp, lane", r"\b(warps?|lanes?)\b", "32 threads that issue an instruction together, and one of them"),
    ReportWord("warpgroup", r"warpgroup", "four warps, which issue a wgmma together"),
    ReportWord("cluster", r"\bclusters?\b", "blocks on SMs side by side that reach each other's shared memory"),
    ReportWord("a_tile, tile", r"tile", "the part of a matrix that a block has in shared memory, or computes"),
    ReportWord("step of k", r"steps? of (k|\d+)", "a turn of the main loop: one tile of A and of B is multiplied"),
    ReportWord(
        "ceiling", r"\bceiling\b", "the least time in which a unit of the GPU does the kernel's work; the longest binds"
    ),
    ReportWord("latency", r"\blatency\b", "what a launch and the way of a load take, however fast the units are"),
    ReportWord("f16, bf16, f32, tf32", r"\b(b?f16|t?f32)\b", "fp16, bfloat16, fp32; fp32 with the mantissa of fp16"),
    ReportWord(
        "peak", r"\bpeak\b", "the rate of the arithmetic units: a multiply-add a lane and clock is two operations"
    ),
    ReportWord("FLOP", r"FLOP\b", "a floating-point operation; a multiply-add (FMA) is two"),
    ReportWord("FLOP a byte", r"FLOP a byte", "operations for each byte that passes a level of memory"),
    ReportWord("L2, dram", r"\bL2\b|dram", "the cache that all SMs share, and the memory behind it"),
    ReportWord("by formula", r"by formula", "a rate from the GPU's data sheet and clock, not measured"),
    ReportWord("request", r"\brequests?\b", "one memory instruction of one warp"),
    ReportWord("wavefront", r"wavefronts?\b", "one pass of shared memory: at most one word of 4 bytes from each bank"),
    ReportWord(
        "bank", r"\b[Bb]anks?\b", "one of 32 parts of shared memory; the word at byte address x is in bank x / 4 mod 32"
    ),
    ReportWord(
        "conflict", r"conflicts?\b", "a wavefront beyond the fewest that the same width, lanes and addresses need"
    ),
    ReportWord("free", r"\bfree\b", "of bank conflicts"),
    ReportWord("sector", r"\b[Ss]ectors?\b", "32 bytes of global memory, the least that is moved"),
    ReportWord(
        "fewest, used", r"\bfewest\b.*\bused\b", "sectors that the bytes would need; the share of moved bytes asked for"
    ),
    ReportWord("aligned", r"\baligned\b", "every request begins at a multiple of so many bytes"),
    ReportWord(
        "a gain of ... is predicted", r"is predicted beside", "by how much less time the changed config should take"
    ),
    ReportWord("occupancy", r"\boccupancy\b", "warps that an SM holds at a time, of all that it could"),
    ReportWord("wave", r"\bwaves?\b", "as many blocks, or tiles, as run at a time"),
    ReportWord("spills", r"spills?\b", "values that fit no register and go through memory"),
    ReportWord("named barriers", r"named barriers", "points at which some warps of a block wait for one another"),
    ReportWord("cp.async", r"cp\.async", "a copy from global to shared memory past the registers"),
    ReportWord("LDGSTS .BYPASS .LTC128B", r"\bLDGSTS", "cp.async in machine code: past L1; L2 fetches 128 bytes"),
    ReportWord("LDSM, STSM .16.M88.4", r"\b(LDSM|STSM)\b", "ldmatrix, stmatrix in machine code, of 4 matrices"),
    ReportWord(
        "ldmatrix, stmatrix .x4 .trans",
        r"(ld|st)matrix",
        "a warp loads or stores so many matrices of 8 x 8 halves, each row one lane's address; .trans: transposed",
    ),
    ReportWord("TMA", r"\bTMA\b", "tensor memory accelerator: copies a box of a matrix for the one thread that asks"),
    ReportWord("box", r"\bbox(es)?\b", "what TMA moves at once: columns x rows of a matrix"),
    ReportWord(
        "swizzle",
        r"swizzle",
        "16-byte parts of a row change places by the row's number, so that columns spread over banks",
    ),
    ReportWord("core matrix", r"core matri", "8 rows of 16 bytes, which wgmma reads at once"),
    ReportWord("wgmma mMnNkK", r"wgmma m\d", "a warpgroup multiplies M x K by K x N out of shared memory"),
    ReportWord("HGMMA.MxNxK.F32", r"HGMMA", "wgmma in machine code, summed in fp32"),
    ReportWord(
        "HMMA.16816.F32", r"\bHMMA", "mma.sync: a warp multiplies 16 x 16 by 16 x 8 out of registers, summed in fp32"
    ),
    ReportWord(
        "LDS, STS .64 .128", r"\b(LDS|STS)\b", "load from, store to shared memory, of 32 or so many bits a lane"
    ),
    ReportWord(
        "LDG, STG .E .CONSTANT",
        r"\b(LDG|STG)\b",
        "load from, store to global memory, by an address of 64 bits; of data that nobody writes",
    ),
    ReportWord("UTMALDG, UTMASTG .2D", r"UTMA", "TMA's load and store in machine code, of so many dimensions"),
    ReportWord(
        "FFMA, HFMA2, HADD2", r"\b(FFMA|HFMA2|HADD2)\b", "fp32 multiply-add; multiply-add and addition of two halves"
    ),
    ReportWord(
        "other opcodes",
        r"whole code|by opcode",
        "machine instructions as nvdisasm names them; of those with a U in front a warp has one result",
    ),
    ReportWord(
        "uniform, control, move",
        r"uniform|control|\bmove\b",
        "what is computed once a warp; jumps; copies of registers",
    ),
    ReportWord("32 STS", r"machine code\b", "so many such instructions are in the code"),
    ReportWord("as run", r"as run", "every loop counted as often as it turns"),
    ReportWord("[1]", r"\[1\]", "the note below the table"),
)


def knobs(explanation: Explanation) -> Section:
    """Every knob of the config with its value and what it sets."""
    gemm, config, device = explanation.gemm, explanation.config, explanation.device
    meanings = {knob.name: knob.meaning for knob in family_named(config.family).space(gemm, device).knobs}
    rows = [row(name, str(value), meanings.get(name, "")) for name, value in config.knobs]
    return table("Knobs of the config", ("knob", ">value", "what it sets"), rows)


def legend(explanation: Explanation, sections: Iterable[Section]) -> Section:
    """What the words of ``sections`` mean, those of the problem first."""
    text = "\n".join(_texts(sections))
    used = [f"{word.name}: {word.meaning}" for word in _WORDS if re.search(word.pattern, text)]
    return Section("Words and signs", (*_problem(explanation), *used))


def _problem(explanation: Explanation) -> Iterable[str]:
    """How the problem's text is read."""
    gemm = explanation.gemm
    yield f"{gemm}: m x n x k, the dtype of A and B, and how they lie: D = A B is m x n"
    yield (
        f"{gemm.layout}: A first, then B; n as it stands in the product (A has rows of k, B rows of n), t transposed "
        f"(A has rows of m, B rows of k)"
    )
    if gemm.alpha or gemm.beta or gemm.bias or gemm.act != "none":
        yield "alpha, beta, bias, an activation: D = act(alpha A B + beta C + bias)"


def _texts(sections: Iterable[Section]) -> Iterable[str]:
    for section in sections:
        yield from (section.title, *section.lines, " ".join(section.heads), *section.notes)
        yield from (" ".join(cell.text for cell in cells) for cells in section.rows)
