# mypy: ignore-errors
# ruff: noqa: N812
# The functions build TIR expressions for the decorated ones of other modules.
"""Words of 16 bytes out of elements that lie anywhere between two of them: how far they lie apart, and the shift.

Eight elements that do not begin at a multiple of 16 bytes come out of two aligned words by eleven selects and four
funnel shifts.
"""

from __future__ import annotations

from tvm.script import tirx as T

# 32 bits in a word.
HALVES = 4
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
_LOAD = """
__forceinline__ __device__ void tirgemm_load_word(const void* from, unsigned* to) {
    const uint4 word = *reinterpret_cast<const uint4*>(from);
    to[0] = word.x; to[1] = word.y; to[2] = word.z; to[3] = word.w;
}
"""


def phase_of(base):
    """By how many elements of 2 bytes ``base`` lies behind a multiple of 16 bytes."""
    return T.cuda.func_call("tirgemm_phase", base, source_code=_PHASE, return_type="int32")


def store_aligned(to, bits):
    """16 bytes to an address that is a multiple of them."""
    T.evaluate(T.cuda.func_call("tirgemm_store_word", to, *bits, source_code=_STORE))


def load_aligned(source, to):
    """16 bytes from an address that is a multiple of them, to four registers."""
    T.evaluate(T.cuda.func_call("tirgemm_load_word", source, to, source_code=_LOAD))


def shifted(bits, shift, vector):
    """The word that begins ``shift`` elements of 2 bytes (0 to 7, a multiple of ``vector``) into two aligned words."""
    for step in (4, 2):
        if vector <= step:
            pairs = step // 2
            away = T.bitwise_and(shift, step) != 0
            bits = [T.Select(away, far, near) for near, far in zip(bits, bits[pairs:], strict=False)]
    if vector > 1:
        return bits[:HALVES]
    odd = T.cast(T.bitwise_and(shift, 1) * 16, "uint64")
    return [_funnel(bits[i], bits[i + 1], odd) for i in range(HALVES)]


def _funnel(low, high, shift):
    """32 bits of 64, ``shift`` from the lowest."""
    both = T.bitwise_or(T.cast(high, "uint64") << T.uint64(32), T.cast(low, "uint64"))
    return T.cast(both >> shift, "uint32")
