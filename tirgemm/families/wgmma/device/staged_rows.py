# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Stores of staged rows to D by threads, 16 aligned bytes at a time wherever D's rows begin.

Where D's rows begin at multiples of 16 bytes, a thread copies a word. Elsewhere a word of D holds elements of two words
of the buffer: a thread loads both, shifts them, and stores the word. The first word of such a row has its two ends,
which are stored element by element, since others' outputs lie in the same words; so has the word at D's last column.
"""

from __future__ import annotations

from tvm.script import tirx as T

from tirgemm.families.common.aligned_copy import WORD
from tirgemm.families.wgmma.device.word_shift import REGISTERS, shifted
from tirgemm.families.wgmma.planning.tile import permuted
from tirgemm.families.wgmma.planning.warpgroups import MMA_M, WARPGROUP
from tirgemm.gemm import DTYPE_NAMES

_COPY = """
__forceinline__ __device__ void tirgemm_copy_word(void* to, const void* from) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
}
"""
# How many of a thread's words are in flight together: what was fastest on an H200.
_UNROLL = 4


def staged_at(plan, row, column):
    """Where an element of a staged chunk lies in its box of the buffer."""
    width, count = plan.staging.shape[1], plan.staging.unit
    unit = permuted(row, column // count, width // count)
    return row * width + unit * count + column % count


def staged_word(e, r, unit):
    return e.staging.ptr_to([e.consumer, e.buffer, staged_at(e.plan, r, unit * WORD)])


def word_of(e, m, n):
    return T.address_of(e.args.elements_of("d")[e.offset("d", m, n)])


def copy_word(to, source):
    T.evaluate(T.cuda.func_call("tirgemm_copy_word", to, source, source_code=_COPY))


def place_in_word(e, m, n):
    """The place of D's element, of which only the last bits matter: from an address of 16 bytes on."""
    place = T.cast(e.offset("d", m, n), "int32")
    return place if e.phase is None else place + e.phase


def shift_words(e, shift):
    """The word of D that begins ``shift`` elements into the two words."""
    registers = [e.two_words[i] for i in range(2 * REGISTERS)]
    for i, register in enumerate(shifted(registers, shift, e.plan.staging.vector)):
        T.buffer_store(e.word_of_d, register, [i])


def store_ends(e, begin, m, n):
    """The elements of a word of which some are others', or outside D: those before the row are the row's last."""
    elements = e.word_of_d.view(DTYPE_NAMES[e.gemm.out])
    # A loop that NVRTC unrolls: TVM would simplify every element for itself.
    with T.serial(WORD, unroll=True) as i:
        column = n + T.bitwise_and(begin + i, e.plan.staging.shape[1] - 1)
        with T.If(column < e.gemm.n), T.Then():
            e.store_element(elements[i], m, column)


@T.inline
def store_shifted(e, r, unit, m, n):
    """Unit ``unit`` of staged row ``r``, whose first element is D's at (m, n): a word of D, or the row's two ends."""
    units = T.meta_var(e.plan.staging.shape[1] // WORD)
    # How many elements of D's first word lie before the row; the column of the row at which this word begins.
    ahead: T.let = T.bitwise_and(place_in_word(e, m, n), WORD - 1)
    begin: T.let = unit * WORD - ahead
    near: T.let = T.bitwise_and(unit - T.cast(ahead > 0, "int32"), units - 1)
    copy_word(T.address_of(e.two_words[0]), staged_word(e, r, near))
    copy_word(T.address_of(e.two_words[REGISTERS]), staged_word(e, r, T.bitwise_and(near + 1, units - 1)))
    shift_words(e, T.bitwise_and(-ahead, WORD - 1))
    if begin >= 0 and n + begin + WORD <= e.gemm.n:
        copy_word(word_of(e, m, n + begin), T.address_of(e.word_of_d[0]))
    else:
        store_ends(e, begin, m, n)


@T.inline
def store_part(e, number, row, column):
    """A thread's part of a staged row; those beside it are the next threads'."""
    units = T.meta_var(e.plan.staging.shape[1] // WORD)
    r: T.let = number // units
    unit: T.let = number % units
    first = T.meta_var(e.place(e.row0 + row, e.column0 + column))
    m: T.let = first[0] + r
    if m < e.args.m:
        if e.plan.staging.vector == WORD:
            n: T.let = first[1] + unit * WORD
            if n < e.gemm.n:
                copy_word(word_of(e, m, n), staged_word(e, r, unit))
        else:
            store_shifted(e, r, unit, m, first[1])


@T.inline
def store_rows(e, row, column):
    """What a consumer's threads staged, to D."""
    words = T.meta_var(MMA_M * e.plan.staging.chunk // WORD)
    for i in T.serial(-(-words // WARPGROUP), unroll=_UNROLL):
        if words % WARPGROUP == 0 or i * WARPGROUP + e.thread < words:
            store_part(e, i * WARPGROUP + e.thread, row, column)
