# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Repack kernel: copies an operand that TMA cannot load to rows of whole 16-byte words, at memory's speed.

A thread makes one word of the copy from the two aligned words of the source in which its elements lie: by two 16-byte
loads, eleven selects and four funnel shifts. The second load finds in L1 what the neighbour's first brings. That is 12
wavefronts a warp and 512 bytes of the copy, with the store's; five 4-byte loads would make it 24, eight 2-byte ones 36,
a shuffle from the neighbour the same 12. No load reaches outside the operand: of an aligned word that does, of which
there are two at most, the elements inside are loaded one by one.

Blocks take turns at 1,024 words, first of one item, then of the next, so that they finish together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tvm.script import tirx as T

from tirgemm.expr import evaluate
from tirgemm.families.common.aligned_copy import WORD, AlignedCopy
from tirgemm.families.wgmma.device.arguments import Arguments
from tirgemm.families.wgmma.planning.repacking import (
    REPACK_BLOCKS,
    REPACK_SYMBOL,
    REPACK_THREADS,
    REPACK_WORDS,
    all_turns,
    repack_grid,
    turns_of,
)
from tirgemm.gemm import Gemm, Range

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_INT32_MAX = 2**31 - 1
_HALVES = 4
# The slot in which a word is computed again that crosses the operand's bounds.
_BOUNDARY = REPACK_WORDS
# How many elements a base lies behind an address of 16 bytes: only the call knows.
_PHASE = """
__forceinline__ __device__ int tirgemm_phase(const void* base) {
    return (int)((unsigned long long)base >> 1) & 7;
}
"""
_STORE = """
__forceinline__ __device__ void tirgemm_store_word(void* to, unsigned x, unsigned y, unsigned z, unsigned w) {
    *reinterpret_cast<uint4*>(to) = make_uint4(x, y, z, w);
}
"""


class RepackArguments(Arguments):
    """The parameters of the kernel that copies ``items``: each one's source and copy, then m if it is a range."""

    def __init__(self, gemm: Gemm, items: tuple[AlignedCopy, ...], units: int) -> None:
        # Not the parent's: there is no plan to take parameters from.
        from tvm.tirx.script import builder

        self.tir, self.gemm, self.items, self.units = builder, gemm, items, units
        self.params, self.memory = [], {}
        self.m, self.ranged = gemm.m, isinstance(gemm.m, Range)
        copies = [evaluate(item.elements, gemm.m_max) for item in items]
        # An aligned word may begin at an operand's last element.
        spans = [gemm.span(item.operand) + 2 * WORD for item in items]
        self._wide = max(*copies, *spans) > _INT32_MAX
        for item, elements in zip(items, copies, strict=True):
            # As bits: nothing computes with them.
            self._pointer(item.operand, gemm.span(item.operand), "uint16")
            self._pointer(item.name, elements, "uint16")
        self._size()

    def place(self, *terms):
        """The sum of index times stride over ``terms``, in the dtype that holds every place."""
        return self._offset(*terms)


def repack_kernel(items: tuple[AlignedCopy, ...], arguments: Callable[[], RepackArguments]) -> PrimFunc:
    """The PrimFunc that copies ``items``; ``arguments`` declares its parameters once it is open."""

    @T.prim_func
    def kernel():
        T.func_attr({"global_symbol": REPACK_SYMBOL})
        args = T.meta_var(arguments())
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": REPACK_BLOCKS})
        block = T.cta_id([args.dim(repack_grid(items, args.units))])
        thread = T.thread_id([REPACK_THREADS])
        # Computed once where m is known only at the call.
        turns: T.let[T.int32] = T.Cast("int32", args.dim(all_turns(items)))
        blocks: T.let[T.int32] = T.Cast("int32", args.dim(repack_grid(items, args.units)))
        copies = T.meta_var([Copy(args, item) for item in items])
        turn: T.int32
        turn = block
        while turn < turns:
            take_turn(copies, turn, thread)
            turn = turn + blocks
        # The launch that waits for this one may begin; it waits for what is written by griddepcontrol.wait.
        T.ptx.griddepcontrol.launch_dependents()

    return kernel


def take_turn(copies, turn, thread):
    """Turn number ``turn`` of all: of the first item while it lasts, then of those behind it."""
    first, *others = copies
    if not others:
        first.take_turn(turn, thread)
        return
    mine = first.args.dim(turns_of(first.item))
    with T.If(turn < mine):
        with T.Then():
            first.take_turn(turn, thread)
        with T.Else():
            take_turn(others, turn - mine, thread)


@T.meta_class
class Copy:
    """The words of one item that a thread copies in a turn."""

    def __init__(self, args, item):
        self.args, self.item = args, item
        self.source, self.copy = args.memory[item.operand], args.memory[item.name]
        wide = "int64" if args._wide else "int32"
        # Of each word: its number; where in the source its first element lies, where in the copy, and how far into an
        # aligned word; its elements that are no padding; the two aligned words.
        self.number = T.alloc_local([REPACK_WORDS + 1], "int32")
        self.first = T.alloc_local([REPACK_WORDS + 1], wide)
        self.target = None if item.dense else T.alloc_local([REPACK_WORDS + 1], wide)
        self.shift = T.alloc_local([REPACK_WORDS + 1], "int32")
        self.count = T.alloc_local([REPACK_WORDS + 1], "int32")
        self.bits = T.alloc_local([REPACK_WORDS * 2 * _HALVES], "uint32")
        self.crosses = T.local_scalar("int32")
        self.phase = None
        if item.base < WORD:
            self.phase = T.local_scalar("int32")
            base = T.address_of(self.source[0])
            value = T.cuda.func_call("tirgemm_phase", base, source_code=_PHASE, return_type="int32")
            T.buffer_store(self.phase.source, value, [0])

    def take_turn(self, turn, thread):
        # Loops that NVRTC unrolls: TVM would simplify every word for itself.
        with T.serial(REPACK_WORDS, unroll=True) as word:
            self.find(word, self.number_of(turn, word, thread))
        T.buffer_store(self.crosses.source, 0, [0])
        # All loads before any store: they are in flight together.
        with T.serial(REPACK_WORDS, unroll=True) as word:
            self.load(word)
        with T.serial(REPACK_WORDS, unroll=True) as word, T.If(self.whole(word)), T.Then():
            self.store(word)
        with T.If(self.crosses != 0), T.Then(), T.serial(REPACK_WORDS, unroll=False) as word:
            self.find(_BOUNDARY, self.number_of(turn, word, thread))
            with T.If(T.And(self.exists(_BOUNDARY), T.Not(self.whole(_BOUNDARY)))), T.Then():
                self.store_elements(_BOUNDARY)

    @staticmethod
    def number_of(turn, word, thread):
        return (turn * REPACK_WORDS + word) * REPACK_THREADS + thread

    def find(self, word, number):
        """Where word ``number`` of the copy comes from."""
        item, args = self.item, self.args
        T.buffer_store(self.number, number, [word])
        row_words = args.dim(item.row_words)
        row = T.truncdiv(self.number[word], row_words)
        column = (self.number[word] - row * row_words) * WORD
        if item.rows_even:
            place = args.place((row, item.source_ld), (column, 1))
        else:
            rows = args.dim(item.rows)
            matrix = T.truncdiv(row, rows)
            within = row - matrix * rows
            place = args.place((matrix, item.source_stride), (within, item.source_ld), (column, 1))
        T.buffer_store(self.first, place, [word])
        if self.target is not None:
            T.buffer_store(self.target, args.place((row, item.ld), (column, 1)), [word])
        T.buffer_store(self.count, T.min(args.dim(item.columns) - column, WORD), [word])
        behind = T.cast(self.first[word], "int32")
        if self.phase is not None:
            behind = behind + self.phase
        T.buffer_store(self.shift, T.bitwise_and(behind, WORD - 1), [word])

    def load(self, word):
        for i in range(2 * _HALVES):
            T.buffer_store(self.bits, T.uint32(0), [self.at(word, i)])
        start = self.first[word] - self.shift[word]
        with T.If(self.whole(word)):
            with T.Then():
                self.load_word(self.at(word, 0), start)
                if self.item.vector < WORD:
                    with T.If(self.both(word)), T.Then():
                        self.load_word(self.at(word, _HALVES), start + WORD)
            with T.Else(), T.If(self.exists(word)), T.Then():
                T.buffer_store(self.crosses.source, 1, [0])

    def load_word(self, at, start):
        to = [T.address_of(self.bits[at + i]) for i in range(_HALVES)]
        T.evaluate(T.cuda.ldg(T.address_of(self.source[start]), "uint32", dst=to, vec="v4"))

    def store(self, word):
        to = T.address_of(self.copy[self.copied(word)])
        T.evaluate(T.cuda.func_call("tirgemm_store_word", to, *self.aligned(word), source_code=_STORE))

    def store_elements(self, word):
        """A word at an end of the operand."""
        with T.serial(WORD, unroll=False) as i:
            source = T.address_of(self.source[self.first[word] + i])
            value = T.if_then_else(i < self.count[word], T.cuda.ldg(source, "uint16"), T.uint16(0))
            T.buffer_store(self.copy, value, [self.copied(word) + i])

    # -- what holds of a word --------------------------------------------------------------------

    def exists(self, word):
        return self.number[word] < self.args.dim(self.item.words)

    def both(self, word):
        """Whether elements that are no padding lie in the second aligned word."""
        return self.shift[word] + self.count[word] > WORD

    def whole(self, word):
        """Whether the aligned words that are needed lie inside the operand."""
        args, item = self.args, self.item
        start = self.first[word] - self.shift[word]
        end = start + T.if_then_else(self.both(word), 2 * WORD, WORD)
        inside = T.And(self.exists(word), end <= args.place((1, item.span)))
        return inside if self.phase is None else T.And(inside, start >= 0)

    def copied(self, word):
        """Where the word lies in the copy."""
        return self.args.place((self.number[word], WORD)) if self.target is None else self.target[word]

    def at(self, word, i):
        return word * 2 * _HALVES + i

    def aligned(self, word):
        """The word's four pairs of elements, out of the eight of the aligned words."""
        shift = self.shift[word]
        bits = [self.bits[self.at(word, i)] for i in range(2 * _HALVES)]
        for step in (4, 2):
            if self.item.vector <= step:
                pairs = step // 2
                away = T.bitwise_and(shift, step) != 0
                bits = [T.Select(away, far, near) for near, far in zip(bits, bits[pairs:], strict=False)]
        if self.item.vector > 1:
            return bits[:_HALVES]
        odd = T.cast(T.bitwise_and(shift, 1) * 16, "uint64")
        return [self.funnel(bits[i], bits[i + 1], odd) for i in range(_HALVES)]

    @staticmethod
    def funnel(low, high, shift):
        """32 bits of 64, ``shift`` from the lowest."""
        both = T.bitwise_or(T.cast(high, "uint64") << T.uint64(32), T.cast(low, "uint64"))
        return T.cast(both >> shift, "uint32")
