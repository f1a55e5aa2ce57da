# mypy: ignore-errors
# ruff: noqa: N812, SIM102
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Stores of staged rows to D by a consumer's threads, in the widest words that all of D's rows are aligned to."""

from __future__ import annotations

from tvm.script import tirx as T

from tirgemm.families.wgmma.planning.tile import permuted
from tirgemm.families.wgmma.planning.warpgroups import MMA_M, WARPGROUP
from tirgemm.gemm import DTYPE_BYTES

_COPY = """
__forceinline__ __device__ void tirgemm_copy_{nbytes}(void* to, const void* from) {{
    *reinterpret_cast<{word}*>(to) = *reinterpret_cast<const {word}*>(from);
}}
"""
# Words that threads copy from shared memory to D, by their bytes.
_WORDS = {4: "unsigned", 8: "uint2", 16: "uint4"}
# How many of a thread's stores of so many elements are in flight together: what was fastest on an H200.
_UNROLL = {1: 16, 2: 8, 4: 8, 8: 4}
# Elements that the lanes of a warp store at once where words are single elements: 64 bytes, half a line of L2.
_LANES = 32


def staged_at(plan, row, column):
    """Where an element of a staged chunk lies in its box of the buffer."""
    width, count = plan.staging.shape[1], plan.staging.unit
    unit = permuted(row, column // count, width // count)
    return row * width + unit * count + column % count


def stored_column(e, word, m, n):
    """The first column of a thread's word number ``word`` of a staged row that begins at D's (m, n).

    A warp that stores half a row of single elements begins where 64 bytes of D do, so that it writes few sectors: the
    row's two ends are one warp's.
    """
    staging = e.plan.staging
    if staging.vector > 1 or staging.shape[1] <= _LANES:
        return word * staging.vector
    ahead = T.bitwise_and(T.cast(e.offset("d", m, n), "int32"), _LANES - 1)
    return T.bitwise_and(word - ahead, staging.shape[1] - 1)


def copy_staged(e, place, m, n):
    """Staged elements from ``place`` on to D at (m, n): one, or the word of as many as D's rows are aligned to."""
    count = e.plan.staging.vector
    source = [e.consumer, e.buffer, place]
    if count == 1:
        e.store_element(e.staging[source], m, n)
        return
    nbytes = count * DTYPE_BYTES[e.gemm.out]
    to = T.address_of(e.args.elements_of("d")[e.offset("d", m, n)])
    source_code = _COPY.format(nbytes=nbytes, word=_WORDS[nbytes])
    T.evaluate(T.cuda.func_call(f"tirgemm_copy_{nbytes}", to, e.staging.ptr_to(source), source_code=source_code))


@T.inline
def store_word(e, number, row, column):
    """A word of a staged row to D; those beside it are the next threads'."""
    words = T.meta_var(e.plan.staging.shape[1] // e.plan.staging.vector)
    r: T.let = number // words
    first = T.meta_var(e.place(e.row0 + row, e.column0 + column))
    c: T.let = stored_column(e, number % words, first[0] + r, first[1])
    m: T.let = first[0] + r
    n: T.let = first[1] + c
    place = T.meta_var(staged_at(e.plan, r, c))
    if m < e.args.m:
        if n < e.gemm.n:
            copy_staged(e, place, m, n)


@T.inline
def store_rows(e, row, column):
    """A consumer's staged rows of a chunk to D."""
    words = T.meta_var(MMA_M * e.plan.staging.chunk // e.plan.staging.vector)
    for i in T.serial(-(-words // WARPGROUP), unroll=_UNROLL[e.plan.staging.vector]):
        if words % WARPGROUP == 0 or i * WARPGROUP + e.thread < words:
            store_word(e, i * WARPGROUP + e.thread, row, column)
