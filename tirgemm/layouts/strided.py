"""CuTe's layouts: nested shapes with strides, as functions from coordinates to offsets.

Source: CUTLASS ``media/docs/cpp/cute/01_layout.md`` and ``02_layout_algebra.md``. The first mode runs fastest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tirgemm.errors import InvalidConfig

Nested = int | tuple["Nested", ...]


@dataclass(frozen=True, slots=True)
class Strided:
    """``shape`` and ``stride`` of one structure; text form ``((8,16),4):((64,1),16)``. Raises InvalidConfig."""

    shape: Nested
    stride: Nested

    def __post_init__(self) -> None:
        if _profile(self.shape) != _profile(self.stride):
            raise InvalidConfig(
                f"shape {_text(self.shape)} and stride {_text(self.stride)} have not the same structure"
            )
        for extent in leaves(self.shape):
            if extent < 1:
                raise InvalidConfig(f"shape {_text(self.shape)} has a mode of {extent}; a mode has 1 or more")
        for step in leaves(self.stride):
            if step < 0:
                raise InvalidConfig(f"stride {_text(self.stride)} goes back by {-step}")

    @classmethod
    def compact(cls, shape: Nested) -> Strided:
        """Without gaps, the first mode fastest (column-major), modes of one with no step: CuTe's of a shape alone."""
        return cls(shape, _columns_first(shape, 1)[0])

    @classmethod
    def parse(cls, text: str) -> Strided:
        """The layout of a text form; a shape alone is compact. Raises InvalidConfig."""
        shape, _, stride = text.replace(" ", "").replace("_", "").partition(":")
        return cls(_parsed(shape), _parsed(stride)) if stride else cls.compact(_parsed(shape))

    def __str__(self) -> str:
        return f"{_text(self.shape)}:{_text(self.stride)}"

    @property
    def modes(self) -> tuple[tuple[int, int], ...]:
        """(extent, stride) of every leaf, in order."""
        return tuple(zip(leaves(self.shape), leaves(self.stride), strict=True))

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return prod(leaves(self.shape))

    @property
    def cosize(self) -> int:
        """One more than the largest offset."""
        return 1 + sum((extent - 1) * step for extent, step in self.modes)

    @property
    def injective(self) -> bool:
        """Whether no two coordinates have one offset."""
        return len(np.unique(self(np.arange(self.size)))) == self.size

    def mode(self, number: int) -> Strided:
        """One of the outermost modes, as a layout."""
        if isinstance(self.shape, int) or isinstance(self.stride, int):
            raise InvalidConfig(f"{self} has no modes to choose from")
        return Strided(self.shape[number], self.stride[number])

    def __call__(self, *coordinate: Any) -> Any:
        """The offset of a coordinate: one index for the whole layout, or one for each outermost mode, each an integer,
        a NumPy array or a nested tuple."""
        given = coordinate[0] if len(coordinate) == 1 else coordinate
        return _offset(self.shape, self.stride, given)

    def coalesced(self) -> Strided:
        """The same function of a one-dimensional index with as few modes as can be."""
        modes: list[tuple[int, int]] = []
        for extent, step in self.modes:
            if extent == 1:
                continue
            if modes and modes[-1][0] * modes[-1][1] == step:
                modes[-1] = (modes[-1][0] * extent, modes[-1][1])
            else:
                modes.append((extent, step))
        return _of_modes(modes)

    def composed(self, inner: Strided) -> Strided:
        """``self`` after ``inner``: the layout ``R`` of inner's shape with ``R(c) = self(inner(c))``.

        Raises InvalidConfig where a stride or an extent of ``inner`` does not divide self's modes.
        """
        outer = self.coalesced()

        def over(shape: Nested, stride: Nested) -> Strided:
            if isinstance(shape, int) and isinstance(stride, int):
                return outer._picked(shape, stride)
            assert isinstance(shape, tuple)
            assert isinstance(stride, tuple)
            parts = [over(a, b) for a, b in zip(shape, stride, strict=True)]
            return Strided(tuple(p.shape for p in parts), tuple(p.stride for p in parts))

        return over(inner.shape, inner.stride)

    def _picked(self, extent: int, step: int) -> Strided:
        """Every ``step``-th of this layout's indices, ``extent`` of them."""
        modes: list[tuple[int, int]] = []
        left, skip = extent, step
        for number, (size, stride) in enumerate(self.modes):
            if left == 1:
                break
            last = number == len(self.modes) - 1
            if skip >= size and not last:
                if skip % size:
                    raise InvalidConfig(f"{extent}:{step} does not divide {self}")
                skip //= size
                continue
            if not last and size % skip:
                raise InvalidConfig(f"{extent}:{step} does not divide {self}")
            here = left if last else min(left, size // skip)
            if left % here:
                raise InvalidConfig(f"{extent}:{step} does not divide {self}")
            modes.append((here, stride * skip))
            left, skip = left // here, 1
        return _of_modes(modes)

    def inverted(self) -> Strided:
        """The layout from offsets back to one-dimensional indices, for one without gaps. Raises InvalidConfig."""
        at, expected, modes = 1, 1, []
        places = []
        for extent, step in self.modes:
            places.append((step, extent, at))
            at *= extent
        for step, extent, index in sorted(place for place in places if place[1] > 1):
            if step != expected:
                raise InvalidConfig(f"{self} has gaps or repeats offsets: no inverse")
            modes.append((extent, index))
            expected *= extent
        return _of_modes(modes)


def leaves(nested: Nested) -> Iterator[int]:
    """The integers of a nested tuple, in order."""
    if isinstance(nested, int):
        yield nested
    else:
        for part in nested:
            yield from leaves(part)


def _of_modes(modes: list[tuple[int, int]]) -> Strided:
    if not modes:
        return Strided(1, 0)
    if len(modes) == 1:
        return Strided(*modes[0])
    return Strided(tuple(extent for extent, _ in modes), tuple(step for _, step in modes))


def _offset(shape: Nested, stride: Nested, coordinate: Any) -> Any:
    if isinstance(shape, int):
        return coordinate * stride
    assert isinstance(stride, tuple)
    if isinstance(coordinate, tuple):
        if len(coordinate) != len(shape):
            raise InvalidConfig(
                f"coordinate {coordinate} has {len(coordinate)} parts; shape {_text(shape)} {len(shape)}"
            )
        parts = zip(shape, stride, coordinate, strict=True)
        return sum(_offset(part, step, at) for part, step, at in parts)
    total: Any = 0
    for number, (part, step) in enumerate(zip(shape, stride, strict=True)):
        extent = prod(leaves(part))
        at = coordinate if number == len(shape) - 1 else coordinate % extent
        total = total + _offset(part, step, at)
        coordinate = coordinate // extent
    return total


def _columns_first(shape: Nested, step: int) -> tuple[Nested, int]:
    if isinstance(shape, int):
        return 0 if shape == 1 else step, step * shape
    parts: list[Nested] = []
    for part in shape:
        stride, step = _columns_first(part, step)
        parts.append(stride)
    return tuple(parts), step


def _profile(nested: Nested) -> Any:
    return None if isinstance(nested, int) else tuple(_profile(part) for part in nested)


def _text(nested: Nested) -> str:
    return str(nested) if isinstance(nested, int) else f"({','.join(map(_text, nested))})"


_TOKEN = re.compile(r"\d+|[(),]")


def _parsed(text: str) -> Nested:
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text or not tokens:
        raise InvalidConfig(f"{text!r} is not an integer or a nested tuple of integers")

    def read() -> Nested:
        token = tokens.pop(0) if tokens else ""
        if token.isdigit():
            return int(token)
        if token != "(":
            raise InvalidConfig(f"{text!r} is not an integer or a nested tuple of integers")
        parts = [read()]
        while tokens and tokens[0] == ",":
            tokens.pop(0)
            parts.append(read())
        if not tokens or tokens.pop(0) != ")":
            raise InvalidConfig(f"{text!r} has a parenthesis that does not close")
        return tuple(parts)

    nested = read()
    if tokens:
        raise InvalidConfig(f"{text!r} goes on after its end")
    return nested
