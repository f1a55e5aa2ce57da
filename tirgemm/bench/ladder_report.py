"""Ladder report of a problem: the rungs with their computed loads, beside what was measured.

Terminal, page, JSON and documentation show the same entries; every figure follows from the rows' samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tirgemm.bench.results import Row
from tirgemm.config import Config, Knob
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families import family_named
from tirgemm.families.simt import ladder
from tirgemm.families.simt.ladder import Rung
from tirgemm.families.simt.loads import Loads, loads_per_fma
from tirgemm.families.simt.space import ladder_space
from tirgemm.families.simt.tiling import tiling
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Candidate
from tirgemm.tuning.records.comparable_times import fastest as fastest_configs
from tirgemm.tuning.search.neighbourhood import fitted
from tirgemm.tuning.selection import ratio_low

# A rung is not slower than its parent where the lower 95 % bound of its ratio to it is at least this (definitions.md).
NOT_SLOWER = 0.98
# A search may have been over several families: of its best so many are looked at for one of simt.
_LOOKED_AT = 50


@dataclass(frozen=True, slots=True)
class LadderStep:
    """A rung on a problem: its config and what that loads, or the sentence why the problem does not take it."""

    rung: Rung
    config: Config | None
    loads: Loads | None
    knobs: dict[str, tuple[Any, Any]]
    refused: str = ""

    @property
    def name(self) -> str:
        return self.rung.name


@dataclass(frozen=True, slots=True)
class RungFigures:
    """A step with its row's figures.

    ``shares``: by baseline, its median time over ours. ``gain``: the parent's median time over ours, ``gain_low`` its
    lower 95 % bound. ``code`` says what the machine code has in common with the parent's. None is not measured.
    """

    step: LadderStep
    status: str = ""
    message: str = ""
    us: float | None = None
    tflops: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    gain: float | None = None
    gain_low: float | None = None
    code: str | None = None
    conditions: dict[str, Any] = field(default_factory=dict)

    @property
    def not_slower(self) -> bool | None:
        """Whether the rung is not slower than its parent; None where that was not measured."""
        return None if self.gain_low is None else self.gain_low >= NOT_SLOWER

    def to_json(self) -> dict[str, Any]:
        step, loads = self.step, self.step.loads
        return {
            "name": step.name,
            "parent": step.rung.parent,
            "changed": step.rung.changed,
            "knobs": {knob: list(values) for knob, values in step.knobs.items()},
            "config": step.config.to_json() if step.config else None,
            "loads_per_fma": None
            if loads is None
            else {
                name: getattr(loads, name)
                for name in ("global_elements", "global_instructions", "shared_elements", "shared_instructions")
            },
            "status": self.status or ("refused" if step.refused else "described"),
            "message": self.message or step.refused,
            "median_us": self.us,
            "tflops": self.tflops,
            "shares": self.shares,
            "ratio_to_parent": self.gain,
            "ratio_to_parent_low": self.gain_low,
            "not_slower": self.not_slower,
            "machine_code_beside_parent": self.code,
            "conditions": self.conditions,
        }


def steps(gemm: Gemm, device: Device, regime: Regime = "sustained") -> tuple[LadderStep, ...]:
    """Every rung on a problem, in the ladder's order."""
    steps: list[LadderStep] = []
    for rung in ladder.RUNGS:
        try:
            config = ladder.config(rung.name, gemm, device, regime)
        except InvalidRequest as error:
            steps.append(LadderStep(rung, None, None, {}, str(error)))
            continue
        try:
            knobs = ladder.changes(rung.name, gemm, device, regime)
        except InvalidRequest:  # the parent's config does not suit the problem
            knobs = {}
        steps.append(LadderStep(rung, config, loads_per_fma(tiling(gemm, config)), knobs))
    return tuple(steps)


def tuned(gemm: Gemm, device: Device, regime: Regime, candidates: Sequence[Candidate]) -> LadderStep:
    """The rung of the fastest recorded config, refused where there is none or none but the default."""
    default = ladder.config(ladder.DEFAULT, gemm, device, regime)
    recorded = [candidate for candidate in candidates if candidate.config.family == ladder.FAMILY]
    valid = fitted(fastest_configs(recorded, _LOOKED_AT), [family_named(ladder.FAMILY)], gemm, device)
    if not valid:
        return LadderStep(
            ladder.TUNED, None, None, {}, f"no config of {ladder.FAMILY} is recorded for {gemm}, {regime}"
        )
    if valid[0] == default:
        return LadderStep(ladder.TUNED, None, None, {}, "nothing faster than the default is recorded")
    knobs = {knob: (default[knob], value) for knob, value in valid[0].knobs if default[knob] != value}
    return LadderStep(ladder.TUNED, valid[0], loads_per_fma(tiling(gemm, valid[0])), knobs)


def knobs_of(gemm: Gemm) -> tuple[Knob, ...]:
    """The knobs of the rungs of a problem's ladder, with what each sets."""
    return ladder_space(gemm).knobs


def described(gemm: Gemm, device: Device, regime: Regime = "sustained") -> list[RungFigures]:
    """The ladder without figures."""
    return [RungFigures(step) for step in steps(gemm, device, regime)]


def reported(rows: Iterable[Row], gemm: Gemm) -> list[RungFigures]:
    """The ladder of a problem as its rows in a results file have it: loads by the configs that were measured."""
    by_name = {row["variant"]: row for row in rows if row["gemm"] == str(gemm)}
    return [_entry(rung, by_name, gemm) for rung in (*ladder.RUNGS, ladder.TUNED) if rung.name in by_name]


def fastest(entries: Sequence[RungFigures]) -> RungFigures | None:
    """The entry with the least time."""
    measured = [entry for entry in entries if entry.us is not None]
    return min(measured, key=lambda entry: entry.us or 0.0) if measured else None


def _entry(rung: Rung, by_name: dict[str, Row], gemm: Gemm) -> RungFigures:
    row = by_name[rung.name]
    config = Config.from_json(row["config"]) if row["config"] else None
    loads = loads_per_fma(tiling(gemm, config)) if config else None
    step = LadderStep(rung, config, loads, _changes(rung, by_name), row["message"])
    if row["status"] != "measured":
        return RungFigures(step, row["status"], row["message"])
    parent = row["baselines"].get(rung.parent) if rung.parent else None
    return RungFigures(
        step,
        "measured",
        "",
        row["median_us"],
        row["tflops"],
        {name: beside["ratio"] for name, beside in row["baselines"].items() if name != rung.parent},
        parent["ratio"] if parent else None,
        ratio_low(parent["samples_us"], row["samples_us"]) if parent else None,
        row["conditions"].get("code_beside_parent"),
        row["conditions"],
    )


def _changes(rung: Rung, by_name: dict[str, Row]) -> dict[str, tuple[Any, Any]]:
    """Knob -> (parent's value, the rung's), for those that differ, by the rows' configs."""
    parent = by_name.get(rung.parent or "", {}).get("config")
    ours = by_name[rung.name]["config"]
    if not parent or not ours:
        return {}
    before = parent["knobs"]
    return {knob: (before.get(knob), value) for knob, value in ours["knobs"].items() if before.get(knob) != value}
