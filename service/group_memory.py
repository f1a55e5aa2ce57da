"""``GroupMemory``: what the server processes of one service share, so that together they keep the promises of one."""

from __future__ import annotations

import mmap
import struct
import threading

from tirgemm.service.access.rate_limit import SharedBuckets

_COUNTER = struct.Struct("=Q")
# Each process counts in places of its own, which nobody else writes: its changes, the refreshes it asked for, its signs
# of life.
_COUNTERS = 3


class GroupMemory:
    """Counters, and the token buckets of the API keys. ``file``, of at least ``size(processes)`` bytes, is
    what the ``processes`` have in common; a process by itself needs none. ``number``: of this one, from 0."""

    def __init__(self, processes: int = 1, number: int = 0, file: int = -1) -> None:
        self.processes = processes
        self._memory = mmap.mmap(file, self.size(processes))
        self._number = number
        self._counting = threading.Lock()
        self._counted = processes * _COUNTER.size
        self.buckets = SharedBuckets(self._memory, _COUNTERS * self._counted)

    @staticmethod
    def size(processes: int) -> int:
        """Bytes of the memory of so many processes."""
        return _COUNTERS * processes * _COUNTER.size + SharedBuckets.BYTES

    @property
    def changes(self) -> bytes:
        """What differs after each change of kernels that a process of the group has made and others can see."""
        return self._memory[: self._counted]

    @property
    def refreshes(self) -> bytes:
        """What differs after each time that a process asked for a new snapshot of the database."""
        return self._memory[self._counted : 2 * self._counted]

    @property
    def all_started(self) -> bool:
        """Whether each process has begun to answer requests, at least once."""
        return all(map(self.signs_of_life, range(self.processes)))

    def signs_of_life(self, number: int) -> int:
        """How many the process of that number has given."""
        (count,) = _COUNTER.unpack_from(self._memory, 2 * self._counted + number * _COUNTER.size)
        return int(count)

    def note_change(self) -> None:
        """Say that kernels have changed; from any thread."""
        self._count(self._number)

    def ask_for_refresh(self) -> None:
        """Have all processes read the database again before they answer from memory."""
        self._count(self.processes + self._number)

    def give_sign_of_life(self) -> None:
        """Say that this process answers requests."""
        self._count(2 * self.processes + self._number)

    def _count(self, place: int) -> None:
        with self._counting:
            (number,) = _COUNTER.unpack_from(self._memory, place * _COUNTER.size)
            _COUNTER.pack_into(self._memory, place * _COUNTER.size, number + 1)
