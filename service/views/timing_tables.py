"""Tables of a kernel's times for a terminal: by regime, and of a set by the m that its kernels serve."""

from __future__ import annotations

from collections.abc import Iterable

from tirgemm._terminal.tables import Table
from tirgemm.gemm import REGIMES
from tirgemm.timings import MemberTiming, Timings


def timing_table(timings: Timings, flops: int, *, title: str = "", indent: int = 0, samples: bool = False) -> Table:
    """A line a regime: the time of a call of ``flops``, how the baselines of the same run compare, and how many
    ``samples`` those were where that is asked for."""
    measured = {regime: timing for regime in REGIMES if (timing := timings.of(regime))}
    names = sorted({name for timing in measured.values() for name in timing.baselines})
    heads = ["regime", ">us a call", ">TFLOP/s", *(f">speed against {name}" for name in names)]
    table = Table(*heads, *([">samples"] if samples else []), title=title, indent=indent)
    for regime, timing in measured.items():
        us = timing.median_us
        cells = [regime, f"{us:.2f}", f"{flops / us / 1e6:.3g}"]
        cells += [f"{ratio:.3f}" if ratio else "-" for ratio in map(timing.ratio_to, names)]
        table.add_row(*cells, *(["" if timing.samples is None else str(timing.samples)] if samples else []))
    return table


def member_table(members: Iterable[MemberTiming], *, indent: int = 0) -> Table:
    """A line a kernel: its range of m, hash, config, and time at the range's high end."""
    table = Table("m", "kernel", "config", ">us at the largest m", indent=indent)
    for member in members:
        us = "-" if member.median_us is None else f"{member.median_us:.2f}"
        table.add_row(member.m, member.kernel_sha256[:16], member.config, us)
    return table
