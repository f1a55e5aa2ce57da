"""SASS as values: functions, instructions, basic blocks and loops of a cubin, as nvdisasm prints them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from tirgemm.analysis.sass.control_flow import (
    BasicBlock,
    Flow,
    NaturalLoop,
    blocks_of,
    natural_loops,
    nest_of,
    reachable,
)
from tirgemm.analysis.sass.disassembler import disassembly
from tirgemm.analysis.sass.memory_access import MemoryAccess, memory_access
from tirgemm.analysis.sass.opcodes import TEXTURE, UNKNOWN, unit_of
from tirgemm.errors import AnalysisFailed


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    ``address`` in bytes from the function's start; ``predicate`` as printed (``@!P0``) or empty; ``opcode`` without and
    ``modifiers`` with what follows it after dots; ``operands`` as printed, without ``.reuse``; ``block`` its basic
    block; ``loops`` the loops around it, outermost first; ``memory`` what it does to memory, None for one that touches
    none; ``spill`` whether the assembler marks it as a register's spill or refill.
    """

    address: int
    predicate: str
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    block: int
    loops: tuple[int, ...]
    memory: MemoryAccess | None
    spill: bool = False

    @property
    def name(self) -> str:
        """Opcode and modifiers: ``LDS.128``."""
        return ".".join((self.opcode, *self.modifiers))

    @property
    def unit(self) -> str:
        """The unit that runs it (``tirgemm.analysis.sass.opcodes``), or ``unknown``."""
        return unit_of(self.opcode)

    @property
    def is_predicated_off(self) -> bool:
        """Whether its predicate is constantly false: it is there for its timing alone."""
        return self.predicate in ("@!PT", "@!UPT")

    @property
    def is_predicated(self) -> bool:
        """Whether it runs for lanes of which a predicate holds."""
        return self.predicate not in ("", "@PT", "@UPT")


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel's machine code.

    Instructions of subroutines that it calls are among its own and in no loop of their callers.
    """

    name: str
    arch: str
    instructions: tuple[Instruction, ...]
    blocks: tuple[BasicBlock, ...]
    loops: tuple[NaturalLoop, ...]

    @property
    def executed(self) -> tuple[Instruction, ...]:
        """The instructions that some path reaches and whose predicate is not constantly false."""
        return tuple(i for i in self.instructions if self.blocks[i.block].reachable and not i.is_predicated_off)

    @property
    def memory(self) -> tuple[Instruction, ...]:
        """Those of ``executed`` that touch memory, in order of address."""
        return tuple(i for i in self.executed if i.memory is not None)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of opcodes that this analysis does not know, and of textures' and surfaces', sorted."""
        return tuple(sorted({i.opcode for i in self.executed if i.unit in (UNKNOWN, TEXTURE)}))

    def is_conditional(self, instruction: Instruction) -> bool:
        """Whether it has a predicate, or a jump forward goes past it: some turn of its innermost loop, or outside of
        loops some way to the kernel's end, leaves it out."""
        if instruction.is_predicated:
            return True
        loop = self.loops[instruction.loops[-1]] if instruction.loops else None
        ends = (
            set(loop.latches)
            if loop is not None
            else {b.index for b in self.blocks if not b.successors and self.instructions[b.stop - 1].opcode == "EXIT"}
        )
        first = loop.header if loop is not None else 0
        inside = loop.blocks if loop is not None else frozenset(range(len(self.blocks)))
        return bool(ends & _reached(self.blocks, first, inside - {instruction.block}))

    def waits(self, loop: NaturalLoop) -> bool:
        """Whether ``loop`` only waits, for an mbarrier or for registers: how often it turns is nobody's to know, and it
        moves no data."""
        inside = [i for i in self.executed if i.block in loop.blocks]
        tries = any((i.opcode, word) in _TRIES for i in inside for word in i.modifiers)
        return tries and all(
            i.memory is None or i.memory.kind == "barrier" or i.memory.space == "constant" for i in inside
        )

    def is_elect_loop(self, loop: NaturalLoop) -> bool:
        """Whether ``loop`` runs an instruction of uniform registers for lanes that may differ: once where they
        agree."""
        ends = [self.instructions[self.blocks[latch].stop - 1] for latch in loop.latches]
        return all(i.opcode == "BRA" and i.modifiers == ("U", "ANY") for i in ends)

    def mix(self, trips: Mapping[int, float] | None = None) -> dict[str, float]:
        """How often each opcode with modifiers stands in the code, or runs where ``trips`` gives each loop's turns.

        Turns are a loop's per entry, by its index; every block of a loop counts as run in each of its turns, and code
        outside of loops once. Loops that only wait (``waits``) or elect lanes (``is_elect_loop``) count once where not
        given. Raises AnalysisFailed where another loop has no count.
        """
        counts: dict[str, float] = {}
        for instruction in self.executed:
            times = 1 if trips is None else self.runs(instruction, trips)
            counts[instruction.name] = counts.get(instruction.name, 0) + times
        return counts

    def units(self, trips: Mapping[int, float] | None = None) -> dict[str, float]:
        """``mix`` by the unit that runs the instruction."""
        counts: dict[str, float] = {}
        for name, count in self.mix(trips).items():
            unit = unit_of(name.split(".")[0])
            counts[unit] = counts.get(unit, 0) + count
        return counts

    def runs(self, instruction: Instruction, trips: Mapping[int, float]) -> float:
        """How often ``instruction`` runs in a warp that takes its path, from turns by loop index. Raises
        AnalysisFailed."""
        times = 1.0
        for index in instruction.loops:
            if index in trips:
                times *= trips[index]
            elif not (self.waits(self.loops[index]) or self.is_elect_loop(self.loops[index])):
                at = self.instructions[self.blocks[self.loops[index].header].start].address
                raise AnalysisFailed(f"{self.name}: the loop at {at:#x} (number {index}) has no trip count")
        return times


def _reached(blocks: Sequence[BasicBlock], first: int, among: Set[int]) -> set[int]:
    """The blocks on ways from ``first`` that stay ``among`` some, and do not come back to it."""
    seen: set[int] = set()
    ahead = [first]
    while ahead:
        block = ahead.pop()
        if block in among and block not in seen:
            seen.add(block)
            ahead += [following for following in blocks[block].successors if following != first]
    return seen


@lru_cache(maxsize=2)
def disassemble(cubin: bytes) -> tuple[Function, ...]:
    """The functions of ``cubin``, by name. Raises MissingExtra without nvdisasm, AnalysisFailed for what it cannot
    read."""
    functions = parse(disassembly(cubin))
    if not functions:
        raise AnalysisFailed(f"the cubin of {len(cubin)} bytes has no code")
    return functions


# A failed try goes round again.
_TRIES = (("SYNCS", "PHASECHK"), ("USETMAXREG", "TRY_ALLOC"))
_ARCH = re.compile(r"^\s*\.target\s+(\w+)")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,]+),")
_NAMED = re.compile(r"^([.\w$]+):\s*$")
_CODE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P[0-9T]+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;?\s*$")
_LABEL = re.compile(r"`\((\.L_[\w$]+)\)")
_TARGETS = re.compile(r"BRANCH_TARGETS\s+([.\w$,]+)")


@dataclass(slots=True)
class _Raw:
    address: int
    predicate: str
    name: str
    rest: str


def parse(text: str) -> tuple[Function, ...]:
    """The functions of what nvdisasm printed. Raises AnalysisFailed for a line of code that it cannot read."""
    arch, section = "", ""
    code: dict[str, list[_Raw]] = {}
    labels: dict[str, dict[str, int]] = {}
    for words in text.splitlines():
        if match := _ARCH.match(words):
            arch = match[1]
        elif match := _SECTION.match(words):
            section = match[1].strip('"')
            code[section], labels[section] = [], {}
        elif not section:
            continue
        elif match := _CODE.match(words):
            code[section].append(_Raw(int(match[1], 16), match[2] or "", match[3], match[4]))
        elif match := _NAMED.match(words):
            labels[section][match[1]] = len(code[section])
        elif re.match(r"^\s*/\*[0-9a-f]{4,}\*/", words):
            raise AnalysisFailed(f"{section}: {words.strip()!r} is not an instruction that this analysis can read")
    return tuple(_function(name, arch, raw, labels[name]) for name, raw in sorted(code.items()) if raw)


def _function(name: str, arch: str, code: list[_Raw], labels: dict[str, int]) -> Function:
    starts = blocks_of(len(code), _flow(name, code, labels))
    successors = [targets for _, _, targets in starts]
    loops = natural_loops(successors)
    alive = reachable(successors)
    blocks = tuple(
        BasicBlock(index, start, stop, targets, nest_of(index, loops), index in alive)
        for index, (start, stop, targets) in enumerate(starts)
    )
    instructions = []
    for block in blocks:
        for raw in code[block.start : block.stop]:
            opcode, *modifiers = raw.name.split(".")
            operands = _operands(raw.rest)
            instructions.append(
                Instruction(
                    raw.address,
                    raw.predicate,
                    opcode,
                    tuple(modifiers),
                    operands,
                    block.index,
                    block.loops,
                    memory_access(opcode, tuple(modifiers), operands),
                    spill='"SpillRefill"' in raw.rest,
                )
            )
    return Function(name, arch, tuple(instructions), blocks, loops)


def _operands(text: str) -> tuple[str, ...]:
    text = re.sub(r"\(\*.*?\*\)", "", text).replace(".reuse", "")
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _flow(name: str, code: list[_Raw], labels: dict[str, int]) -> Flow:
    """Where control goes: jumps, calls, ends. A BSYNC goes where its BSSY says, which is the next instruction
    mostly."""
    jumps: dict[int, tuple[int, ...]] = {}
    stops: set[int] = set()

    def target(label: str) -> int:
        if label not in labels:
            raise AnalysisFailed(f"{name}: the code jumps to {label}, which it does not define")
        return labels[label]

    joins: dict[str, list[tuple[int, int]]] = {}
    for at, raw in enumerate(code):
        label = _LABEL.search(raw.rest)
        if raw.name.split(".")[0] == "BSSY" and label:
            joins.setdefault(raw.rest.split(",")[0].strip(), []).append((at, target(label[1])))
    for at, raw in enumerate(code):
        opcode, _, modifiers = raw.name.partition(".")
        label = _LABEL.search(raw.rest)
        conditional = raw.predicate not in ("", "@PT", "@UPT")
        if opcode in ("BRA", "JMP") and label:
            jumps[at] = (target(label[1]),)
            before = raw.rest[: label.start()].strip()
            conditional = conditional or bool(before) or modifiers not in ("", "U")
        elif opcode in ("BRX", "JMX", "BRXU", "JMXU"):
            listed = _TARGETS.search(raw.rest)
            if listed is None:
                raise AnalysisFailed(
                    f"{name}: the jump at {raw.address:#x} ({raw.name} {raw.rest}) has no known targets"
                )
            jumps[at] = tuple(target(label) for label in listed[1].split(",") if label)
        elif opcode == "CALL":
            named = re.search(r"`\(([.\w$]+)\)", raw.rest)
            if named and named[1] in labels:
                jumps[at] = (labels[named[1]],)
            conditional = conditional or label is None  # a call of a label is a jump that never comes back
        elif opcode == "BSYNC":
            known = joins.get(raw.rest.strip(), [])
            if any(end == at + 1 for _, end in known) or not known:
                continue
            jumps[at] = (max((pair for pair in known if pair[0] < at), default=known[0])[1],)
        elif opcode not in ("EXIT", "RET", "KILL"):
            continue
        if not conditional:
            stops.add(at)
    return Flow(jumps, frozenset(stops), frozenset(labels.values()))
