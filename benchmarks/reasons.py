"""Why a kernel may be behind a baseline: statements that are computed from its row and its file, and from nothing else."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from tirgemm.gemm import Gemm

# A time within this factor of the fastest kernel of all, or of the time of moving its bytes, is close to that floor.
NEAR_LAUNCH, NEAR_BYTES = 2.0, 1.4
FULL_WAVE = 0.9
MOST = 3


@dataclass(frozen=True)
class Floors:
    """Of one device and regime: the fastest kernel of all suites in microseconds, and how many SMs there are."""

    launch_us: float
    units: int


def reasons(row: dict[str, Any], floors: Floors) -> str:
    """What the data says about a measured row, most telling first."""
    found = [
        sentence
        for sentence in (_launch(row, floors), _alignment(row), _waves(row, floors), _bytes(row), _power(row))
        if sentence
    ]
    return "; ".join(found[:MOST]) or "nothing in the data sets it apart"


def spread(row: dict[str, Any]) -> float:
    """The interquartile range of a row's samples over their median."""
    samples = row["samples_us"]
    if len(samples) < 2:
        return 0.0
    low, median, high = statistics.quantiles(samples, n=4)
    return float((high - low) / median)


def _launch(row: dict[str, Any], floors: Floors) -> str | None:
    if row["median_us"] > NEAR_LAUNCH * floors.launch_us:
        return None
    return f"launch-bound: {row['median_us']:.2f} us, the fastest shape of all takes {floors.launch_us:.2f} us"


def _alignment(row: dict[str, Any]) -> str | None:
    load = row["config"]["knobs"].get("load", "tma")
    return None if load == "tma" else f"rows that TMA cannot load: load={load}"


def _waves(row: dict[str, Any], floors: Floors) -> str | None:
    """How the tiles fill the SMs; None where they do, or where the work is dealt out evenly."""
    knobs, gemm = row["config"]["knobs"], Gemm.parse(row["gemm"])
    if "tile_m" not in knobs or "tile_n" not in knobs or knobs.get("schedule") == "stream":
        return None
    high, wide = (gemm.n, gemm.m_max) if knobs.get("swap") else (gemm.m_max, gemm.n)
    split = int(knobs.get("split", 1))
    tiles = math.ceil(high / knobs["tile_m"]) * math.ceil(wide / knobs["tile_n"]) * gemm.batch * split
    parts = f" in {split} parts of k" if split > 1 else ""
    slots = floors.units * int(knobs.get("resident", 1))
    if tiles < FULL_WAVE * slots:
        return f"one wave of {tiles} tiles{parts} on {floors.units} SMs"
    waves = math.ceil(tiles / slots)
    if waves > 1 and tiles < FULL_WAVE * waves * slots:
        return f"{tiles} tiles{parts} in {waves} waves, {tiles / (waves * slots):.0%} full"
    return None


def _bytes(row: dict[str, Any]) -> str | None:
    read = row["conditions"].get("read_gbps")
    if not read:
        return None
    floor = Gemm.parse(row["gemm"]).nbytes / read / 1e3
    if row["median_us"] > NEAR_BYTES * floor:
        return None
    return f"bound by memory: its bytes take {floor:.2f} us at {read:.0f} GB/s"


def _power(row: dict[str, Any]) -> str | None:
    if "power_cap" not in (row["throttled"] or []):
        return None
    clock = f" at {row['clock_mhz']} MHz" if row["clock_mhz"] else ""
    return f"power-capped{clock}"
