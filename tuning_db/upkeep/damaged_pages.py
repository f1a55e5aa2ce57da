"""The rows of a SQLite file, read page by page: what is damaged is passed over, whatever is beneath it or beside it.

The format is described at https://sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

_Read = TypeVar("_Read")
TABLE, INDEX = (0x0D, 0x05), (0x0A, 0x02)
"""The types of pages of a tree: of its leaves, and of those that lead to them."""
HEADER = 100
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
# What is raised where bytes are not what they should be.
_DAMAGE = (ValueError, IndexError, struct.error)


@dataclass
class Walk:
    """What was met in a tree: its pages, whether all were there and all they hold could be read, and rows whose numbers
    are not those that should be on their pages."""

    intact: bool = True
    pages: set[int] = field(default_factory=set)
    astray: list[tuple[int, list[Any]]] = field(default_factory=list)


class DamagedPages:
    """The pages of a file that has no log, of this size, from 1 on."""

    def __init__(self, content: bytes | mmap.mmap, size: int) -> None:
        self._content = content
        self._size = size
        self._usable = size - content[20] if len(content) > HEADER and content[20] < size - 480 else size
        self.number = len(content) // size

    def rows(self, first: int, walk: Walk) -> Iterator[tuple[int, list[Any]]]:
        """The rows of the table with that first page, and their numbers; but for those that are astray."""
        for leaf, low, high in self._leaves(first, TABLE, walk):
            for row in self.rows_of(leaf, walk):
                if low < row[0] <= high:
                    yield row
                else:
                    walk.intact = False
                    walk.astray.append(row)

    def rows_of(self, leaf: int, walk: Walk) -> Iterator[tuple[int, list[Any]]]:
        """Those of one of its leaves."""

        def row(start: int, end: int) -> tuple[int, list[Any]]:
            length, at = _varint(self._content, start)
            number, at = self._number(at)
            return number, _values(self._payload(at, end, length, self._usable - 35))

        yield from self._each(leaf, TABLE, row, walk)

    def entries(self, first: int, walk: Walk) -> Iterator[list[Any]]:
        """The entries of the index with that first page, the number of the row last."""
        largest = (self._usable - 12) * 64 // 255 - 23

        def entry(start: int, end: int) -> list[Any]:
            length, at = _varint(self._content, start)
            return _values(self._payload(at, end, length, largest))

        def inner_entry(start: int, end: int) -> list[Any]:
            return entry(start + 4, end)

        for page, _, _ in self._leaves(first, INDEX, walk):
            is_inner = self._content[self._start(page)] == INDEX[1]
            yield from self._each(page, INDEX, inner_entry if is_inner else entry, walk)

    def free(self) -> set[int] | None:
        """The free pages; None where the list of them is damaged."""
        content, free = self._content, set[int]()
        try:
            trunk, number = struct.unpack_from(">II", content, 32)
            while trunk:
                if trunk in free or not 1 < trunk <= self.number:
                    return None
                start = (trunk - 1) * self._size
                following, count = struct.unpack_from(">II", content, start)
                free |= {trunk, *struct.unpack_from(f">{min(count, self._size // 4 - 2)}I", content, start + 8)}
                trunk = following
        except struct.error:
            return None
        return free if len(free) == number else None

    def is_of_table(self, page: int) -> bool:
        """Whether a page says of itself that it is one of a table."""
        return self._content[self._start(page)] in TABLE

    def leaves(self) -> Iterator[int]:
        """Every page that says of itself that it is a leaf of a table."""
        return (page for page in range(2, self.number + 1) if self._content[self._start(page)] == TABLE[0])

    def _start(self, page: int) -> int:
        return (page - 1) * self._size + (HEADER if page == 1 else 0)

    def _leaves(self, first: int, kinds: tuple[int, int], walk: Walk) -> Iterator[tuple[int, int, int]]:
        """The pages with what is in a tree, and for a table the numbers of the rows that are to be there: from behind
        one to another. Of an index that is all pages."""
        waiting = [(first, -(2**63) - 1, 2**63)]
        while waiting:
            page, low, high = waiting.pop()
            if not 1 <= page <= self.number or page in walk.pages or self._content[self._start(page)] not in kinds:
                walk.intact = False
                continue
            walk.pages.add(page)
            is_inner = self._content[self._start(page)] == kinds[1]
            if is_inner:
                children = []
                for child, key in self._each(page, kinds, self._child, walk):
                    children.append((child, low, key))
                    low = key
                waiting += [(self._long(self._start(page) + 8), low, high), *reversed(children)]
            if kinds == INDEX or not is_inner:
                yield page, low, high

    def _child(self, start: int, _end: int) -> tuple[int, int]:
        return self._long(start), self._number(start + 4)[0]

    def _each(
        self, page: int, kinds: tuple[int, int], read: Callable[[int, int], _Read], walk: Walk
    ) -> Iterator[_Read]:
        """What is read of each cell of a page, of its start and the end of the page."""
        begin, start, end = (page - 1) * self._size, self._start(page), page * self._size
        (cells,) = struct.unpack_from(">H", self._content, start + 3)
        pointers = start + (12 if self._content[start] == kinds[1] else 8)
        for at in range(pointers, pointers + 2 * cells, 2):
            try:
                if at + 2 > end:
                    raise ValueError
                cell = begin + struct.unpack_from(">H", self._content, at)[0]
                if not pointers + 2 * cells <= cell < end:
                    raise ValueError
                value = read(cell, end)
            except _DAMAGE:
                walk.intact = False
                if at + 2 > end:
                    return
            else:
                yield value

    def _long(self, at: int) -> int:
        return int.from_bytes(self._content[at : at + 4], "big")

    def _number(self, at: int) -> tuple[int, int]:
        number, at = _varint(self._content, at)
        return number - ((number >> 63) << 64), at

    def _payload(self, at: int, end: int, length: int, largest: int) -> bytes:
        """What a cell holds: on its page, and what is too long for that on others."""
        if not 0 < length <= len(self._content):
            raise ValueError
        local = length
        if length > largest:
            least = (self._usable - 12) * 32 // 255 - 23
            local = least + (length - least) % (self._usable - 4)
            local = local if local <= largest else least
        if at + local > end:
            raise ValueError
        parts, left = [self._content[at : at + local]], length - local
        page = self._long(at + local) if left else 0
        while left:
            if not 1 < page <= self.number:
                raise ValueError
            start = (page - 1) * self._size
            part = self._content[start + 4 : start + 4 + min(left, self._usable - 4)]
            parts.append(part)
            left -= len(part)
            page = self._long(start)
        return b"".join(parts)


def _values(record: bytes) -> list[Any]:
    """The columns of a record. ValueError or IndexError where it is none."""
    header, at = _varint(record, 0)
    body, values = header, list[Any]()
    while at < header:
        kind, at = _varint(record, at)
        if kind >= 12:
            length = (kind - 12) // 2
            part = record[body : body + length]
            values.append(part if kind % 2 == 0 else part.decode())
            if kind % 2 and 0 in part:
                raise ValueError  # no text of ours holds a zero byte: it is one whose end was not written
        elif kind in (0, 8, 9):
            length = 0
            values.append(None if kind == 0 else kind - 8)
        elif kind == 7:
            length = 8
            values.append(struct.unpack_from(">d", record, body)[0])
        else:
            if kind not in _INTEGERS:
                raise ValueError
            length = _INTEGERS[kind]
            values.append(int.from_bytes(record[body : body + length], "big", signed=True))
        body += length
    if (at, body) != (header, len(record)):
        raise ValueError
    return values


def _varint(content: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    value = 0
    for place in range(at, at + 8):
        byte = content[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    return value << 8 | content[at + 8], at + 9
