"""Filter of kernels by their problem: its whole text form, the beginning of one, or some of its sizes."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations

from sqlalchemy import ColumnElement, select

from tirgemm.errors import InvalidGemm, InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.tuning_db.models import GemmRow, KernelFigureRow

_NUMBER = "[1-9][0-9]{0,17}"
_SIZE = re.compile(f"([mnk])=({_NUMBER})")
_PREFIX = re.compile(r"[0-9][0-9a-z_.:=]{0,511}")
_ORDERS = [names for count in (1, 2, 3) for names in permutations("mnk", count)]
_SIZES = "|".join(r"[\s,]+".join(f"{name}={_NUMBER}" for name in names) for names in _ORDERS)
# All that is read, as a pattern: a problem or the beginning of one, or sizes in any order.
PATTERN = rf"^[\s,]*({_PREFIX.pattern}|{_SIZES})?[\s,]*$"


@dataclass(frozen=True, slots=True)
class ShapeFilter:
    """The problem ``text`` where ``whole``, else all whose text begins so and that have the ``sizes``: m within the
    range where the problem's m is one."""

    text: str = ""
    whole: bool = False
    sizes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> ShapeFilter:
        """The filter of ``1023x1021x1027:f16:nt``, ``1023x10``, or ``n=4096 k=11008``; empty takes all. Raises
        InvalidRequest."""
        words = text.replace(",", " ").split()
        if len(words) == 1 and _PREFIX.fullmatch(words[0]):
            with suppress(InvalidGemm):
                return cls(str(Gemm.parse(words[0])), whole=True) if ":" in words[0] else cls(words[0])
            return cls(words[0])
        sizes = [_SIZE.fullmatch(word) for word in words]
        read = {match[1]: int(match[2]) for match in sizes if match is not None}
        if len(read) != len(words):
            raise InvalidRequest(
                f"the shape is {text[:80]!r}; it is a problem such as 1023x1021x1027:f16:nt, the beginning of one, or "
                "sizes such as n=4096 k=11008, each once and below 10^18"
            )
        return cls(sizes=tuple(sorted(read.items())))

    def conditions(self) -> list[ColumnElement[bool]]:
        """What it asks of rows of kernel_figures."""
        figures = KernelFigureRow
        conditions: list[ColumnElement[bool]] = []
        if self.text:
            same = GemmRow.text == self.text if self.whole else GemmRow.text.startswith(self.text, autoescape=True)
            conditions.append(figures.gemm_id.in_(select(GemmRow.id).where(same)))
        for name, size in self.sizes:
            if name == "m":
                conditions += [figures.m_min <= size, figures.m_max >= size]
            else:
                conditions.append((figures.n if name == "n" else figures.k) == size)
        return conditions
