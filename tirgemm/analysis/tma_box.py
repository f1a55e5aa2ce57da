"""TMA boxes of a launch and the layout of their rows in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tirgemm.analysis.banks.core_matrix import PITCHES, SWIZZLES
from tirgemm.analysis.figures.svg import HUES, picture, rect, room, text
from tirgemm.gemm import DTYPE_BYTES
from tirgemm.launch import KernelLaunch, TensorMap
from tirgemm.layouts import Layout

_PART = 16
_MOST_ROWS = 16
_MARGIN, _TOP, _LINE, _CELL = 8, 30, 16, 56


@dataclass(frozen=True, slots=True)
class Box:
    """A box of ``tensor``: ``rows`` of ``columns`` elements of ``element_bytes``, under one of the driver's swizzles.

    ``tensor`` is the operand's name; rows of several outer dimensions count together.
    """

    tensor: str
    rows: int
    columns: int
    element_bytes: int
    swizzle: int

    @classmethod
    def of(cls, tensor: TensorMap, m: int) -> Box:
        """The box of a tensor map for one m."""
        inner, *outer = tensor.box_at(m)
        name = tensor.name.removesuffix("_map")
        return cls(name, prod(outer), inner, DTYPE_BYTES[tensor.dtype], tensor.swizzle)

    @property
    def row_bytes(self) -> int:
        return self.columns * self.element_bytes

    @property
    def layout(self) -> Layout | None:
        """How the box lies in shared memory from an aligned start; None for a swizzle of rows that are not its own."""
        if not self.swizzle:
            return Layout.plain(self.rows, self.columns, self.element_bytes)
        if PITCHES.get(self.swizzle) != self.row_bytes:
            return None
        return Layout.tma(self.rows, self.columns, self.element_bytes, self.row_bytes)

    def __str__(self) -> str:
        swizzle = SWIZZLES.get(self.swizzle, f"swizzle {self.swizzle}")
        return f"{self.rows} rows of {self.columns} elements, {self.row_bytes} bytes each, {swizzle}"

    def to_json(self) -> dict[str, Any]:
        """Every field, with the row's bytes and the swizzle in words."""
        return {
            "tensor": self.tensor,
            "rows": self.rows,
            "columns": self.columns,
            "element_bytes": self.element_bytes,
            "row_bytes": self.row_bytes,
            "swizzle": SWIZZLES.get(self.swizzle, str(self.swizzle)),
        }


def boxes_of(kernel: KernelLaunch, m: int) -> tuple[Box, ...]:
    """The boxes of a kernel's tensor maps for one m, in the order of its parameters."""
    return tuple(Box.of(param, m) for param in kernel.params if isinstance(param, TensorMap))


def box_picture(box: Box, title: str = "") -> str:
    """A box as it lies in shared memory: a line a row, and in each 16 bytes which 16 of the row's bytes they hold."""
    heading = title or f"A box of {box.tensor}: {box}"
    layout = box.layout
    size = max(1, _PART // box.element_bytes)
    rows = min(box.rows, _MOST_ROWS)
    left, top = _MARGIN + room(["row 000"]), _TOP + _LINE
    parts = -(-box.row_bytes // _PART)
    shapes = [text(_MARGIN, top - 4, "bytes", "s")]
    shapes += [text(left + (part + 0.5) * _CELL, top - 4, f"+{part * _PART}", "s m n") for part in range(parts)]
    for row in range(rows):
        y = top + row * _LINE
        shapes.append(text(_MARGIN, y + 12, f"row {row}", "s"))
        starts = np.arange(parts) * size
        places = starts * box.element_bytes if layout is None else layout.byte_offset(row, starts) - row * box.row_bytes
        for part, place in enumerate(np.asarray(places).tolist()):
            first, last = int(starts[part]), min(box.columns, int(starts[part]) + size) - 1
            at = row * box.row_bytes + place
            bank = at // 4 % 32
            tip = f"row {row}, elements {first}-{last}: byte {at} of the box, banks {bank}-{bank + 3}"
            x = left + place / _PART * _CELL
            shapes.append(rect(x, y, _CELL, _LINE, f"h{part % HUES}", tip))
            shapes.append(text(x + _CELL / 2, y + 12, f"{first}-{last}", "m n"))
    bottom = top + rows * _LINE
    if rows < box.rows:
        shapes.append(text(_MARGIN, bottom + 14, f"{rows} of {box.rows} rows", "s"))
        bottom += _LINE
    return picture(max(left + parts * _CELL + _MARGIN, room([heading]) * 1.3), bottom + 8, heading, shapes)
