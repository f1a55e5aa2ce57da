"""Tables of banks, wavefronts and lines for docs/bank-conflicts.md: computed from the articles' accesses, nothing
measured.

``TABLES`` maps the name after ``banks/`` in a marker of render.py to the function that writes the table's Markdown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

from benchmarks.article_kernels import (
    ARTICLE_TABLES,
    SGEMM_KERNELS,
    THREADS,
    SgemmCounts,
    SgemmKernel,
    bank_groups,
    fits,
    padding_layouts,
    padding_patterns,
    sgemm_counts,
    sgemm_loads,
    sgemm_stores,
    sgemm_tiles,
)
from benchmarks.tables import table
from tirgemm.analysis.banks import coalescing
from tirgemm.analysis.banks.access_patterns import Pattern, copy_store, ldmatrix
from tirgemm.analysis.banks.conflict_proof import prove, smallest_pad, solve
from tirgemm.analysis.banks.wavefronts import MODELS
from tirgemm.layouts import Layout, TiledCopy

_LD = 4096
# The article's two copies of fp16 by 128-bit cp.async, of 128 threads.
COPIES = {
    "whole line": TiledCopy.parse("(16,8):(8,1) x (1,8)"),
    "half line": TiledCopy.parse("(32,4):(4,1) x (1,8)"),
}
# Tiles of fp16 in shared memory: rows, columns, whose it is.
TILES = (
    (128, 32, "A or transposed B, k in steps of 32"),
    (128, 64, "A or transposed B, k in steps of 64"),
    (32, 128, "B or transposed A, 128 wide"),
    (32, 256, "B or transposed A, 256 wide"),
)
# Rows of a tile that TMA loads, in bytes.
SPANS = (128, 64, 32)


def groups() -> str:
    """The padding article's table, for each of the three layouts."""
    layouts = padding_layouts()
    columns = [bank_groups(layout) for layout in layouts.values()]
    rows = []
    for group in zip(*columns, strict=True):
        cells = [group[0][0]]
        for _, total, inner in group:
            cells += [_span(*total), _span(*inner)]
        rows.append(cells)
    heads = [f"{name}: {what}" for name in layouts for what in ("word", "bank")]
    return table(["threads", *heads], rows)


def padding() -> str:
    """Wavefronts and conflicts of the padding article's loads and stores by layout."""
    rows = []
    for access, pattern in padding_patterns().items():
        proofs = [prove(layout, pattern) for layout in padding_layouts().values()]
        cells = [f"{_per(p.report.wavefronts.sum(), p.report.requests)} ({p.report.total_conflicts})" for p in proofs]
        rows.append([access, str(proofs[0].report.requests), *cells])
    return table(["access", "requests", *padding_layouts()], rows)


def collisions() -> str:
    """Two lanes that collide, for every layout and access of the padding article that is not conflict-free."""
    lines = []
    for name, layout in padding_layouts().items():
        for access, pattern in padding_patterns().items():
            proof = prove(layout, pattern)
            if proof.collision is not None:
                lines.append(f"- {name}, {access}: {proof.collision}.")
    return "\n".join(lines)


def solved() -> str:
    """The smallest pad and the swizzle: tiles that 256 threads store by 16 bytes and ldmatrix reads, and fp32's A."""
    rows = []
    for height, width, what in TILES:
        copy = TiledCopy.row_major(THREADS, width, 8)
        stores = copy_store(copy, height, width, "store.128", 8)
        rows.append(_solved(Layout.plain(height, width, 2), f"fp16, {what}", ldmatrix(height, width), stores))
    kernel = next(kernel for kernel in SGEMM_KERNELS if kernel.name == "z-order")
    reads, stores = sgemm_loads(kernel)[0], sgemm_stores()[0]
    rows.append(_solved(sgemm_tiles(kernel)[0], "fp32, A transposed on the way, read in z-order", reads, stores))
    return table(["tile", "of", "pad for the loads", "pad for loads and stores", "swizzle for both"], rows)


def _solved(layout: Layout, what: str, loads: Pattern, stores: Pattern) -> list[str]:
    both = solve(layout, [loads, stores])
    pads = [_pad(smallest_pad(layout, [loads])), _pad(both.padded)]
    return [f"{layout.rows}x{layout.columns}", what, *pads, _swizzle(both.permuted)]


def tma() -> str:
    """Reads of 8 rows of 16 bytes from a tile that TMA has loaded, with and without its swizzle."""
    rows = []
    for span in SPANS:
        layouts = Layout.plain(64, span // 2, 2), Layout.tma(64, span // 2, 2, span)
        reports = [prove(layout, ldmatrix(64, span // 2, 1)).report for layout in layouts]
        cells = [f"{_per(r.total_wavefronts, r.requests)} ({r.total_conflicts})" for r in reports]
        rows.append([f"{span} bytes", _swizzle(layouts[1]), *cells])
    return table(["rows of", "swizzle of fp16", "plain", "swizzled"], rows)


def sgemm() -> str:
    """What the SGEMM article's kernels count at 4096^3, beside the ncu tables that the article shows."""
    rows = [_counted(kernel, sgemm_counts(kernel)) for kernel in SGEMM_KERNELS]
    rows += [_cells(f"*article, table {number}*", table, "") for number, table in enumerate(ARTICLE_TABLES, 1)]
    heads = ["kernel", "loads", "their wavefronts", "conflicts", "stores", "their wavefronts", "conflicts", "is table"]
    return table(heads, rows)


def _counted(kernel: SgemmKernel, counts: SgemmCounts) -> list[str]:
    same = [str(number) for number, table in enumerate(ARTICLE_TABLES, 1) if fits(counts, table)]
    return _cells(kernel.name, counts, ", ".join(same))


def _cells(name: str, counts: SgemmCounts, last: str) -> list[str]:
    return [name, *(f"{number:,}" for number in astuple(counts)), last]


def requests() -> str:
    """Wavefronts of one request of each kind of access of the SGEMM article's kernels, and its conflicts."""
    rows = []
    for kernel in SGEMM_KERNELS:
        cells = []
        for patterns in (sgemm_loads(kernel), sgemm_stores()):
            for tile, pattern in zip(sgemm_tiles(kernel), patterns, strict=True):
                report = prove(tile, pattern, "sm_86").report
                cells.append(
                    f"{_per(report.total_wavefronts, report.requests)} "
                    f"({_per(report.total_conflicts, report.requests)})"
                )
        rows.append([kernel.name, *cells])
    return table(["kernel", "read of A", "read of B", "store of A", "store of B"], rows)


def zorder() -> str:
    """The SGEMM article's picture: which lanes read which banks, in z-order, for the first reads of B and A."""
    kernel = next(kernel for kernel in SGEMM_KERNELS if kernel.name == "z-order")
    rows = []
    for name, pattern in zip(("A", "B"), sgemm_loads(kernel), strict=True):
        for instruction in (0, 1):
            report = prove(Layout.plain(8, 128, 4), pattern, "sm_86").report
            by_bank: dict[int, list[int]] = {}
            for lane, address in enumerate(report.addresses[instruction].tolist()):
                by_bank.setdefault(address // 4 % 32, []).append(lane)
            cells = [" ".join(map(str, by_bank.get(bank, []))) for bank in range(0, 32, 4)]
            rows.append([f"{name}, {('first', 'second')[instruction]}", *cells])
    return table(["read", *(f"{bank}-{bank + 3}" for bank in range(0, 32, 4))], rows)


def copies() -> str:
    """A warp's copy of fp16 rows by the article's whole-line and half-line copies: what it reads, and where it stores
    it.

    Sectors and lines of global memory; wavefronts of the store to a permuted tile of 64 columns, and its conflicts.
    """
    rows = []
    tile = Layout.tma(128, 64, 2, 128)
    for name, copy in COPIES.items():
        at = copy.requests(tile.rows, tile.columns, 8)
        report = coalescing.analyze(coalescing.matrix_addresses(at, _LD, 2), 16)
        stored = prove(tile, copy_store(copy, tile.rows, tile.columns, "store.128", 8)).report
        rows.append(
            [
                name,
                f"`{copy}`",
                "x".join(map(str, copy.tiler)),
                f"{report.sectors_per_request:g}",
                f"{report.lines_per_request:g}",
                f"{report.efficiency:.0%}",
                f"{report.line_efficiency:.0%}",
                f"{_per(stored.total_wavefronts, stored.requests)} ({stored.total_conflicts})",
            ]
        )
    heads = ["copy", "threads x values", "tile", "sectors", "lines", "of sectors used", "of lines used", "store"]
    return table(heads, rows)


def model() -> str:
    """The parameters of the bank model by architecture."""
    rows = []
    for arch, m in MODELS.items():
        lanes = ", ".join(f"{lanes} of {8 * width}" for width, lanes in m.phase_lanes)
        pairs = " or ".join(f"n^{pairing}" for pairing in m.pairings)
        pairs = f"{pairs}, of {m.pairing_lanes} lanes" if pairs else "none"
        rows.append([f"`{arch}`", f"{m.banks} x {m.bank_bytes} bytes", lanes, pairs, m.copies])
    return table(["architecture", "banks", "lanes of a phase, of so many bits", "pairs of loads", "cp.async"], rows)


def _span(first: int, last: int) -> str:
    return f"{first}~{last}"


def _per(total: int, requests: int) -> str:
    return f"{total / requests:g}"


def _pad(layout: Layout | None) -> str:
    return "none works" if layout is None else f"{layout.pad} elements"


def _swizzle(layout: Layout | None) -> str:
    if layout is None or layout.permutation is None:
        return "not needed" if layout is not None else "none works"
    p = layout.permutation
    return f"`Swizzle<{p.bits}, {p.base}, {p.shift}>`"


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each for each in (groups, padding, collisions, solved, tma, sgemm, requests, zorder, copies, model)
}
