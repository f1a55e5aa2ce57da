# mypy: ignore-errors
# ruff: noqa: N812
# The methods write TIR where they are called.
"""Recorder of time stamps: what a warpgroup does, as spans in its ring buffer; without a ring buffer, no code at all.

A span begins where the one before it ended. One thread of the warpgroup reads the clock and writes; nothing is recorded
among the wgmmas of a stage. Source: PTX ISA, "Special Registers".
"""

from __future__ import annotations

from tvm.script import tirx as T

from tirgemm.families.common.ring_buffer import (
    BEGUN,
    ENDED,
    HEADER_WORDS,
    RECORDED,
    SM,
    SPAN_WORDS,
    TILE,
    TIMELINE,
)

_READ = """
__forceinline__ __device__ {type} tirgemm_read_{register}() {{
    {type} value;
    asm volatile("mov.{bits} %0, %%{register};" : "={constraint}"(value) :: "memory");
    return value;
}}
"""
_WIDE = {"clock64", "globaltimer"}
_STORE_TIMES = """
__forceinline__ __device__ void tirgemm_store_times(void* to, unsigned long long clock, unsigned long long ns) {
    reinterpret_cast<unsigned long long*>(to)[0] = clock;
    reinterpret_cast<unsigned long long*>(to)[1] = ns;
}
"""
_STORE_SPAN = """
__forceinline__ __device__ void tirgemm_store_span(void* to, unsigned start, unsigned end, unsigned kind, unsigned n) {
    *reinterpret_cast<uint4*>(to) = make_uint4(start, end, kind, n);
}
"""


def read(register):
    """The value of a special register, read where this stands among what synchronises."""
    wide = register in _WIDE
    types = ("unsigned long long", "u64", "l") if wide else ("unsigned", "u32", "r")
    source = _READ.format(register=register, **dict(zip(("type", "bits", "constraint"), types, strict=True)))
    return T.cuda.func_call(f"tirgemm_read_{register}", source_code=source, return_type="uint64" if wide else "uint32")


def recorder(args, tiles, warpgroup, owner):
    """What records for a warpgroup where the kernel has a ring buffer, else what does nothing.

    ``owner``: the condition that holds in the one thread that records, or None where only one thread is here.
    """
    return SilentRecorder() if args.ring is None else SpanRecorder(args, tiles, warpgroup, owner)


class SilentRecorder:
    """A recorder of nothing."""

    def begin_tile(self):
        """Begin a tile, and its first span."""

    def lap(self, kind, number=0):
        """End a span, and begin the next."""

    def end_tile(self):
        """End a tile where its last span ended."""

    def end(self):
        """End the warpgroup's track."""


@T.meta_class
class SpanRecorder:
    """Records the spans of a warpgroup in its track of ``args.ring``."""

    def __init__(self, args, tiles, warpgroup, owner):
        self.args, self.ring, self.tiles, self.owner = args, args.ring, tiles, owner
        self.memory = args.memory[TIMELINE]
        self.track = T.local_scalar("int32")
        self.count = T.local_scalar("int32")
        self.tile_start = T.local_scalar("uint32")
        self.start = T.local_scalar("uint32")
        self.now = T.local_scalar("uint32")
        track = (tiles.block * args.plan.cluster.size + tiles.rank) * len(self.ring.roles) + warpgroup
        T.buffer_store(self.track.source, track * self.ring.track_words, [0])
        T.buffer_store(self.count.source, 0, [0])
        with T.If(self.mine()), T.Then():
            self.store_word(SM, read("smid"))
            self.store_times(BEGUN)

    def mine(self):
        return T.bool(True) if self.owner is None else self.owner

    def begin_tile(self):
        with T.If(self.mine()), T.Then():
            T.buffer_store(self.start.source, read("clock"), [0])
            T.buffer_store(self.tile_start.source, self.start, [0])

    def lap(self, kind, number=0):
        with T.If(self.mine()), T.Then():
            T.buffer_store(self.now.source, read("clock"), [0])
            self.store_span(self.start, self.now, kind, number)
            T.buffer_store(self.start.source, self.now, [0])

    def end_tile(self):
        with T.If(self.mine()), T.Then():
            self.store_span(self.tile_start, self.start, TILE, self.tiles.work)

    def end(self):
        with T.If(self.mine()), T.Then():
            self.store_word(RECORDED, T.Cast("uint32", self.count))
            self.store_times(ENDED)

    def store_span(self, start, end, kind, number):
        slot = T.bitwise_and(self.count, self.ring.slots - 1)
        to = self.address(HEADER_WORDS + slot * SPAN_WORDS)
        words = start, end, T.uint32(list(self.ring.kinds).index(kind)), T.Cast("uint32", number)
        T.evaluate(T.cuda.func_call("tirgemm_store_span", to, *words, source_code=_STORE_SPAN))
        T.buffer_store(self.count.source, self.count + 1, [0])

    def store_times(self, at):
        """Store the SM's clock and the GPU's timer, read one beside the other."""
        to, times = self.address(at), (read("clock64"), read("globaltimer"))
        T.evaluate(T.cuda.func_call("tirgemm_store_times", to, *times, source_code=_STORE_TIMES))

    def store_word(self, at, value):
        T.buffer_store(self.memory, value, [self.track + at])

    def address(self, at):
        return T.address_of(self.memory[self.track + at])
