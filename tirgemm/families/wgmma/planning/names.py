"""Choices of the knobs that are words. See ``space.py`` for what each choice does."""

from __future__ import annotations

COOPERATIVE, PINGPONG = "cooperative", "pingpong"
TMA, STAGED, DIRECT = "tma", "staged", "direct"
# How the parts of a split are added: in the shared memory of a cluster, by a second kernel, or in the registers of the
# one block that computes them in turn.
CLUSTER, KERNEL, BLOCK = "cluster", "kernel", "block"
# Blocks of a cluster that every device schedules.
MAX_CLUSTER = 8
# How operands that TMA cannot read get to shared memory.
REPACK, COPY = "repack", "copy"
# Whether tiles that are neighbours along the tile's rows or its columns run together.
ORDERS = ("m", "n")
# What L2 is told of: nothing; that the streamed operand goes first; that the other stays last; both.
NORMAL, EVICT_FIRST, EVICT_LAST, EVICT_BOTH = "normal", "first", "last", "first_last"

# Every knob whose choices are words. Old records name others: see docs/decisions/knob-values.md.
WORDS = {
    "schedule": (COOPERATIVE, PINGPONG),
    "reduction": (CLUSTER, KERNEL, BLOCK),
    "load": (TMA, REPACK, COPY),
    "epilogue": (TMA, STAGED, DIRECT),
    "order": ORDERS,
    "eviction": (NORMAL, EVICT_FIRST, EVICT_LAST, EVICT_BOTH),
}


def unknown_word(knob: str, value: object) -> str | None:
    """Why a knob cannot have that value, or None."""
    known = WORDS[knob]
    return None if value in known else f"{knob}={value} is none of its choices, which are {', '.join(known)}"
