"""Permutations of the offsets inside a tile: CuTe's XOR swizzle, and a rotation of the same bits.

Source: CUTLASS ``include/cute/swizzle.hpp``. Both are given by ``bits``, ``base`` and ``shift``: runs of ``2**base``
offsets stay whole, and the ``bits`` bits above them are permuted by the ``bits`` bits that lie ``shift`` higher.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Self

from tirgemm.errors import InvalidConfig

_MOST_BITS = 32


@dataclass(frozen=True, slots=True)
class _Bits:
    """``bits`` bits from ``base`` upwards, permuted by as many from ``base + shift`` upwards. Raises InvalidConfig."""

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        name = type(self).__name__
        for field in ("bits", "base", "shift"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidConfig(f"{field} of a {name} is {value!r}, not an integer")
        if self.bits < 1 or self.base < 0:
            raise InvalidConfig(f"{name} has bits {self.bits} and base {self.base}; bits starts at 1 and base at 0")
        if self.shift < self.bits:
            raise InvalidConfig(
                f"{name} has shift {self.shift} below its {self.bits} bits: the bits that permute would be permuted"
            )
        if self.base + self.shift + self.bits > _MOST_BITS:
            raise InvalidConfig(
                f"{name} reads bit {self.base + self.shift + self.bits - 1}; offsets have {_MOST_BITS} bits"
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

    @property
    def period(self) -> int:
        """The permutation repeats every so many offsets."""
        return self.block << self.shift

    def key(self, offset: Any) -> Any:
        """By how much the runs around ``offset`` are permuted."""
        return offset // (1 << (self.base + self.shift)) % self.places

    def scaled(self, factor: int) -> Self:
        """The same permutation of offsets in units ``factor`` times as large (a power of two): bytes to elements."""
        down = _exponent(factor)
        if down > self.base:
            raise InvalidConfig(f"{self} moves runs of {self.run}, smaller than {factor}")
        return replace(self, base=self.base - down)

    def refined(self, factor: int) -> Self:
        """The same permutation of offsets in units of one ``factor``-th (a power of two): elements to bytes."""
        return replace(self, base=self.base + _exponent(factor))


@dataclass(frozen=True, slots=True)
class Swizzle(_Bits):
    """CuTe's ``Swizzle<bits, base, shift>`` with a positive shift: XOR with the bits above. It is its own inverse."""

    def __call__(self, offset: Any) -> Any:
        """Where ``offset`` goes; integers, NumPy arrays and TIR expressions alike."""
        return offset ^ (self.key(offset) * self.run)

    def inverse(self, offset: Any) -> Any:
        """What went to ``offset``."""
        return self(offset)

    def __str__(self) -> str:
        return f"^{self.bits},{self.base},{self.shift}"


@dataclass(frozen=True, slots=True)
class Rotation(_Bits):
    """The runs of a block rotated by the bits above: what a swizzle does, with + and % alone."""

    def __call__(self, offset: Any) -> Any:
        """Where ``offset`` goes; integers, NumPy arrays and TIR expressions alike."""
        return self._turned(offset, self.key(offset))

    def inverse(self, offset: Any) -> Any:
        """What went to ``offset``."""
        return self._turned(offset, self.places - self.key(offset))

    def _turned(self, offset: Any, by: Any) -> Any:
        place = (offset // self.run + by) % self.places
        return offset // self.block * self.block + place * self.run + offset % self.run

    def __str__(self) -> str:
        return f"~{self.bits},{self.base},{self.shift}"


def _exponent(factor: int) -> int:
    if factor < 1 or factor & (factor - 1):
        raise InvalidConfig(f"offsets are scaled by {factor}, which is no power of two")
    return factor.bit_length() - 1


Permutation = Swizzle | Rotation
_TEXT = re.compile(r"([\^~])(\d+),(\d+),(\d+)")


def parse_permutation(text: str) -> Permutation:
    """The permutation whose text form is ``text``: ``^3,3,3`` or ``~2,3,3``. Raises InvalidConfig."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InvalidConfig(f"permutation {text!r} is not ^BITS,BASE,SHIFT (XOR) or ~BITS,BASE,SHIFT (rotation)")
    kind = Swizzle if match[1] == "^" else Rotation
    return kind(int(match[2]), int(match[3]), int(match[4]))
