# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Sums of a tile whose steps of k several blocks share: shown to the cluster, or left in memory for another block.

Every exchange is by fragments: four accumulators of a thread lie together, those of the tile's threads side by side, so
that every access is 16 bytes a thread without gaps. The order in which parts are added is fixed by the config.
"""

from __future__ import annotations

from tvm.script import tirx as T

from tirgemm.families.wgmma.plan import WARPGROUP

_FRAGMENT = 4
# Fragments that a thread loads before it adds them, so that their ways overlap.
BATCH = 8
# Named barriers: 0 is the whole block's, 1 and up the consumers' own.
_CONSUMERS_BARRIER = 8


@T.meta_class
class Accumulators:
    """A thread's sums: fp32, or fp16 two in a register. The first wgmma of a tile sets ``registers``, the others add."""

    def __init__(self, plan):
        self.plan = plan
        self.dtype = "uint32" if plan.half else "float32"
        self.registers = T.alloc_local([plan.accumulator_registers], self.dtype)

    def value(self, index):
        """The sum number ``index`` in fp32."""
        if self.plan.half:
            return T.cast(self.registers.view("float16")[index], "float32")
        return self.registers[index]


@T.meta_class
class Gathered:
    """Sums that a block has added from its cluster's parts."""

    def __init__(self, plan):
        self.registers = T.alloc_local([plan.accumulators // plan.reducers], "float32")

    def value(self, index):
        return self.registers[index]


def meet_consumers(plan):
    """Wait for the threads of every consumer."""
    T.evaluate(T.ptx["bar.sync"](T.uint32(_CONSUMERS_BARRIER), T.uint32(plan.consumers * WARPGROUP)))


def show(plan, shared, acc, thread):
    """Write this thread's sums where the cluster can read them; ``thread`` counts over the consumers."""
    threads = plan.consumers * WARPGROUP
    for fragment in range(plan.accumulators // _FRAGMENT):
        to = shared.sums.ptr_to([(fragment * threads + thread) * _FRAGMENT])
        values = [acc.value(fragment * _FRAGMENT + i) for i in range(_FRAGMENT)]
        T.evaluate(T.ptx["st.shared.v4.f32"](to, *values))


def gather(plan, shared, gathered, rank, thread):
    """Add this block's share of the columns over the parts, in their order."""
    threads = plan.consumers * WARPGROUP
    fragments = plan.accumulators // plan.reducers // _FRAGMENT
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


def add(sums, batch, count, read):
    """Add ``count`` fragments to those from number ``batch`` on."""
    for i in range(count * _FRAGMENT):
        place = batch * _FRAGMENT + i
        T.buffer_store(sums.registers, sums.registers[place] + read[i], [place])


def load_slots(plan, args, block, batch, thread, read):
    """Load up to ``BATCH`` fragments that another block has left."""
    for fragment in range(batch, min(batch + BATCH, plan.accumulators // _FRAGMENT)):
        into = [read[(fragment - batch) * _FRAGMENT + i] for i in range(_FRAGMENT)]
        T.evaluate(T.ptx["ld.global.v4.f32"](*into, _slot(plan, args, block, fragment, thread)))


def collect_slots(plan, args, acc, block, thread, read):
    """Add all that another block has left."""
    fragments = plan.accumulators // _FRAGMENT
    for batch in range(0, fragments, BATCH):
        load_slots(plan, args, block, batch, thread, read)
        add(acc, batch, min(BATCH, fragments - batch), read)


def _slot(plan, args, block, fragment, thread):
    """Where a block's fragment lies in the workspace."""
    threads = plan.consumers * WARPGROUP
    per_block = plan.tile_m * plan.tile_n
    return args.memory["partials"].ptr_to([block * per_block + (fragment * threads + thread) * _FRAGMENT])


def leave_slots(plan, args, acc, block, thread):
    """Write this thread's sums to the block's place in memory."""
    for fragment in range(plan.accumulators // _FRAGMENT):
        values = [acc.registers[fragment * _FRAGMENT + i] for i in range(_FRAGMENT)]
        T.evaluate(T.ptx["st.global.v4.f32"](_slot(plan, args, block, fragment, thread), *values))


@T.inline
def leave(plan, args, acc, block, consumer, thread, inside):
    """Write this consumer's sums to the block's place in memory, then raise its flag; ``inside``: thread of it."""
    leave_slots(plan, args, acc, block, thread)
    T.cuda.warpgroup_sync(1 + consumer)
    if inside == 0:
        T.ptx["fence.acq_rel.gpu"]()
        T.ptx["st.release.gpu.global.b32"](
            args.memory["flags"].ptr_to([block * plan.consumers + consumer]), T.uint32(1)
        )


@T.inline
def collect(plan, args, acc, lowest, block, consumer, thread, inside):
    """Add what the blocks from the one before this down to ``lowest`` have left, in that order."""
    raised = T.alloc_local([1], "uint32")
    read = T.alloc_local([BATCH * 4], "float32")
    other: T.int32
    other = block - 1
    while other >= lowest:
        if inside == 0:
            raised[0] = T.uint32(0)
            while raised[0] == T.uint32(0):
                T.ptx["ld.acquire.gpu.global.b32"](
                    raised[0], args.memory["flags"].ptr_to([other * plan.consumers + consumer])
                )
        T.cuda.warpgroup_sync(1 + consumer)
        collect_slots(plan, args, acc, other, thread, read)
        other = other - 1
