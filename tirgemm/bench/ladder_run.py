"""Ladder measurement: every rung of a problem beside the baselines in interleaved races, each verified first.

All contenders share their operands, which rotate over at least four times the L2, so that no rung owes anything to
where its buffers lie. A rung whose launches would take too long is left out, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tirgemm.bench import results
from tirgemm.bench.contest import Contest, Entrant, failed_row
from tirgemm.bench.ladder_report import LadderStep, steps, tuned
from tirgemm.bench.machine_code import Code, machine_code
from tirgemm.bench.results import Row
from tirgemm.errors import (
    DoesNotFit,
    InvalidRequest,
    MissingExtra,
    TirgemmError,
    Unsupported,
)
from tirgemm.families import family_named
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.comparable_times import known_candidates
from tirgemm.tuning.measure.race import RaceResult
from tirgemm.tuning.records import SampleSet

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary
    from tirgemm.tuning.measure import Measurer
    from tirgemm.tuning.workbench import Workbench

BASELINES = ("torch.matmul", "cublaslt_best")
# How often a problem's rungs are raced: what is published shows how far its races lie apart.
RACES = 2
# Launches of a kernel that takes long: two to verify, and a race two to see how long it takes, three samples, one for
# good measure.
SLOW_LAUNCHES = 2 + 6 * RACES
_CONDITIONS = ("at", "shared", "operand_sets", "temperature_c", "absent")

OnStage = Callable[[str], None]


class LadderRun:
    """Measures ladders on one workbench.

    ``baselines`` None is cuBLAS through PyTorch and cuBLASLt, where they are here. ``seconds`` is about how long the
    interleaved run of a problem takes, unless slow rungs need longer; ``limit_s`` what a rung's launches may take in
    all. With ``recorded`` the fastest config of the store is one more rung.
    """

    def __init__(
        self,
        workbench: Workbench,
        *,
        baselines: Iterable[str] | None = None,
        seconds: float = 1.0,
        limit_s: float = 180.0,
        seed: int = 0,
        recorded: bool = False,
    ) -> None:
        for name, value in (("measuring a problem", seconds), ("a rung's launches", limit_s)):
            if not 0 < value < math.inf:
                raise InvalidRequest(f"seconds for {name} are {value:g}; they must be above 0 and finite")
        self.recorded = recorded
        self.workbench, self.seconds, self.limit_s, self.seed = workbench, seconds, limit_s, seed
        if workbench.measurer is None:
            raise InvalidRequest(workbench.device.only_named)
        self.measurer: Measurer = workbench.measurer
        offered = self.measurer.baselines()
        self.baselines = tuple(name for name in BASELINES if name in offered) if baselines is None else tuple(baselines)
        unknown = [name for name in self.baselines if name not in offered]
        if unknown:
            raise InvalidRequest(
                f"baseline {unknown[0]!r} cannot be measured on {workbench.device.name} here;"
                f" baselines are {', '.join(offered) or 'none'}"
            )

    def measure(
        self, gemm: Gemm, regime: Regime, known: Sequence[Row], on_stage: OnStage = lambda _: None
    ) -> list[Row]:
        """A row for each rung, in the ladder's order; ``known`` rows of other problems say what a launch may take.

        Raises Unsupported where simt does not write the problem.
        """
        refused = family_named("simt").supports(gemm, self.workbench.device)
        if refused:
            raise Unsupported(refused)
        ladder = steps(gemm, self.workbench.device, regime)
        if self.recorded:
            known_configs = known_candidates(self.workbench.store, gemm, self.workbench.device, regime)
            ladder = (*ladder, tuned(gemm, self.workbench.device, regime, known_configs))
        builds = {s.name: self.workbench.build(gemm, s.config) for s in ladder if s.config is not None}
        rows: dict[str, Row] = {}
        binaries: dict[str, Binary] = {}
        entrants: dict[str, Entrant] = {}
        errors: dict[str, float] = {}
        contest = Contest(self.measurer, self.baselines, self.seconds, self.seed)
        for step in ladder:
            on_stage(f"{gemm}: building and verifying {step.name}")
            try:
                if step.config is None:
                    raise Unsupported(step.refused)
                self._require_quick(step, gemm, regime, known)
                binary = builds[step.name].result()
                entrant = Entrant(step.config, self.workbench.package(gemm, step.config, binary))
                errors[step.name] = contest.verify(entrant)
                binaries[step.name], entrants[step.name] = binary, entrant
            except TirgemmError as error:
                if error.outcome is None and not isinstance(error, (Unsupported, DoesNotFit)):
                    raise
                rows[step.name] = failed_row(gemm, step.config, step.name, error)
        on_stage(f"{gemm}: measuring {len(entrants)} rungs beside {', '.join(self.baselines) or 'nothing'}")
        try:
            race_results = contest.on_same_operands(entrants, regime, RACES)
        except DoesNotFit as error:
            race_results = [RaceResult({}, dict.fromkeys(entrants, error))]
        failed = {name: error for result in race_results for name, error in result.failed.items()}
        rows |= {name: failed_row(gemm, entrants[name].config, name, error) for name, error in failed.items()}
        codes = {name: _code(binary) for name, binary in binaries.items()}
        races = [result.samples for result in race_results]
        for step in ladder:
            if step.name in entrants and step.name not in failed:
                rows[step.name] = self._row(gemm, step, entrants, races, binaries, codes, errors[step.name])
        return [rows[step.name] for step in ladder]

    def _require_quick(self, step: LadderStep, gemm: Gemm, regime: Regime, known: Sequence[Row]) -> None:
        """Raise Unsupported where the rung's launches would take longer than it may."""
        launch_s, source = self._launch_seconds(step, gemm, regime, known)
        if SLOW_LAUNCHES * launch_s > self.limit_s:
            raise Unsupported(
                f"a launch takes about {launch_s:.3g} s by {source}: {SLOW_LAUNCHES} of them are more than the"
                f" {self.limit_s:g} s that a rung may take"
            )

    def _launch_seconds(self, step: LadderStep, gemm: Gemm, regime: Regime, known: Sequence[Row]) -> tuple[float, str]:
        """A launch by the same rung's time at the largest problem measured before, else by the family's estimate."""
        same = [
            row
            for row in known
            if row["variant"] == step.name
            and row["status"] == "measured"
            and Gemm.parse(row["gemm"]).dtype == gemm.dtype
        ]
        if same:
            largest = max(same, key=lambda row: Gemm.parse(row["gemm"]).flops)
            scale = gemm.flops / Gemm.parse(largest["gemm"]).flops
            return largest["median_us"] * scale / 1e6, f"its time at {largest['gemm']}"
        assert step.config is not None
        us = family_named("simt").predict_us(gemm, step.config, self.workbench.device, regime)
        return us / 1e6, "the family's estimate"

    def _row(
        self,
        gemm: Gemm,
        step: LadderStep,
        entrants: dict[str, Entrant],
        races: Sequence[dict[str, SampleSet]],
        binaries: dict[str, Binary],
        codes: dict[str, Code | None],
        error: float,
    ) -> Row:
        """The rung's row; its parent stands among its baselines, by the parent's name."""
        entrant, binary, parent = entrants[step.name], binaries[step.name], step.rung.parent
        taken = [with_parent(samples, step.name, parent) for samples in races]
        ours = taken[0]
        conditions: dict[str, Any] = {name: ours.conditions[name] for name in _CONDITIONS if name in ours.conditions}
        conditions |= {name: binary.resources[name] for name in ("registers", "spill_bytes", "shared_bytes")}
        code, before = codes[step.name], codes.get(parent) if parent else None
        if code is not None:
            conditions |= {
                "fma_share": code.fma_share,
                "lds_per_fma": code.loads_per_fma("LDS"),
                "ldg_per_fma": code.loads_per_fma("LDG"),
            }
            conditions |= {"code_beside_parent": code.beside(before)} if before is not None else {}
        return results.measured_row(
            gemm,
            entrant.config,
            step.name,
            taken,
            results.MeasuredKernel(
                error, binary.launch.workspace_bytes(gemm.m_max), entrant.sha256, binary.source_sha256
            ),
            conditions,
        )


def with_parent(samples: Mapping[str, SampleSet], name: str, parent: str | None) -> SampleSet:
    """A step's samples; its parent's, where it was in the race, stand among the baselines by the parent's name."""
    ours = samples[name]
    beside = {parent: samples[parent].samples_us} if parent in samples and parent is not None else {}
    return SampleSet(ours.samples_us, ours.reason, ours.baselines | beside, ours.conditions)


def _code(binary: Binary) -> Code | None:
    """None where it is not machine code of a GPU, or where nvdisasm is not installed."""
    if binary.format != "cubin":
        return None
    try:
        return machine_code(binary.data)
    except MissingExtra:
        return None
