"""Memory tables of a report: shared memory, global memory, tiles that TMA and wgmma move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tirgemm.analysis.bank_collision import worst_collision
from tirgemm.analysis.banks.shared_access import SharedAccess
from tirgemm.analysis.banks.wavefronts import bank_model
from tirgemm.analysis.explanation import Explanation, KernelExplanation
from tirgemm.analysis.match.accesses import AS_WRITTEN as _AS_WRITTEN
from tirgemm.analysis.memory_traffic import AccessReport
from tirgemm.service.explain.conflict_fix_text import conflict_fix_notes, conflict_fix_sentence
from tirgemm.service.explain.reasons import why_sectors
from tirgemm.service.explain.tables import Cell, Section, Tone, count, listed, row, share, size, table
from tirgemm.tuning.conflict_fixes import NO_FIXES, ConflictFixes

LSU_SPACES = ("shared", "distributed")
_TILES = ("bulk", "matrix")
_SECTOR = 32
_THROUGH_L1 = (
    "Conflicts of cp.async through L1 are of what lanes write and of what they read: L1's lines lie in the same banks. "
    "Notes and pictures are of what is written alone."
)
_PAST_L1 = (
    "Wavefronts of cp.async of 16 bytes, which go past L1, are the fewest: no conflict of theirs is counted where "
    "every lane copies, and how many passes write what arrives no address tells."
)


@dataclass(frozen=True, slots=True)
class _AccessGroup:
    """Accesses of one buffer that do the same, in the loop and around it."""

    accesses: tuple[AccessReport, ...]

    @property
    def first(self) -> AccessReport:
        return self.accesses[0]

    @property
    def worst(self) -> AccessReport:
        """The one with most conflicts, or most sectors beyond the fewest."""
        return max(self.accesses, key=lambda a: (a.conflicts, a.sectors - a.fewest_sectors))

    def total(self, name: str) -> int:
        return sum(getattr(access, name) for access in self.accesses)

    @property
    def codes(self) -> Cell:
        counts: dict[str, int] = {}
        for code in (code for access in self.accesses for code in access.code):
            counts[code.name] = counts.get(code.name, 0) + code.count
        return Cell(", ".join(f"{number} {name}" for name, number in counts.items()), "soft")

    @property
    def fate(self) -> Cell:
        access = self.first
        if access.unknown:
            return Cell(f"not counted: {access.unknown}", "bad")
        sampled = ", from a part of the iterations" if any(a.sampled for a in self.accesses) else ""
        told = "" if access.fate == _AS_WRITTEN else access.fate
        return Cell(f"{told}{sampled}".removeprefix(", "), "soft")


def _grouped(accesses: Iterable[AccessReport]) -> list[_AccessGroup]:
    groups: dict[object, list[AccessReport]] = {}
    for a in accesses:
        key = (a.buffer, a.operand, a.space, a.op, a.width, a.matrices, a.transposed, a.detail, a.fate, a.unknown)
        groups.setdefault(key, []).append(a)
    return [_AccessGroup(tuple(same)) for same in groups.values()]


def shared(
    explanation: Explanation, kernel: KernelExplanation, fixes: ConflictFixes = NO_FIXES, named: str = ""
) -> Section:
    """Accesses of shared memory by the load/store unit; where some conflict, the two lanes that collide and the knobs
    that would remove it."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    groups = _grouped(a for a in kernel.memory.accesses if a.space in LSU_SPACES and a.op not in _TILES)
    for group in groups:
        access, collision = group.first, None
        if group.worst.conflicts and group.worst.example:
            collision = worst_collision(group.worst.example)
        if collision is not None:
            fix = conflict_fix_sentence(fixes, access)
            notes.append(f"[{len(notes) + 1}] {plural(access)} of {buffer_name(access)}: {collision}.{fix}")
        requests, wavefronts = group.total("requests"), group.total("wavefronts")
        rows.append(
            row(
                buffer_name(access),
                operation(access),
                count(requests),
                count(wavefronts),
                f"{wavefronts / requests:.3g}" if requests else "",
                _verdict(group, f" [{len(notes)}]" if collision else ""),
                group.codes,
                group.fate,
            )
        )
    heads = (
        "buffer",
        "access",
        ">requests",
        ">wavefronts",
        ">a request",
        ">conflicts",
        "machine code",
        "what the compiler did",
    )
    if bank_model(explanation.device.arch).copies == "as counted":
        notes += _of_copies([group for group in groups if group.first.op == "copy"])
    if any(group.total("conflicts") for group in groups):
        notes += conflict_fix_notes(fixes)
    return table(f"Shared memory{named}", heads, rows, notes=notes, topic="shared")


def _of_copies(groups: Iterable[_AccessGroup]) -> Iterator[str]:
    """What the figures of cp.async mean where it is not served as a store is."""
    past = {group: SharedAccess("cp.async", group.first.width).past_l1 for group in groups}
    if any(group.total("conflicts") for group in past if not past[group]):
        yield _THROUGH_L1
    if any(past.values()):
        yield _PAST_L1


def _verdict(group: _AccessGroup, note: str) -> Cell:
    if group.first.unknown:
        return Cell("unknown", "bad")
    if not group.total("requests"):
        return Cell("never runs", "soft")
    conflicts = group.total("conflicts")
    return Cell(f"{count(conflicts)}{note}", "bad") if conflicts else Cell("free", "good")


def global_memory(explanation: Explanation, kernel: KernelExplanation, named: str = "") -> Section:
    """Accesses of global memory by the load/store unit: sectors, and how much of them is used."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    groups = _grouped(a for a in kernel.memory.accesses if a.space == "global" and a.op not in _TILES)
    for group in groups:
        access, requests, sectors = group.first, group.total("requests"), group.total("sectors")
        fewest, used = group.total("fewest_sectors"), group.total("used_bytes")
        mark = ""
        if sectors > fewest and (why := why_sectors(group.worst)):
            notes.append(f"[{len(notes) + 1}] {plural(access)} of {access.operand}: {why}.")
            mark = f" [{len(notes)}]"
        tone: Tone = "soft" if access.unknown else "good" if sectors == fewest else "bad"
        rows.append(
            row(
                access.operand or access.buffer,
                operation(access),
                count(requests),
                str(min(a.aligned_bytes for a in group.accesses if a.requests)) if requests else "",
                f"{sectors / requests:.3g}" if requests else "",
                f"{fewest / requests:.3g}" if requests else "",
                Cell(f"{share(used / (_SECTOR * sectors)) if sectors else ''}{mark}", tone),
                size(_SECTOR * sectors),
                group.codes,
                group.fate,
            )
        )
    heads = (
        "operand",
        "access",
        ">requests",
        ">aligned",
        ">sectors",
        ">fewest",
        ">used",
        ">moved",
        "machine code",
        "what the compiler did",
    )
    if rows:
        notes += _alignment_words(explanation, {group.first.operand for group in groups})
    return table(f"Global memory{named}", heads, rows, notes=notes, topic="global")


def _alignment_words(explanation: Explanation, touched: set[str]) -> Iterator[str]:
    mine = [a for a in explanation.alignments if a.operand in touched]
    for each in mine:
        if each.nbytes < _SECTOR:
            inside = " in each matrix" if each.pitch_bytes % (2 * each.nbytes) == 0 else ""
            yield (
                f"Rows of {each.operand} lie {count(each.pitch_bytes)} bytes apart{inside}: they begin at multiples of "
                f"{each.nbytes}, within sectors of {_SECTOR} bytes."
            )
    good = [each.operand for each in mine if each.nbytes >= _SECTOR]
    if good:
        yield f"Every row of {listed(good)} begins a sector where its base address does."


def tiles(kernel: KernelExplanation, named: str = "") -> Section:
    """What TMA and wgmma move past the load/store unit."""
    rows = [
        row(buffer_name(g.first), g.first.detail, count(g.total("requests")), g.codes, g.fate)
        for g in _grouped(a for a in kernel.memory.accesses if a.op in _TILES)
    ]
    notes = (
        "These move whole tiles past the load/store unit: no bank counter counts them, and the swizzle spreads the "
        "rows of a tile over the banks. An instruction of a warpgroup counts once a warp.",
    )
    heads = ("buffer", "access", ">warp instructions", "machine code", "what the compiler did")
    return table(f"TMA and wgmma{named}", heads, rows, notes=notes if rows else (), topic="tiles")


def buffer_name(access: AccessReport) -> str:
    """The buffer without the scope that TVM appends to its name, and whose data it holds."""
    name = access.buffer.removesuffix(".dyn").removesuffix("_shared")
    owned = not access.operand or name.startswith(access.operand)
    return name if owned else f"{name} of {access.operand}"


def operation(access: AccessReport) -> str:
    """What is done, in how many bytes a lane."""
    if access.matrices:
        words = f"{access.op}.x{access.matrices}{'.trans' if access.transposed else ''}"
    else:
        words = f"{'cp.async' if access.op == 'copy' else access.op}, {access.width} bytes"
    return f"{words} to a peer" if access.space == "distributed" else words


def plural(access: AccessReport) -> str:
    """Several of its operation."""
    return {"copy": "copies", "ldmatrix": "ldmatrix", "stmatrix": "stmatrix"}.get(access.op, f"{access.op}s")
