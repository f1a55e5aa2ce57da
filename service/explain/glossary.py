"""Glossary of a report: terms and knobs with their meanings."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tirgemm.analysis.explanation import Explanation
from tirgemm.families import family_named
from tirgemm.service.explain.tables import Section, row, table

# Names, each told with its meaning, the third, where its pattern, the second, occurs in a report.
_WORDS = (
    ("us", r"\d us\b", "microseconds"),
    ("sm_80, sm_90a", r"\bsm_\d+a?\b", "the GPU's architecture, as CUDA names it"),
    ("SM", r"\bSMs?\b", "streaming multiprocessor: a processor of the GPU, with a shared memory of its own"),
    ("block", r"\bblocks?\b", "threads that run on one SM and share its shared memory"),
    ("warp, lane", r"\b(warps?|lanes?)\b", "32 threads that issue an instruction together, and one of them"),
    ("warpgroup", r"warpgroup", "four warps, which issue a wgmma together"),
    ("cluster", r"\bclusters?\b", "blocks on SMs side by side that reach each other's shared memory"),
    ("a_tile, tile", r"tile", "the part of a matrix that a block has in shared memory, or computes"),
    ("step of k", r"steps? of (k|\d+)", "a turn of the main loop: one tile of A and of B is multiplied"),
    ("ceiling", r"\bceiling\b", "the least time in which a unit of the GPU does the kernel's work; the longest binds"),
    ("latency", r"\blatency\b", "what a launch and the way of a load take, however fast the units are"),
    ("f16, bf16, f32, tf32", r"\b(b?f16|t?f32)\b", "fp16, bfloat16, fp32; fp32 with the mantissa of fp16"),
    ("peak", r"\bpeak\b", "the rate of the arithmetic units: a multiply-add a lane and clock is two operations"),
    ("FLOP", r"FLOP\b", "a floating-point operation; a multiply-add (FMA) is two"),
    ("FLOP a byte", r"FLOP a byte", "operations for each byte that passes a level of memory"),
    ("L2, dram", r"\bL2\b|dram", "the cache that all SMs share, and the memory behind it"),
    ("by formula", r"by formula", "a rate from the GPU's data sheet and clock, not measured"),
    ("request", r"\brequests?\b", "one memory instruction of one warp"),
    ("wavefront", r"wavefronts?\b", "one pass of shared memory: at most one word of 4 bytes from each bank"),
    ("bank", r"\b[Bb]anks?\b", "one of 32 parts of shared memory; the word at byte address x is in bank x / 4 mod 32"),
    ("conflict", r"conflicts?\b", "a wavefront beyond the fewest that the same width, lanes and addresses need"),
    ("free", r"\bfree\b", "of bank conflicts"),
    ("sector", r"\b[Ss]ectors?\b", "32 bytes of global memory, the least that is moved"),
    ("fewest, used", r"\bfewest\b.*\bused\b", "sectors that the bytes would need; the share of moved bytes asked for"),
    ("aligned", r"\baligned\b", "every request begins at a multiple of so many bytes"),
    ("a gain of ... is predicted", r"is predicted beside", "by how much less time the changed config should take"),
    ("occupancy", r"\boccupancy\b", "warps that an SM holds at a time, of all that it could"),
    ("wave", r"\bwaves?\b", "as many blocks, or tiles, as run at a time"),
    ("spills", r"spills?\b", "values that fit no register and go through memory"),
    ("named barriers", r"named barriers", "points at which some warps of a block wait for one another"),
    ("cp.async", r"cp\.async", "a copy from global to shared memory past the registers"),
    ("LDGSTS .BYPASS .LTC128B", r"\bLDGSTS", "cp.async in machine code: past L1; L2 fetches 128 bytes"),
    ("LDSM, STSM .16.M88.4", r"\b(LDSM|STSM)\b", "ldmatrix, stmatrix in machine code, of 4 matrices"),
    (
        "ldmatrix, stmatrix .x4 .trans",
        r"(ld|st)matrix",
        "a warp loads or stores so many matrices of 8 x 8 halves, each row one lane's address; .trans: transposed",
    ),
    ("TMA", r"\bTMA\b", "tensor memory accelerator: copies a box of a matrix for the one thread that asks"),
    ("box", r"\bbox(es)?\b", "what TMA moves at once: columns x rows of a matrix"),
    (
        "swizzle",
        r"swizzle",
        "16-byte parts of a row change places by the row's number, so that columns spread over banks",
    ),
    ("core matrix", r"core matri", "8 rows of 16 bytes, which wgmma reads at once"),
    ("wgmma mMnNkK", r"wgmma m\d", "a warpgroup multiplies M x K by K x N out of shared memory"),
    ("HGMMA.MxNxK.F32", r"HGMMA", "wgmma in machine code, summed in fp32"),
    ("HMMA.16816.F32", r"\bHMMA", "mma.sync: a warp multiplies 16 x 16 by 16 x 8 out of registers, summed in fp32"),
    ("LDS, STS .64 .128", r"\b(LDS|STS)\b", "load from, store to shared memory, of 32 or so many bits a lane"),
    (
        "LDG, STG .E .CONSTANT",
        r"\b(LDG|STG)\b",
        "load from, store to global memory, by an address of 64 bits; of data that nobody writes",
    ),
    ("UTMALDG, UTMASTG .2D", r"UTMA", "TMA's load and store in machine code, of so many dimensions"),
    ("FFMA, HFMA2, HADD2", r"\b(FFMA|HFMA2|HADD2)\b", "fp32 multiply-add; multiply-add and addition of two halves"),
    (
        "other opcodes",
        r"whole code|by opcode",
        "machine instructions as nvdisasm names them; of those with a U in front a warp has one result",
    ),
    ("uniform, control, move", r"uniform|control|\bmove\b", "what is computed once a warp; jumps; copies of registers"),
    ("32 STS", r"machine code\b", "so many such instructions are in the code"),
    ("as run", r"as run", "every loop counted as often as it turns"),
    ("[1]", r"\[1\]", "the note below the table"),
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
    used = [f"{name}: {meaning}" for name, pattern, meaning in _WORDS if re.search(pattern, text)]
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
