"""Memory instructions of the machine code matched to the accesses of the IR, and how they differ from what was written.

Loops are matched first (``regions``); in each, instructions of one space and operation against the accesses of the
same. Global ones are told apart by the pointer that their address comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import sub

from tirgemm.analysis.ir.sites import TO_SEVERAL, Loop, Site, Unknown, While
from tirgemm.analysis.ir.unrolled_copies import Access
from tirgemm.analysis.match.loops import Regions, kind_of, regions
from tirgemm.analysis.match.merging import merged, multiple
from tirgemm.analysis.match.placement import WrittenAccess, placed
from tirgemm.analysis.sass.pointer_origins import Origins
from tirgemm.analysis.sass.program import Function, Instruction
from tirgemm.launch import KernelLaunch

AS_WRITTEN = "as written"
_NOT_COMPILED = ""


@dataclass(frozen=True, slots=True)
class OpcodeCount:
    """``count`` instructions ``name`` (opcode and modifiers), inside ``depth`` loops of the machine code."""

    name: str
    count: int
    depth: int


@dataclass(frozen=True, slots=True)
class CompiledForm:
    """What became of an access. ``words``: in a sentence; ``share``: how many of its requests still run, of those
    written.

    ``missing``: why no instruction is known to be it, empty where some are. ``bound``: whether fewer may run than
    counted.
    """

    words: str = _NOT_COMPILED
    code: tuple[OpcodeCount, ...] = ()
    share: float = 1.0
    missing: str = ""
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Matching:
    """The compiled ``forms`` of accesses. ``uses``: of sites that are no one instruction of their own, how many there
    are of each width; a site that is part of another's has none."""

    forms: Mapping[Access, CompiledForm]
    uses: Mapping[Site, Mapping[int, float]] = field(default_factory=dict)
    unmatched: tuple[Unknown, ...] = ()

    @classmethod
    def as_written(cls, accesses: Sequence[Access]) -> Matching:
        return cls(dict.fromkeys(accesses, CompiledForm()))


def match(accesses: Sequence[Access], function: Function, kernel: KernelLaunch) -> Matching:
    """Match ``accesses`` with the machine code of ``function``, a kernel with the parameters of ``kernel``."""
    return _Match(accesses, function, kernel).matching()


@dataclass(slots=True)
class _Bucket:
    """Accesses and instructions of one loop, space, operation and, in global memory, tensor."""

    accesses: list[WrittenAccess] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)


BucketKey = tuple["Loop | While | None", str, str, str]


class _Match:
    def __init__(self, accesses: Sequence[Access], function: Function, kernel: KernelLaunch) -> None:
        self.accesses, self.function = accesses, function
        self.origins = Origins(function, kernel)
        self.tensors = self.told_apart()
        self.regions: Regions = regions(accesses, function, self.tensors)
        self.forms: dict[Access, CompiledForm] = {}
        self.uses: dict[Site, Mapping[int, float]] = {}
        self.unmatched: list[Unknown] = []

    def matching(self) -> Matching:
        buckets = self.buckets()
        spare = {key: b for key, b in buckets.items() if b.instructions and not b.accesses}
        for bucket in buckets.values():
            if bucket.accesses and bucket.instructions:
                self.settle(bucket)
                self.deal(bucket)
        relocated = self.moved(buckets, spare)
        left: Counter[tuple[str, str]] = Counter()
        for (_, space, op, tensor), bucket in ((k, b) for k, b in spare.items() if k not in relocated):
            where = f"{op} of {tensor or space}" if space != "local" else "local memory: spilled or indexed registers"
            left.update((i.name, where) for i in bucket.instructions)
        self.unmatched += [
            Unknown(name, f"{count} of these ({where}) have no access in the IR")
            for (name, where), count in left.items()
        ]
        return Matching(self.forms, self.uses, tuple(self.unmatched))

    def buckets(self) -> dict[BucketKey, _Bucket]:
        buckets: dict[BucketKey, _Bucket] = {}
        apart = {kind_of(i) for i in self.function.memory if i.address in self.tensors}
        for access in self.accesses:
            site = access.first
            loop, unrolled = self.regions.access(access)
            space: str = "shared" if site.op == "copy" else site.space
            key: BucketKey = (loop, space, site.instruction, site.operand if (space, site.instruction) in apart else "")
            buckets.setdefault(key, _Bucket()).accesses.append(WrittenAccess(access, unrolled))
        for instruction in self.function.memory:
            kind = kind_of(instruction)
            if kind is None:
                continue
            space, op = kind
            if space == "generic":
                space = "distributed" if any(a.first.space == "distributed" for a in self.accesses) else "global"
            key = (self.regions.instruction(instruction), space, op, self.tensors.get(instruction.address, ""))
            buckets.setdefault(key, _Bucket()).instructions.append(instruction)
        return buckets

    def told_apart(self) -> dict[int, str]:
        """The tensors of global accesses by address of the instruction, where every one of a kind has a known one."""
        origins: dict[tuple[str, str], dict[int, str]] = {}
        for instruction in self.function.memory:
            kind = kind_of(instruction)
            if kind is not None and (kind[0] == "global" or kind[1] == "copy"):
                origins.setdefault(kind, {})[instruction.address] = self.origins.of(instruction)
        whole = [tensors for tensors in origins.values() if all(tensors.values())]
        return {address: tensor for tensors in whole for address, tensor in tensors.items()}

    def settle(self, bucket: _Bucket) -> None:
        """Compare what was written with what there is, by width."""
        op = bucket.accesses[0].access.first.op
        compiled = Counter(_width(i) for i in bucket.instructions)
        if op in ("matrix", "bulk"):
            self.tiles(bucket)
            return
        sides = [
            w for w in bucket.accesses if not (op == "copy" and w.access.first.space == "global")
        ] or bucket.accesses
        written: Counter[int] = Counter()
        distinct: Counter[int] = Counter()
        for one in sides:
            written[one.access.first.width] += len(one.access.sites) * one.times
            distinct[one.access.first.width] += _distinct(one.access) * one.times
        turns = multiple(compiled, written)
        if turns:
            words = AS_WRITTEN if turns == 1 else f"{AS_WRITTEN}, {turns} turns of the loop at once"
            for one in bucket.accesses:
                self.record(one.access, bucket, words, own=len(one.access.sites) * one.times * turns)
            return
        turns = multiple(compiled, distinct)
        if turns:
            for one in bucket.accesses:
                access, looped = one.access, len(one.access.loops) > len(one.unrolled)
                # Without a loop that may turn several times at once, it is equal loads that are left several times.
                all_of_them = len(access.sites)
                left = min(_distinct(access) * (1 if looped else turns), all_of_them)
                words = (
                    AS_WRITTEN if left == all_of_them else f"{all_of_them - left} of {all_of_them} equal loads removed"
                )
                self.record(access, bucket, words, left / all_of_them)
            return
        if self.place(bucket, sides) or self.merge(bucket, compiled) or self.narrow(bucket, compiled, written):
            return
        self.differing(bucket, compiled, written)

    def deal(self, bucket: _Bucket) -> None:
        """Of instructions that may be of several accesses give each as many as it has of what was written: none is told
        twice. Both sides of a copy have all of them, and so have both operands of a wgmma."""
        if bucket.accesses[0].access.first.op in ("matrix", "bulk"):
            return
        there = Counter((i.name, len(i.loops)) for i in bucket.instructions)
        for space in sorted({one.access.first.space for one in bucket.accesses}):
            side = [one for one in bucket.accesses if one.access.first.space == space]
            for key, count in there.items():
                of = [one for one in side if any((c.name, c.depth) == key for c in self.forms[one.access].code)]
                weights = [len(one.access.sites) * one.times for one in of]
                told = sum(c.count for one in of for c in self.forms[one.access].code if (c.name, c.depth) == key)
                if told <= count:
                    continue
                ends = [count * before // sum(weights) for before in accumulate(weights)]
                for one, own in zip(of, map(sub, ends, [0, *ends[:-1]]), strict=True):
                    form = self.forms[one.access]
                    code = (replace(c, count=own) if (c.name, c.depth) == key else c for c in form.code)
                    self.forms[one.access] = replace(form, code=tuple(c for c in code if c.count))

    def place(self, bucket: _Bucket, sides: list[WrittenAccess]) -> bool:
        """Tell what each instruction of shared memory is by its constant."""
        if sides[0].access.first.space != "shared" or sides[0].access.first.op == "copy":
            return False
        placement = placed(sides, bucket.instructions)
        if placement is None:
            return False
        for one in sides:
            for site in one.access.sites:
                self.uses[site] = placement.uses.get(site, {})
            mine = placement.instructions[one.access]
            self.forms[one.access] = self.sunk(one.access, mine, CompiledForm(_retold(one, mine), _codes(mine)))
        return True

    def merge(self, bucket: _Bucket, compiled: Counter[int]) -> bool:
        """Take neighbours as merged where that leaves as many instructions as there are."""
        widths = merged(bucket.accesses, compiled)
        if widths is None:
            return False
        for access in (w.access for w in bucket.accesses):
            size = access.first.width
            for site in access.sites:
                # Of equal sites one stands for all.
                self.uses[site] = {widths[site]: size / widths[site]} if site in widths else {}
            wider = sorted({widths[s] for s in access.sites if s in widths})
            words = AS_WRITTEN if wider == [size] else f"merged to {_listed(wider)} bytes"
            self.record(access, bucket, words)
        return True

    def narrow(self, bucket: _Bucket, compiled: Counter[int], written: Counter[int]) -> bool:
        """Take loads of which a part is not used as narrowed: as many instructions as written, some of them
        narrower."""
        narrower = {w: n for w, n in compiled.items() if w not in written}
        if len(written) != 1 or compiled.total() != written.total() or not narrower or max(compiled) > max(written):
            return False
        if bucket.accesses[0].access.first.op != "load":
            return False
        told = ", ".join(f"{n} of {written.total()} narrowed to {w} bytes" for w, n in sorted(narrower.items()))
        codes = _codes(bucket.instructions)
        for access in (w.access for w in bucket.accesses):
            self.forms[access] = CompiledForm(f"{told}: the rest is not used", codes)
        return True

    def differing(self, bucket: _Bucket, compiled: Counter[int], written: Counter[int]) -> None:
        """Counts that are no plain transformation. Which of several accesses the instructions are is not known: each
        keeps the share that is left of all of its width, unless as many as are gone stand under a condition that may
        never hold; and where there are more they are taken to be paths of which one runs."""
        conditional: Counter[int] = Counter()
        for one in bucket.accesses:
            if one.access.guarded:
                conditional[one.access.first.width] += len(one.access.sites) * one.times
        for access in (w.access for w in bucket.accesses):
            width = access.first.width
            there, wanted = compiled[width], written[width]
            if not there:
                self.miss(
                    access, f"{wanted} of {width} bytes a lane were written here; the code has {_shown(compiled)}"
                )
            elif there < wanted and (
                access.guarded if access.first.op == "store" else wanted - there <= conditional[width]
            ):
                # Left out where the condition never holds: none of its requests is counted. A load may be gone for
                # another reason.
                words = f"{there} of {wanted} of {width} bytes are left in the code: the others never run"
                self.record(access, bucket, words)
                if access.first.op == "load":
                    self.forms[access] = replace(self.forms[access], bound=True)
            elif there < wanted:
                words = (
                    f"{there} of {wanted} of {width} bytes are left in the code, and so many of the requests counted"
                )
                self.record(access, bucket, words, there / wanted)
            else:
                words = f"{there} instructions for {wanted} of {width} bytes, counted as written: one path's run"
                self.record(access, bucket, words)
        for width, count in compiled.items():
            if not written[width]:
                name = next(i.name for i in bucket.instructions if _width(i) == width)
                self.unmatched.append(Unknown(name, f"{count} of these match no access of that width in the IR"))

    def tiles(self, bucket: _Bucket) -> None:
        """TMA and wgmma: an instruction each, of wgmma one for both operands; what goes to several blocks is told
        apart."""
        for one in bucket.accesses:
            alike = [other for other in bucket.accesses if _multicast(other) == _multicast(one)]
            mine = [i for i in bucket.instructions if ("MULTICAST" in i.modifiers) == _multicast(one)]
            several = len(alike) > 1 or not mine
            self.record(
                one.access, _Bucket(alike, mine or bucket.instructions), AS_WRITTEN, own=len(one.access.sites) * several
            )

    def moved(self, buckets: dict[BucketKey, _Bucket], spare: dict[BucketKey, _Bucket]) -> set[BucketKey]:
        """Look for accesses without instructions in their loop before it: where they are found."""
        hoisted: dict[BucketKey, list[tuple[Access, int]]] = {}
        for (loop, space, op, tensor), bucket in buckets.items():
            for access in (w.access for w in bucket.accesses if not bucket.instructions):
                around = [None, *access.loops]
                outer = around[: around.index(loop)] if loop is not None else []
                keys = [(place, space, op, tensor) for place in reversed(outer)]
                width = access.first.width
                key = next(
                    (k for k in keys if k in spare and any(_width(i) == width for i in spare[k].instructions)), None
                )
                if key is None:
                    self.miss(access, f"no {op} of {tensor or space} is in its loop of the machine code")
                else:
                    hoisted.setdefault(key, []).append((access, _turns(access.loops, key[0])))
        for key, accesses in hoisted.items():
            # Several sites may have become one instruction.
            left = min(1.0, len(spare[key].instructions) / sum(len(access.sites) for access, _ in accesses))
            for access, turns in accesses:
                self.record(access, spare[key], "hoisted out of a loop", left / turns if turns else left)
        return set(hoisted)

    def record(self, access: Access, bucket: _Bucket, words: str, share: float = 1.0, own: int = 0) -> None:
        """Note what became of an access; ``own``: how many of the bucket's instructions are its, 0 where not known."""
        wide = {w for s in access.sites for w in self.uses.get(s, (access.first.width,))}
        fitting = [i for i in bucket.instructions if _width(i) in wide or access.first.op in ("matrix", "bulk")]
        counts = Counter((i.name, len(i.loops)) for i in fitting)
        code = tuple(
            OpcodeCount(name, own if own and len(counts) == 1 else count, depth)
            for (name, depth), count in sorted(counts.items())
        )
        self.forms[access] = self.sunk(access, fitting, CompiledForm(words, code, share))

    def sunk(self, access: Access, instructions: Sequence[Instruction], form: CompiledForm) -> CompiledForm:
        """A load that is written without a condition and runs under one is a bound: the compiler moved it to what needs
        it."""
        conditional = all(self.function.is_conditional(i) for i in instructions)
        if access.first.op != "load" or access.guarded or not instructions or not conditional:
            return form
        words = f"{form.words}; under the condition of what needs it: at most so many"
        return replace(form, words=words, bound=True)

    def miss(self, access: Access, reason: str) -> None:
        self.forms[access] = CompiledForm("not found in the machine code", (), 1.0, reason)


def _retold(written: WrittenAccess, instructions: Sequence[Instruction]) -> str:
    """What the compiler did to an access whose instructions are known one by one."""
    access = written.access
    size, sites = access.first.width, len(access.sites)
    wider = sorted({w for i in instructions if (w := _width(i)) > size})
    equal = sites - _distinct(access)
    again = sum(_width(i) for i in instructions) // size - len(written.places)
    told = [f"merged to {_listed(wider)} bytes"] if wider else []
    told += [f"{equal} of {sites} equal loads removed"] if equal else []
    told += [f"{again} elements loaded again"] if again > 0 else []
    return ", ".join(told) or AS_WRITTEN


def _multicast(written: WrittenAccess) -> bool:
    """Whether TMA writes to several blocks at once."""
    return TO_SEVERAL in written.access.first.detail


def _codes(instructions: Sequence[Instruction]) -> tuple[OpcodeCount, ...]:
    counts = Counter((i.name, len(i.loops)) for i in instructions)
    return tuple(OpcodeCount(name, count, depth) for (name, depth), count in sorted(counts.items()))


def _listed(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))


def _distinct(access: Access) -> int:
    """How many of an access's sites are different: loads of one address under one condition are one."""
    if access.first.op not in ("load", "ldmatrix"):
        return len(access.sites)
    return len({(s.address, s.guards) for s in access.sites})


def _width(instruction: Instruction) -> int:
    memory = instruction.memory
    return 16 if memory is not None and memory.matrices else memory.width if memory is not None else 0


def _turns(loops: Sequence[Loop | While], outside: Loop | While | None) -> int:
    """How often the loops inside of ``outside`` turn, 0 where that is not a number."""
    inside = loops[loops.index(outside) + 1 :] if outside is not None else loops
    turns = 1
    for loop in inside:
        if not isinstance(loop, Loop) or loop.extent.kind != "const":
            return 0
        turns *= int(loop.extent.value)
    return turns


def _shown(widths: Counter[int]) -> str:
    return ", ".join(f"{count} of {width}" for width, count in sorted(widths.items()))
