"""Races of kernels that differ in one thing each: every step built, verified, and timed beside its parent.

All contenders share their operands, which rotate over at least four times the L2, so that no step owes anything to
where its buffers lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tirgemm.bench import results
from tirgemm.bench.contest import Contest, Entrant, failed_row
from tirgemm.bench.results import Row
from tirgemm.config import Config
from tirgemm.errors import DoesNotFit, InvalidConfig, TirgemmError, Unsupported
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.measure.race import RaceResult
from tirgemm.tuning.records import SampleSet

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary
    from tirgemm.tuning.workbench import Workbench

# How often the steps of a problem are raced: what is published shows how far its races lie apart.
RACES = 2
_CONDITIONS = ("at", "shared", "operand_sets", "temperature_c", "absent")


@dataclass(frozen=True, slots=True)
class RacedStep:
    """A kernel that differs in one thing from that of ``parent``; without a config it is ``refused``, in a sentence."""

    name: str
    parent: str | None
    config: Config | None
    refused: str = ""


def race_steps(
    workbench: Workbench,
    contest: Contest,
    gemm: Gemm,
    regime: Regime,
    steps: Sequence[RacedStep],
    *,
    require: Callable[[RacedStep], None] = lambda _: None,
    about: Callable[[RacedStep, Mapping[str, Binary]], dict[str, Any]] = lambda _step, _binaries: {},
    on_stage: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """A row for each step of a problem, in order; of one that failed with the reason.

    ``require`` raises Unsupported for a step that is left out. ``about`` says what else a row tells of a step's binary,
    by the binaries of all that take part. ``on_stage`` is told what happens.
    """
    builds = {step.name: workbench.build(gemm, step.config) for step in steps if step.config is not None}
    rows: dict[str, Row] = {}
    binaries: dict[str, Binary] = {}
    entrants: dict[str, Entrant] = {}
    errors: dict[str, float] = {}
    for step in steps:
        on_stage(f"{gemm}: building and verifying {step.name}")
        try:
            if step.config is None:
                raise Unsupported(step.refused)
            require(step)
            binary = builds[step.name].result()
            entrant = Entrant(step.config, workbench.package(gemm, step.config, binary))
            errors[step.name] = contest.verify(entrant)
            binaries[step.name], entrants[step.name] = binary, entrant
        except TirgemmError as error:
            if error.outcome is None and not isinstance(error, (Unsupported, DoesNotFit, InvalidConfig)):
                raise
            rows[step.name] = failed_row(gemm, step.config, step.name, error)
    beside = ", ".join(contest.baselines) or "nothing"
    on_stage(f"{gemm}: measuring {len(entrants)} kernels beside {beside}")
    try:
        races = contest.on_same_operands(entrants, regime, RACES)
    except DoesNotFit as error:
        races = [RaceResult({}, dict.fromkeys(entrants, error))]
    failed = {name: error for result in races for name, error in result.failed.items()}
    rows |= {name: failed_row(gemm, entrants[name].config, name, error) for name, error in failed.items()}
    for step in steps:
        if step.name in entrants and step.name not in failed:
            taken = [_with_parent(result.samples, step) for result in races]
            binary, entrant = binaries[step.name], entrants[step.name]
            workspace = binary.launch.workspace_bytes(gemm.m_max)
            kernel = results.MeasuredKernel(errors[step.name], workspace, entrant.sha256, binary.source_sha256)
            conditions = {name: value for name, value in taken[0].conditions.items() if name in _CONDITIONS}
            conditions |= {name: binary.resources[name] for name in ("registers", "spill_bytes", "shared_bytes")}
            conditions |= about(step, binaries)
            rows[step.name] = results.measured_row(gemm, entrant.config, step.name, taken, kernel, conditions)
    return [rows[step.name] for step in steps]


def _with_parent(samples: Mapping[str, SampleSet], step: RacedStep) -> SampleSet:
    """A step's samples; its parent's, where it was in the race, stand among the baselines by the parent's name."""
    ours = samples[step.name]
    parent = samples.get(step.parent) if step.parent is not None else None
    return ours if parent is None or step.parent is None else ours.beside(step.parent, parent.samples_us)
