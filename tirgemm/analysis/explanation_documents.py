"""JSON documents of an explanation's parts, each with what is derived from its figures."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tirgemm.analysis.latency import Latency
from tirgemm.analysis.resources import Occupancy, Waves
from tirgemm.analysis.roofline import Roofline
from tirgemm.analysis.sass.opcode_mix import OpcodeMix


def occupancy_document(occupancy: Occupancy) -> dict[str, Any]:
    derived = {name: getattr(occupancy, name) for name in ("blocks", "warps", "share")}
    return asdict(occupancy) | derived | {"limits": dict(occupancy.limits), "bound_by": list(occupancy.bound_by)}


def waves_document(waves: Waves) -> dict[str, Any]:
    return asdict(waves) | {name: getattr(waves, name) for name in ("waves", "turns", "tail", "loss")}


def opcodes_document(mix: OpcodeMix) -> dict[str, Any]:
    counts = ("units", "loop_units", "loop_opcodes", "executed_units", "executed_opcodes", "turns")
    return asdict(mix) | {name: dict(getattr(mix, name)) for name in counts} | {"once": list(mix.once)}


def roofline_document(roofline: Roofline, formula: str, clock_mhz: int | None) -> dict[str, Any]:
    ceilings = [asdict(c) | {"us": c.us, "share": roofline.shares.get(c.name)} for c in roofline.ceilings]
    derived = {name: getattr(roofline, name) for name in ("intensity", "ridge", "tflops", "share")}
    head = {"flops": roofline.flops, "peak": roofline.peak, "peak_formula": formula, "clock_mhz": clock_mhz}
    return head | {"time_us": roofline.time_us, "bound": roofline.bound.name, "ceilings": ceilings} | derived


def latency_document(latency: Latency) -> dict[str, Any]:
    derived = {name: getattr(latency, name) for name in ("step_us", "waiting_us", "us")}
    return asdict(latency.waits) | {"turns": latency.turns} | derived
