"""Shared-memory layouts of a tile: plain, padded or permuted rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tirgemm.errors import InvalidConfig
from tirgemm.layouts.swizzle import Swizzle

Integers = NDArray[np.int64]

ELEMENT_BYTES = (1, 2, 4, 8, 16)
# The spans in bytes of TMA's and wgmma's swizzles -> bits of Swizzle<bits, 4, 3> over byte addresses (PTX ISA,
# "Tensor Swizzling Modes"; CUTLASS mma_sm90_desc.hpp).
_TMA_BITS = {128: 3, 64: 2, 32: 1}


@dataclass(frozen=True, slots=True)
class Layout:
    """``rows`` of ``columns`` elements of ``element_bytes``, ``stride`` elements from a row to the next, then permuted.

    ``permutation`` acts on offsets in elements from the tile's start. Offsets are of elements unless a name says bytes.
    A layout that would place two elements on each other, or one outside its own bytes, raises InvalidConfig.
    """

    rows: int
    columns: int
    element_bytes: int
    stride: int
    permutation: Swizzle | None = None

    def __post_init__(self) -> None:
        for field in ("rows", "columns", "element_bytes", "stride"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidConfig(f"{field} of a layout is {value!r}, not a positive integer")
        if self.element_bytes not in ELEMENT_BYTES:
            raise InvalidConfig(f"elements of {self.element_bytes} bytes; a layout's have {ELEMENT_BYTES}")
        if self.stride < self.columns:
            raise InvalidConfig(f"rows of {self.columns} elements overlap at a stride of {self.stride}")
        if self.permutation is not None and self.size % self.permutation.block:
            raise InvalidConfig(
                f"{self.rows} rows of {self.stride} elements are no multiple of the {self.permutation.block} elements "
                f"that {self.permutation} permutes among each other"
            )

    # -- making one ----------------------------------------------------------------------------------------------------

    @classmethod
    def plain(cls, rows: int, columns: int, element_bytes: int) -> Layout:
        """Rows one after the other."""
        return cls(rows, columns, element_bytes, columns)

    @classmethod
    def padded(cls, rows: int, columns: int, element_bytes: int, pad: int) -> Layout:
        """Rows with ``pad`` unused elements after each; none is the plain layout."""
        if pad < 0:
            raise InvalidConfig(f"a row is padded by {pad} elements, fewer than none")
        return cls(rows, columns, element_bytes, columns + pad)

    @classmethod
    def permuted(cls, rows: int, columns: int, element_bytes: int, permutation: Swizzle) -> Layout:
        """Rows one after the other, their runs permuted."""
        return cls(rows, columns, element_bytes, columns, permutation)

    @classmethod
    def tma(cls, rows: int, columns: int, element_bytes: int, span: int) -> Layout:
        """As TMA writes and wgmma reads a tile whose rows are ``span`` (128, 64 or 32) bytes, from an aligned start."""
        if span not in _TMA_BITS or columns * element_bytes != span:
            raise InvalidConfig(
                f"rows of {columns * element_bytes} bytes under the {span}-byte swizzle; TMA's rows and swizzle are "
                f"both 128, 64 or 32 bytes"
            )
        return cls.permuted(rows, columns, element_bytes, Swizzle(_TMA_BITS[span], 4, 3).scaled(element_bytes))

    def __str__(self) -> str:
        pad = f"+{self.pad}" if self.pad else ""
        return f"{self.rows}x{self.columns}:{self.element_bytes}{pad}{self.permutation or ''}"

    def with_(self, **changes: Any) -> Layout:
        """A copy with other fields. Raises InvalidConfig."""
        return replace(self, **changes)

    def recast(self, element_bytes: int) -> Layout:
        """The same bytes as narrower elements: runs of 16 bytes as halves. Raises InvalidConfig."""
        parts = self.element_bytes // element_bytes
        permutation = self.permutation and self.permutation.refined(parts)
        return Layout(self.rows, self.columns * parts, element_bytes, self.stride * parts, permutation)

    # -- what it takes -------------------------------------------------------------------------------------------------

    @property
    def pad(self) -> int:
        """Unused elements after each row."""
        return self.stride - self.columns

    @property
    def size(self) -> int:
        """Elements that the tile takes, the unused ones included."""
        return self.rows * self.stride

    @property
    def nbytes(self) -> int:
        """Bytes that the tile takes."""
        return self.size * self.element_bytes

    @property
    def vector(self) -> int:
        """The longest aligned run of columns that stays one aligned run in memory, in elements: a power of two."""
        together = gcd(self.stride, self.columns) if self.rows > 1 else self.columns
        together &= -together
        return together if self.permutation is None else min(together, self.permutation.run)

    # -- where things are ----------------------------------------------------------------------------------------------

    def offset(self, row: Any, column: Any) -> Any:
        """Elements from the tile's start to element (``row``, ``column``).

        For integers, NumPy arrays (which broadcast) and TIR expressions: only + * // % and ^ are used. Bounds are not
        looked at; ``byte_offset`` does.
        """
        flat = row * self.stride + column
        return flat if self.permutation is None else self.permutation(flat)

    def byte_offset(self, row: ArrayLike, column: ArrayLike) -> Integers:
        """Bytes from the tile's start to each element. Raises InvalidConfig for one outside the tile."""
        rows, columns = np.asarray(row, dtype=np.int64), np.asarray(column, dtype=np.int64)
        for name, given, limit in (("row", rows, self.rows), ("column", columns, self.columns)):
            outside = given[(given < 0) | (given >= limit)]
            if outside.size:
                raise InvalidConfig(f"{name} {int(outside.flat[0])} is outside layout {self}, which has {limit}")
        return np.asarray(self.offset(rows, columns) * self.element_bytes, dtype=np.int64)

    def coordinates(self, offset: Any) -> tuple[Any, Any]:
        """The (row, column) that lies at ``offset``, the inverse of ``offset``; in a pad the column is past the
        last."""
        flat = offset if self.permutation is None else self.permutation(offset)
        return flat // self.stride, flat % self.stride

    @property
    def keeps_rows(self) -> bool:
        """Whether every element stays in its row, so that a buffer of two dimensions can hold the layout."""
        return self.permutation is None or self.stride % self.permutation.block == 0

    def index_map(self, row: Any, column: Any) -> tuple[Any, Any]:
        """(row, place in the row) of an element in a buffer of ``rows`` by ``stride``, for ``transform_layout`` and
        TIRx.

        The row stays an expression of its own, so that TIR's simplifier sees it. For integers, NumPy arrays and TIR
        expressions. Raises InvalidConfig where elements leave their rows.
        """
        if self.permutation is None:
            return row, column
        if not self.keeps_rows:
            raise InvalidConfig(
                f"layout {self} moves elements to other rows: a row's {self.stride} elements are no multiple of "
                f"{self.permutation.block}; use offset"
            )
        return row, column ^ (self._key(row, column) * self.permutation.run)

    def _key(self, row: Any, column: Any) -> Any:
        """The permutation's key, from the row alone where the column has no part in it."""
        assert self.permutation is not None
        unit = 1 << (self.permutation.base + self.permutation.shift)
        places = self.permutation.places
        if unit % self.stride == 0:
            return row // (unit // self.stride) % places
        if self.stride % (unit * places) == 0:
            return column // unit % places
        return (row * self.stride + column) // unit % places
