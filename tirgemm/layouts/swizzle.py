"""Permutations of the offsets inside a tile: CuTe's XOR swizzle.

Source: CUTLASS ``include/cute/swizzle.hpp``. Runs of ``2**base`` offsets stay whole, and the ``bits`` bits above them
are permuted by the ``bits`` bits that lie ``shift`` higher.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tirgemm.errors import InvalidConfig

_MOST_BITS = 32


@dataclass(frozen=True, slots=True)
class Swizzle:
    """CuTe's ``Swizzle<bits, base, shift>`` with a positive shift: ``bits`` bits from ``base`` upwards, XORed with as
    many from ``base + shift`` upwards. It is its own inverse; text form ``^3,3,3``. Raises InvalidConfig."""

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        for field in ("bits", "base", "shift"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidConfig(f"{field} of a swizzle is {value!r}, not an integer")
        if self.bits < 1 or self.base < 0:
            raise InvalidConfig(f"swizzle has bits {self.bits} and base {self.base}; bits starts at 1 and base at 0")
        if self.shift < self.bits:
            raise InvalidConfig(
                f"swizzle has shift {self.shift} below its {self.bits} bits: the bits that permute would be permuted"
            )
        if self.base + self.shift + self.bits > _MOST_BITS:
            raise InvalidConfig(
                f"swizzle reads bit {self.base + self.shift + self.bits - 1}; offsets have {_MOST_BITS} bits"
            )

    @property
    def run(self) -> int:
        """Offsets that stay together: a vector access may be as wide."""
        return int(1 << self.base)

    @property
    def places(self) -> int:
        """Runs among which one is moved."""
        return int(1 << self.bits)

    @property
    def block(self) -> int:
        """Aligned blocks of so many offsets are permuted within themselves."""
        return self.run * self.places

    def key(self, offset: Any) -> Any:
        """By how much the runs around ``offset`` are permuted."""
        return offset // (1 << (self.base + self.shift)) % self.places

    def scaled(self, factor: int) -> Swizzle:
        """The same permutation of offsets in units ``factor`` times as large (a power of two): bytes to elements."""
        down = _exponent(factor)
        if down > self.base:
            raise InvalidConfig(f"{self} moves runs of {self.run}, smaller than {factor}")
        return replace(self, base=self.base - down)

    def refined(self, factor: int) -> Swizzle:
        """The same permutation of offsets in units of one ``factor``-th (a power of two): elements to bytes."""
        return replace(self, base=self.base + _exponent(factor))

    def __call__(self, offset: Any) -> Any:
        """Where ``offset`` goes; integers, NumPy arrays and TIR expressions alike."""
        return offset ^ (self.key(offset) * self.run)

    def __str__(self) -> str:
        return f"^{self.bits},{self.base},{self.shift}"


def _exponent(factor: int) -> int:
    if factor < 1 or factor & (factor - 1):
        raise InvalidConfig(f"offsets are scaled by {factor}, which is no power of two")
    return factor.bit_length() - 1
