# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Partial sums of a tile, added over a cluster through distributed shared memory, or in turn by one block.

Every exchange is by fragments: four accumulators of a thread lie together, those of the tile's threads side by side, so
that every access is 16 bytes a thread without gaps. The order in which parts are added is fixed by the config.
"""

from __future__ import annotations

from tvm.script import tirx as T

from tirgemm.families.wgmma.planning.warpgroups import WARPGROUP

_FRAGMENT = 4
# Fragments that a thread loads before it adds them, so that their ways overlap.
BATCH = 8
# Named barriers: 0 is the whole block's, 1 and up the consumers' own.
_CONSUMERS_BARRIER = 8


@T.meta_class
class Accumulators:
    """A thread's sums: fp32, or fp16 two in a register. The first wgmma of a part sets ``registers``, the others
    add."""

    def __init__(self, plan):
        self.plan = plan
        self.dtype = "uint32" if plan.warpgroups.half else "float32"
        self.registers = T.alloc_local([plan.warpgroups.accumulator_registers], self.dtype)

    def value(self, index):
        """The sum number ``index`` in fp32."""
        if self.plan.warpgroups.half:
            return T.cast(self.registers.view("float16")[index], "float32")
        return self.registers[index]


@T.meta_class
class ReducedSums:
    """Sums that a block has added from parts, those of its cluster or its own."""

    def __init__(self, plan):
        count = plan.warpgroups.accumulators * plan.cluster.stored_columns // plan.tile_n
        self.registers = T.alloc_local([count], "float32")

    def value(self, index):
        return self.registers[index]


def sync_consumers(plan):
    """Wait for the threads of every consumer."""
    T.evaluate(T.ptx["bar.sync"](T.uint32(_CONSUMERS_BARRIER), T.uint32(plan.warpgroups.consumers * WARPGROUP)))


def write_dsmem(plan, shared, acc, thread):
    """Write this thread's sums where the cluster can read them; ``thread`` counts over the consumers."""
    threads = plan.warpgroups.consumers * WARPGROUP
    for fragment in range(plan.warpgroups.accumulators // _FRAGMENT):
        to = shared.sums.ptr_to([(fragment * threads + thread) * _FRAGMENT])
        values = [acc.value(fragment * _FRAGMENT + i) for i in range(_FRAGMENT)]
        T.evaluate(T.ptx["st.shared.v4.f32"](to, *values))


def add_cluster_parts(plan, shared, gathered, rank, thread):
    """Add this block's share of the columns over the parts, in their order."""
    threads = plan.warpgroups.consumers * WARPGROUP
    fragments = plan.warpgroups.accumulators // plan.cluster.reducers // _FRAGMENT
    mapped = T.alloc_local([1], "uint32")
    read = T.alloc_local([min(BATCH, fragments) * _FRAGMENT], "float32")
    for part in range(plan.split):
        first = shared.sums.ptr_to([(rank * fragments * threads + thread) * _FRAGMENT])
        T.evaluate(T.ptx.mapa.shared__cluster.u32(mapped[0], T.cuda.cvta_generic_to_shared(first), T.uint32(part)))
        for batch in range(0, fragments, BATCH):
            numbers = range(batch, min(batch + BATCH, fragments))
            for fragment in numbers:
                at = mapped[0] + T.uint32(fragment * threads * _FRAGMENT * 4)
                to, first = (gathered.registers, fragment) if part == 0 else (read, fragment - batch)
                T.evaluate(
                    T.ptx["ld.shared::cluster.v4.f32"](*[to[first * _FRAGMENT + i] for i in range(_FRAGMENT)], at)
                )
            if part:
                add(gathered, batch, len(numbers), read)


def add_part(plan, acc, gathered, first):
    """Add the sums of a part to those of the parts before it; the ``first`` part's become theirs."""
    for i in range(plan.warpgroups.accumulators):
        value = acc.value(i)
        T.buffer_store(gathered.registers, T.Select(first, value, gathered.registers[i] + value), [i])


def add(sums, batch, count, read):
    """Add ``count`` fragments to those from number ``batch`` on."""
    for i in range(count * _FRAGMENT):
        place = batch * _FRAGMENT + i
        T.buffer_store(sums.registers, sums.registers[place] + read[i], [place])
