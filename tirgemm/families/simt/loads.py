"""Loads per FMA that a tiling asks for, as written: before the compiler merges, widens, hoists or removes any."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.families.simt.tiling import ThreadTiling


@dataclass(frozen=True, slots=True)
class Loads:
    """Elements of A and B that are read for one FMA, and load instructions of a thread for one of its FMAs.

    An element that two FMAs in a row of one thread share is read once.
    """

    global_elements: float
    global_instructions: float
    shared_elements: float
    shared_instructions: float


def loads_per_fma(cut: ThreadTiling) -> Loads:
    """What one FMA costs in loads from global and from shared memory."""
    thread_m, thread_n = cut.pieces_m * cut.piece_m, cut.pieces_n * cut.piece_n
    fmas = thread_m * thread_n
    if cut.reads == "inner":
        read = 2.0  # k is innermost: both operands change at every FMA
    elif cut.fragments:
        read = (thread_m + thread_n) / fmas
    else:
        # n is innermost: A changes with every row of the thread tile; B at every FMA, but for a tile of one column.
        read = (thread_m + (fmas if thread_n > 1 else 1)) / fmas
    if not cut.shares:
        return Loads(read, read, 0.0, 0.0)
    width_a, width_b = cut.fragment_widths
    vectors = thread_m // width_a + thread_n // width_b
    outputs = cut.block_m * cut.block_n
    return Loads(
        global_elements=(cut.block_m + cut.block_n) / outputs,
        global_instructions=(cut.block_m / cut.width_a + cut.block_n / cut.width_b) / outputs,
        shared_elements=read,
        shared_instructions=vectors / fmas if cut.fragments else read,
    )
