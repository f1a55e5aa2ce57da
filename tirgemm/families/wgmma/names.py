"""The names of choices that a config's knobs take. See ``space.py`` for what each choice does."""

from __future__ import annotations

COOPERATIVE, PINGPONG, STREAM = "cooperative", "pingpong", "stream"
TMA, STAGED, DIRECT = "tma", "staged", "direct"
# How the parts of a split are added: in the shared memory of a cluster, by the block of the last part out of memory, or
# by a second kernel.
CLUSTER, MEMORY, KERNEL = "cluster", "memory", "kernel"
# Blocks of a cluster that every device schedules.
MAX_CLUSTER = 8
# How operands that TMA cannot read get to shared memory.
REPACK, COPY = "repack", "copy"
HILBERT = "hilbert"
# What L2 is told of: nothing; that the streamed operand goes first; that the other stays last; both.
NORMAL, EVICT_FIRST, EVICT_LAST, EVICT_BOTH = "normal", "first", "last", "first_last"
