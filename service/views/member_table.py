"""Table of the kernels of a set by the m that they serve, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from tirgemm._terminal.tables import Table
from tirgemm.timings import MemberTiming


def member_table(members: Iterable[MemberTiming], *, indent: int = 0) -> Table:
    """A line a kernel: its range of m, hash, config, and time at the range's high end."""
    table = Table("m", "kernel", "config", ">us at the largest m", indent=indent)
    for member in members:
        us = "-" if member.median_us is None else f"{member.median_us:.2f}"
        table.add_row(member.m, member.kernel_sha256[:16], member.config, us)
    return table
