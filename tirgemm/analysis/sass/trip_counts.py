"""Trip counts of machine-code loops whose counters start, step and end at constants.

Nothing is guessed: a loop with more than one way out, or whose counter depends on anything else (a block's index,
memory), has no count here. It weighs the opcode mix, and is a check on counts that come from the IR.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tirgemm.analysis.sass.control_flow import NaturalLoop, dominates, dominators
from tirgemm.analysis.sass.program import Function, Instruction

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}
_ZERO = ("RZ", "URZ", "SRZ")
_ADDS = ("IADD3", "UIADD3", "VIADD", "IADD")
_MOVES = ("MOV", "UMOV")
_REGISTER = re.compile(r"U?R\d+")
_MOST_TURNS = 1 << 20


@dataclass(frozen=True, slots=True)
class _Test:
    """The way out: the comparison's place, the counter, what it is compared with, and when the loop goes on."""

    at: int
    counter: str
    limit: int
    compare: Callable[[int, int], bool]
    unsigned: bool
    stays: bool


def trip_counts(function: Function) -> dict[int, int]:
    """Loop -> its turns at each entry, of the loops whose counter says so."""
    parents = dominators([block.successors for block in function.blocks])
    counts = {}
    for loop in function.loops:
        turns = _turns(function, loop, parents)
        if turns is not None:
            counts[loop.index] = turns
    return counts


def _turns(function: Function, loop: NaturalLoop, parents: Mapping[int, int]) -> int | None:
    test = _test(function, loop)
    if test is None:
        return None
    steps = [
        (at, i)
        for block in loop.blocks
        for at, i in _numbered(function, block)
        if i.operands and i.operands[0] == test.counter
    ]
    if len(loop.blocks) == 1 or len(steps) != 1:
        return _followed(function, loop, test, parents)
    start = _start(function, loop, test.counter, parents)
    at, instruction = steps[0]
    step = _step(instruction, test.counter)
    # Both must happen in every turn, in a known order.
    tested, stepped = (function.instructions[place].block for place in (test.at, at))
    in_turn = all(dominates(b, latch, parents) for b in (tested, stepped) for latch in loop.latches)
    if step is None or start is None or instruction.predicate or not in_turn:
        return None
    if tested != stepped and not dominates(tested, stepped, parents) and not dominates(stepped, tested, parents):
        return None
    before = (at < test.at) if tested == stepped else dominates(stepped, tested, parents)
    value = start
    for turn in range(1, _MOST_TURNS):
        seen = value + step if before else value
        value += step
        if _leaves(test, seen):
            return turn
    return None


def _followed(function: Function, loop: NaturalLoop, test: _Test, parents: Mapping[int, int]) -> int | None:
    """The turns of a loop whose blocks follow each other by what its instructions make of the counter, which may go
    from register to register, and whose registers may hold something else in between."""
    ways = {b: [s for s in function.blocks[b].successors if s in loop.blocks] for b in loop.blocks}
    if any(len(way) != 1 for way in ways.values()):
        return None
    order = [loop.header]
    while (after := ways[order[-1]][0]) != loop.header:
        order.append(after)
    code = [(at, i) for block in order for at, i in _numbered(function, block) if not i.is_predicated_off]
    wanted = {test.counter}
    while True:
        sums = [i for _, i in code if wanted & set(_written(i))]
        more = wanted | {
            word for i in sums if i.opcode in (*_ADDS, *_MOVES) for word in i.operands if _REGISTER.fullmatch(word)
        }
        if more == wanted:
            break
        wanted = more
    code = [(at, i) for at, i in code if at == test.at or wanted & set(_written(i))]
    known: dict[str, int | None] = {}

    def value(word: str) -> int | None:
        if _REGISTER.fullmatch(word) and word not in _ZERO and word not in known:
            known[word] = _start(function, loop, word, parents)
        return known[word] if word in known else _constant(word)

    for turn in range(1, _MOST_TURNS // max(1, len(code))):
        left = False
        for at, instruction in code:
            if at == test.at:
                held = value(test.counter)
                if held is None:
                    return None
                left = _leaves(test, held)
                continue
            made = None if instruction.predicate else _made(instruction, value)
            known.update(dict.fromkeys(_written(instruction)))
            known[instruction.operands[0]] = made
        if left:
            return turn
    return None


def _made(instruction: Instruction, value: Callable[[str], int | None]) -> int | None:
    """What an instruction puts into its first register, where it adds or moves what is known."""
    if instruction.opcode in _ADDS:
        parts = [value(word) for word in instruction.operands[1:]]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None
    if instruction.opcode in _MOVES and len(instruction.operands) == 2:
        return value(instruction.operands[1])
    return _moved(instruction, exactly=True)


def _leaves(test: _Test, value: int) -> bool:
    left, right = (value & 0xFFFFFFFF, test.limit & 0xFFFFFFFF) if test.unsigned else (value, test.limit)
    return test.compare(left, right) != test.stays


def _written(instruction: Instruction) -> tuple[str, ...]:
    """The registers that an instruction may set."""
    match = re.fullmatch(r"(U?R)(\d+)(?:\.\w+)*", instruction.operands[0]) if instruction.operands else None
    if match is None:
        return ()
    return tuple(f"{match[1]}{int(match[2]) + step}" for step in range(_registers(instruction)))


def _test(function: Function, loop: NaturalLoop) -> _Test | None:
    exits = [b for b in loop.blocks if any(s not in loop.blocks for s in function.blocks[b].successors)]
    if len(exits) != 1:
        return None
    block = function.blocks[exits[0]]
    branch = function.instructions[block.stop - 1]
    match = re.fullmatch(r"@(!?)(U?P\d)", branch.predicate)
    # A call of a label is a far jump.
    plain = (branch.opcode, branch.modifiers) in (("BRA", ()), ("CALL", ("REL", "NOINC")))
    if not plain or len(branch.operands) != 1 or match is None:
        return None
    jumps_back = block.successors[0] in loop.blocks
    taken = not match[1]
    defined = _definition(function, loop, match[2], block.stop - 1)
    if defined is None:
        return None
    at, instruction = defined
    _, _, left, right, last = (*instruction.operands, "", "", "", "", "")[:5]
    limit = _constant(right)
    words = instruction.modifiers
    if instruction.predicate or len(instruction.operands) != 5 or last not in ("PT", "UPT") or limit is None:
        return None
    if not words or words[0] not in _COMPARE or words[-1] != "AND" or not re.fullmatch(r"U?R\d+", left):
        return None
    # The branch is taken where the predicate equals ``taken``; the loop goes on where it jumps back, or does not leave.
    return _Test(at, left, limit, _COMPARE[words[0]], "U32" in words, taken if jumps_back else not taken)


def _definition(function: Function, loop: NaturalLoop, predicate: str, before: int) -> tuple[int, Instruction] | None:
    """The comparison that sets ``predicate`` before ``before``: in its block, else in the only one of the loop that
    does."""
    block = function.blocks[function.instructions[before].block]
    for at in range(before - 1, block.start - 1, -1):
        if predicate in function.instructions[at].operands[:2]:
            return _comparison(function, loop, at)
    places = [
        at
        for other in loop.blocks
        for at, i in _numbered(function, other)
        if predicate in i.operands[:2] and i.opcode in ("ISETP", "UISETP", "PLOP3", "UPLOP3", "SYNCS", "ELECT", "R2UR")
    ]
    # The last of several is what counts where they follow each other in one block.
    blocks = {function.instructions[at].block for at in places}
    if len(blocks) != 1 or max(places) >= before or not _always(function, loop, *blocks):
        return None
    return _comparison(function, loop, max(places))


def _always(function: Function, loop: NaturalLoop, block: int) -> bool:
    """Whether every turn of ``loop`` passes ``block``."""
    parents = dominators([b.successors for b in function.blocks])
    return all(dominates(block, latch, parents) for latch in loop.latches)


def _comparison(function: Function, loop: NaturalLoop, at: int) -> tuple[int, Instruction] | None:
    instruction = function.instructions[at]
    if instruction.opcode in ("ISETP", "UISETP"):
        return at, instruction
    # How a uniform predicate becomes one of the warp's.
    copied = re.fullmatch(r"PT,PT,PT,(UP\d),0x80,0x0", ",".join(instruction.operands[1:]))
    if instruction.opcode == "PLOP3" and copied and not instruction.predicate:
        return _definition(function, loop, copied[1], at)
    return None


def _numbered(function: Function, block: int) -> list[tuple[int, Instruction]]:
    span = function.blocks[block]
    return [(at, function.instructions[at]) for at in range(span.start, span.stop)]


def _step(instruction: Instruction, counter: str) -> int | None:
    """What ``counter`` grows by, where the instruction adds a constant to it."""
    if instruction.opcode not in _ADDS:
        return None
    rest = list(instruction.operands[1:])
    if counter not in rest:
        return None
    rest.remove(counter)
    constants = [_constant(word) for word in rest]
    known = [constant for constant in constants if constant is not None]
    return sum(known) if len(known) == len(constants) else None


def _start(function: Function, loop: NaturalLoop, counter: str, parents: Mapping[int, int]) -> int | None:
    """What ``counter`` holds at the loop's entry, where the last instruction before it that sets it is a constant's
    move."""
    head = function.blocks[loop.header]
    entries = [b for b in function.blocks if loop.header in b.successors and b.index not in loop.blocks]
    if any(b.start > head.start for b in entries):
        return None
    named = re.fullmatch(r"(U?R)(\d+)", counter)
    if named is None:
        return None
    bank, number = named.groups()
    for at in range(head.start - 1, -1, -1):
        instruction = function.instructions[at]
        if instruction.block in loop.blocks:
            continue
        place = re.fullmatch(rf"{bank}(\d+)", instruction.operands[0]) if instruction.operands else None
        if place is None or not int(place[1]) <= int(number) < int(place[1]) + _registers(instruction):
            continue
        if instruction.predicate or not dominates(instruction.block, loop.header, parents):
            return None
        return _moved(instruction, exactly=int(place[1]) == int(number))
    return None


def _registers(instruction: Instruction) -> int:
    """How many registers an instruction sets, at most."""
    if instruction.opcode in ("ST", "STG", "STS", "STL", "RED", "BRA", "EXIT", "STSM", "LDGSTS"):
        return 0
    words = instruction.modifiers
    if instruction.opcode in ("HGMMA", "IGMMA", "QGMMA", "BGMMA"):
        return 128
    if instruction.opcode in ("HMMA", "IMMA", "LDSM") or "128" in words:
        return 4
    wide = "64" in words or "WIDE" in words or instruction.opcode.startswith("D")
    return 2 if wide or (instruction.opcode == "CS2R" and "32" not in words) else 1


def _moved(instruction: Instruction, *, exactly: bool) -> int | None:
    sources = instruction.operands[1:]
    if instruction.opcode == "CS2R":
        return 0 if sources == ("SRZ",) else None
    if not exactly:
        return None
    if instruction.opcode in _MOVES:
        return _constant(sources[0])
    if instruction.opcode == "IMAD" and instruction.modifiers[:1] == ("MOV",):
        return _constant(sources[2]) if len(sources) == 3 else None
    if instruction.opcode == "HFMA2" and "RZ" in sources[1]:
        return _halves(sources[2:])
    return None


def _halves(words: tuple[str, ...]) -> int | None:
    """A register that is set as a pair of halves, the upper one first: how the compiler says 1, too."""
    try:
        high, low = (struct.unpack("<H", struct.pack("<e", float(word)))[0] for word in words)
    except (ValueError, OverflowError, struct.error):
        return None
    return int(high << 16 | low)


def _constant(word: str) -> int | None:
    if word in _ZERO:
        return 0
    match = re.fullmatch(r"(-?)0x([0-9a-f]+)", word)
    if match is None:
        return None
    value = int(match[2], 16)
    if match[1]:
        return -value
    return value - (1 << 32) if value >= 1 << 31 else value
