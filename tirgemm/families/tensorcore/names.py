"""Choices of the tensor-core families' knobs that are words. See a family's ``space.py`` for what each does."""

from __future__ import annotations

# How rows of a tile lie in shared memory.
NONE, PADDED, PERMUTED = "none", "padded", "permuted"
# How a warp's copies lie over global memory: whole 128-byte lines, or halves of them.
LINE, HALF = "line", "half"
# How operands reach shared memory: as they lie, or after a pass that aligns their rows.
COPY, REPACK = "copy", "repack"
# How D leaves: from the registers, or through shared memory by rows.
DIRECT, STAGED = "direct", "staged"
