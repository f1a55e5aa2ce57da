# mypy: ignore-errors
# ruff: noqa: N812
# The expressions are TIR's, whose operators are not typed.
"""Unaligned words of eight elements, out of the two aligned words in which their elements lie.

Eleven selects and four funnel shifts for elements at any distance, fewer where their distances are multiples of two.
"""

from __future__ import annotations

from tvm.script import tirx as T

# Registers of four bytes in a word.
REGISTERS = 4
# How many elements a base lies behind an address of 16 bytes: only the call knows.
_PHASE = """
__forceinline__ __device__ int tirgemm_phase(const void* base) {
    return (int)((unsigned long long)base >> 1) & 7;
}
"""


def phase(memory):
    """How many elements a buffer begins behind an address of 16 bytes."""
    return T.cuda.func_call("tirgemm_phase", T.address_of(memory[0]), source_code=_PHASE, return_type="int32")


def shifted(registers, shift, multiple):
    """The four registers of the word that begins ``shift`` (0 to 7) elements into the first of two words, whose eight
    ``registers`` are given. ``multiple`` (1, 2, 4 or 8) divides every shift."""
    for step in (4, 2):
        if multiple <= step:
            pairs = step // 2
            away = T.bitwise_and(shift, step) != 0
            registers = [T.Select(away, far, near) for near, far in zip(registers, registers[pairs:], strict=False)]
    if multiple > 1:
        return registers[:REGISTERS]
    odd = T.cast(T.bitwise_and(shift, 1) * 16, "uint64")
    return [_funnel(registers[i], registers[i + 1], odd) for i in range(REGISTERS)]


def _funnel(low, high, shift):
    """32 bits of 64, ``shift`` from the lowest."""
    both = T.bitwise_or(T.cast(high, "uint64") << T.uint64(32), T.cast(low, "uint64"))
    return T.cast(both >> shift, "uint32")
