"""Memory of emulated kernels: aligned as the problem promises, and what lies beyond an input's end is never read."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from verification.emulator.memory import FencedMemory, GuardedMemory

_SIZES = [(100, 16), (64, 16), (7, 2), (4096, 64), (12290, 4), (33, 1024)]
_READ = """
import ctypes, sys
from verification.emulator.memory import FencedMemory
memory = FencedMemory(100, 16)
ctypes.string_at(memory.address, 100 + int(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", [GuardedMemory, FencedMemory])
@pytest.mark.parametrize(("nbytes", "align"), _SIZES)
def test_memory_is_aligned_to_what_was_asked_for_and_no_more(
    kind: type[GuardedMemory], nbytes: int, align: int
) -> None:
    memory = kind(nbytes, align)
    assert memory.address % (2 * align) == align
    memory.data[:] = 1
    memory.check_guards("a")
    memory.raw[memory.offset - 1] = 1
    with pytest.raises(AssertionError, match="a: written before its beginning"):
        memory.check_guards("a")


@pytest.mark.parametrize(("further", "ends_by"), [(0, 0), (32, -signal.SIGSEGV)])
def test_who_reads_beyond_the_end_of_an_input_is_ended(further: int, ends_by: int) -> None:
    assert subprocess.run([sys.executable, "-c", _READ, str(further)], check=False).returncode == ends_by
