"""A report's figures: each an SVG with a sentence on what it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tirgemm.analysis.banks import wavefronts
from tirgemm.analysis.banks.access_patterns import Pattern
from tirgemm.analysis.banks.conflict_proof import find_swizzle, misalignment, smallest_pad
from tirgemm.analysis.explanation import Explanation
from tirgemm.analysis.figures.charts import roofline_picture, waves_picture
from tirgemm.analysis.figures.shared_memory import bank_picture, copy_picture, tile_picture
from tirgemm.analysis.memory_traffic import AccessReport
from tirgemm.analysis.shared_tile import requests, shared_tile
from tirgemm.analysis.simulate.counting import RequestKind
from tirgemm.analysis.tma_box import box_picture
from tirgemm.errors import InvalidRequest
from tirgemm.layouts import Layout
from tirgemm.service.explain.drawing import Drawing, LegendKey
from tirgemm.service.explain.memory import buffer_name, operation
from tirgemm.service.explain.report_text import wave_items

_MOST_REQUESTS = 8
_MOST_PATTERNS = 2
_UNIT = 16


_LANES: LegendKey = (
    ("hues", "the lane that gets the word, or the first of several; colours repeat after eight"),
    ("l", "a bank that has nothing to give in this wavefront"),
    ("x", "a wavefront that accesses without conflicts would not need"),
    ("", "0-3: lanes 0 to 3, which read the same word; 8 x: so many lanes"),
    ("", "phase: lanes that are served together, by the width of the access; wavefront: one pass of all banks"),
    ("", "the numbers on top are banks"),
)
_CELLS: LegendKey = (
    ("hues", "the bank in which a cell of 16 bytes begins, which is its number; four banks a colour"),
    ("d", "padding"),
    ("", "16x128:4+4: rows x columns: bytes of an element, + elements of padding after each row"),
    (
        "",
        "^3,3,3: permuted by a swizzle, which flips 3 bits of an element's place from bit 3 on by those 3 bits higher",
    ),
)
_FRAMES: LegendKey = (
    ("o", "cells of the request's first phase that have their banks for themselves"),
    ("x", "cells of it of which two lanes want different words of one bank"),
)
_VALUES: LegendKey = (
    ("hues", "a thread's run of values; colours repeat after eight threads"),
    ("", "T5 v0-7: thread 5 copies this as its values 0 to 7; the numbers at the edges are rows and columns"),
)
_PARTS: LegendKey = (
    ("hues", "16 bytes by their place in the row of the matrix"),
    ("", "0-7: elements of that row; row 3, +16: the line of the box in shared memory, and the byte in it"),
)
_BARS: LegendKey = (("h4", "blocks or tiles that run"), ("d", "places that stay empty"))
_LINES: LegendKey = (
    (
        "line g",
        "bandwidth of a level: dram is memory, l2 the way from L2 to the SMs, shared the shared memory of all SMs",
    ),
    ("line o", "the highest rate of arithmetic, by the name of the dtype"),
    ("r", "the kernel, at each level"),
)


def drawings(explanation: Explanation) -> tuple[Drawing, ...]:
    """Roofline, waves, banks, the shared tile and its copy, as far as the kernel has them."""
    return (*_roofline(explanation), *_waves(explanation), *_banks(explanation), *_tile(explanation))


def _roofline(explanation: Explanation) -> Iterator[Drawing]:
    known = explanation.roofline
    slopes = [c for c in known.ceilings if c.name != "compute"] if known else []
    if known is None or not slopes:
        return
    latency = explanation.latency if explanation.verdict == "latency" else None
    least_us, what = (latency.us, "latency") if latency else (known.bound.us, "the ceiling that binds")
    reached = known.tflops or known.flops / least_us / 1e6
    how = "as measured" if known.tflops else f"as {what} allows, for it is not measured"
    points = [(c.name, known.intensity[c.name], reached) for c in slopes]
    svg = roofline_picture(
        [(known.peak, known.ceiling("compute").rate)], [(c.name, c.rate) for c in slopes], points, "Roofline"
    )
    caption = "The kernel as a dot for each level of memory: across, its FLOP for a byte of that level; up, its speed,"
    yield Drawing("Roofline", f"{caption} {how}.", svg, ("roofline",), _LINES)


def _waves(explanation: Explanation) -> Iterator[Drawing]:
    waves = explanation.main.waves
    if waves is None:
        return
    units = waves.units if waves.cluster == 1 else 0
    svg = waves_picture(waves.items, waves.slots, what=wave_items(explanation, explanation.main), units=units)
    yield Drawing(
        "Waves over the SMs", "A bar a wave; what the last one leaves idle is hollow.", svg, ("resources",), _BARS
    )


def _banks(explanation: Explanation) -> Iterator[Drawing]:
    """The worst request of what conflicts, else of what loads and stores most; each kind once."""
    shown: dict[tuple[str, str], AccessReport] = {}
    for access in explanation.main.memory.accesses:
        if access.space == "shared" and access.op not in ("bulk", "matrix") and access.example is not None:
            key = buffer_name(access), operation(access)
            known = shown.get(key)
            if known is None or (access.conflicts, access.requests) > (known.conflicts, known.requests):
                shown[key] = access
    order = sorted(shown.values(), key=lambda a: (-a.conflicts, -a.requests))
    for access in order[:_MOST_REQUESTS]:
        assert access.example is not None
        try:
            kind = RequestKind("shared", access.op, access.width, access.matrices, access.transposed).access
        except InvalidRequest:
            continue
        addresses = [0 if address is None else address for address in access.example.addresses]
        active = [address is not None for address in access.example.addresses]
        report = wavefronts.analyze(addresses, kind, active, explanation.device.arch)
        caption = "The request that costs most: " if access.conflicts else "One request: "
        title = f"Banks: {operation(access)} of {buffer_name(access)}"
        counted = f"{report.total_wavefronts} wavefront{'s' if report.total_wavefronts != 1 else ''}, "
        if access.conflicts and not report.total_conflicts:
            counted += "as written; its conflicts are of what it reads"
        else:
            counted += f"{report.total_conflicts or 'none'} of them conflicts"
        yield Drawing(
            title,
            f"{caption}a row for each wavefront, by the phases in which lanes are served, and in each bank's column "
            f"the lanes.",
            bank_picture(report, title=f"{title}: {counted}"),
            ("shared",),
            _LANES,
        )


def _tile(explanation: Explanation) -> Iterator[Drawing]:
    tile = shared_tile(explanation.gemm, explanation.config, explanation.device)
    if tile is None:
        return
    mine = [a for a in explanation.main.memory.accesses if a.operand.partition("_")[0] == "a"]
    patterns = requests(tile, mine)
    layouts = _layouts(tile.layout, [*patterns.values()], explanation.device.arch)
    own = f"The kernel has {tile.layout}."
    caption = (
        "The tile of A in shared memory, each 16 bytes by the first of their banks: as it "
        "would lie in plain rows, padded, and permuted."
    )
    shown: Sequence[tuple[str, Pattern | None]] = [*patterns.items()][:_MOST_PATTERNS]
    for name, pattern in shown or (("", None),):
        fitting = {each: layout for each, layout in layouts.items() if pattern is None or _serves(layout, pattern)}
        title = f"The shared tile of A{f', {name}' if name else ''}"
        svg = tile_picture(fitting, pattern, arch=explanation.device.arch, title=title)
        yield Drawing(title, f"{caption} {own}", svg, ("shared", "tiles"), _CELLS + (_FRAMES if pattern else ()))
    if tile.copy is not None:
        yield Drawing(
            "The copy of A",
            "The thread-value map of the copy from global memory: which thread has which values of the tile.",
            copy_picture(tile.copy, "Which thread copies which values of A"),
            ("global", "shared"),
            _VALUES,
        )
    elif (
        box := next((each for each in explanation.main.boxes if each.tensor.partition("_")[0] == "a"), None)
    ) is not None:
        yield Drawing(
            f"The box of {box.tensor}",
            "TMA copies A: one thread asks for a box, and no thread has values of it, so that there is no thread-value "
            "map. The box as TMA writes it: a line a row, and where the swizzle puts each 16 bytes of it.",
            box_picture(box, f"The box of {box.tensor} that TMA copies: {box}"),
            ("tiles",),
            _PARTS,
        )


def _layouts(own: Layout, patterns: Sequence[Pattern], arch: str) -> dict[str, Layout]:
    """The tile in plain, padded and permuted rows: the kernel's own where it has such, else what serves its requests.

    Where no pad serves loads and stores, the one that serves the loads, as is usual; without either, 16 bytes.
    """
    plain = own.with_(stride=own.columns, permutation=None)
    loads = [pattern for pattern in patterns if pattern.access.reads]
    layouts = {"plain rows": plain, "padded": own, "permuted": own}
    if not own.pad:
        served = smallest_pad(plain, patterns, arch) or smallest_pad(plain, loads, arch)
        usual = plain.with_(stride=plain.columns + max(1, _UNIT // plain.element_bytes))
        layouts["padded"] = served if served is not None and served.pad else usual
    if own.permutation is None:
        permuted = find_swizzle(plain, patterns, arch) if patterns else None
        layouts = {name: layout for name, layout in layouts.items() if name != "permuted"}
        layouts |= {"permuted": permuted} if permuted is not None else {}
    return {f"{name}, as here" if layout == own else name: layout for name, layout in layouts.items()}


def _serves(layout: Layout, pattern: Pattern) -> bool:
    return misalignment(layout, pattern) is None
