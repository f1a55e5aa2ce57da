"""Measuring the ladder: every rung of a problem beside the baselines in one interleaved run, each verified first.

All contenders share their operands, which rotate over at least four times the L2, so that no rung owes anything to where
its buffers lie. A rung whose launches would take too long is left out, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from service import results
from service.contest import Contest, Entrant
from service.ladder_report import Step, steps, tuned
from service.machine_code import Code, machine_code
from service.results import Row
from tirgemm.errors import (
    BuildFailed,
    DoesNotFit,
    InvalidRequest,
    MeasurementFailed,
    MissingExtra,
    TirgemmError,
    Unsupported,
    VerificationFailed,
)
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.tuning.measure import MeasurementTimedOut
from tirgemm.tuning.records import SampleSet

if TYPE_CHECKING:
    from tirgemm.tuning.compile import Binary
    from tirgemm.tuning.measure import Measurer
    from tirgemm.tuning.measured_configs import MeasuredConfigs
    from tirgemm.tuning.workbench import Workbench

BASELINES = ("torch.matmul", "cublaslt_best")
MIN_SAMPLES = 24
# Launches of a kernel that takes long: two to verify, two to see how long it takes, three samples, one for good measure.
SLOW_LAUNCHES = 8
_CONDITIONS = ("at", "shared", "operand_sets", "temperature_c", "absent")

OnStage = Callable[[str], None]


class LadderRun:
    """Measures ladders on one workbench.

    ``baselines`` None is cuBLAS through PyTorch and cuBLASLt, where they are here. ``seconds`` is about how long the
    interleaved run of a problem takes, unless slow rungs need longer; ``limit_s`` what a rung's launches may take in all.
    With a search's ``configs`` its fastest is one more rung.
    """

    def __init__(
        self, workbench: Workbench, *, baselines: Iterable[str] | None = None, seconds: float = 1.0, limit_s: float = 180.0,
        seed: int = 0, configs: MeasuredConfigs | None = None,
    ) -> None:  # fmt: skip
        for name, value in (("measuring a problem", seconds), ("a rung's launches", limit_s)):
            if not 0 < value < math.inf:
                raise InvalidRequest(f"seconds for {name} are {value:g}; they must be above 0 and finite")
        self.configs = configs
        self.workbench, self.seconds, self.limit_s, self.seed = workbench, seconds, limit_s, seed
        if workbench.measurer is None:
            raise InvalidRequest(f"device {workbench.device.name} is only named; nothing can be measured on it")
        self.measurer: Measurer = workbench.measurer
        offered = self.measurer.baselines()
        self.baselines = tuple(name for name in BASELINES if name in offered) if baselines is None else tuple(baselines)
        unknown = [name for name in self.baselines if name not in offered]
        if unknown:
            raise InvalidRequest(
                f"baseline {unknown[0]!r} cannot be measured on {workbench.device.name} here;"
                f" baselines are {', '.join(offered) or 'none'}"
            )

    def measure(self, gemm: Gemm, regime: str, known: Sequence[Row], on_stage: OnStage = lambda _: None) -> list[Row]:
        """A row for each rung, in the ladder's order; ``known`` rows of other problems say what a launch may take.

        Raises Unsupported where simt does not write the problem.
        """
        refused = family_named("simt").supports(gemm, self.workbench.device)
        if refused:
            raise Unsupported(refused)
        ladder = steps(gemm, self.workbench.device, regime)
        if self.configs is not None:
            ladder = (*ladder, tuned(gemm, self.workbench.device, regime, self.configs))
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
            except (Unsupported, DoesNotFit, BuildFailed, VerificationFailed, MeasurementFailed) as error:
                rows[step.name] = results.unmeasured_row(gemm, step.config, step.name, _status(error), str(error))
        on_stage(f"{gemm}: measuring {len(entrants)} rungs beside {', '.join(self.baselines) or 'nothing'}")
        try:
            samples = self._together(entrants, regime)
        except (MeasurementFailed, DoesNotFit) as error:
            samples = {}
            for name, entrant in entrants.items():
                rows[name] = results.unmeasured_row(gemm, entrant.config, name, _status(error), str(error))
        codes = {name: _code(binary) for name, binary in binaries.items()}
        for step in ladder:
            if step.name in samples:
                rows[step.name] = self._row(gemm, step, entrants, samples, binaries, codes, errors[step.name])
        return [rows[step.name] for step in ladder]

    def _require_quick(self, step: Step, gemm: Gemm, regime: str, known: Sequence[Row]) -> None:
        """Raise Unsupported where the rung's launches would take longer than it may."""
        launch_s, source = self._launch_seconds(step, gemm, regime, known)
        if SLOW_LAUNCHES * launch_s > self.limit_s:
            raise Unsupported(
                f"a launch takes about {launch_s:.3g} s by {source}: {SLOW_LAUNCHES} of them are more than the"
                f" {self.limit_s:g} s that a rung may take"
            )

    def _launch_seconds(self, step: Step, gemm: Gemm, regime: str, known: Sequence[Row]) -> tuple[float, str]:
        """A launch by the same rung's time at the largest problem measured before, else by the family's estimate."""
        same = [
            row for row in known
            if row["variant"] == step.name and row["status"] == "measured" and Gemm.parse(row["gemm"]).dtype == gemm.dtype
        ]  # fmt: skip
        if same:
            largest = max(same, key=lambda row: Gemm.parse(row["gemm"]).flops)
            scale = gemm.flops / Gemm.parse(largest["gemm"]).flops
            return largest["median_us"] * scale / 1e6, f"its time at {largest['gemm']}"
        assert step.config is not None
        us = family_named("simt").predict_us(gemm, step.config, self.workbench.device, regime)
        return us / 1e6, "the family's estimate"

    def _together(self, entrants: dict[str, Entrant], regime: str) -> dict[str, SampleSet]:
        """Samples by rung; beside each stand the baselines'. Raises MeasurementFailed, DoesNotFit."""
        if not entrants:
            return {}
        (first, entrant), *rest = entrants.items()
        run = self.measurer.time(
            entrant.package, regime, against={name: other.package for name, other in rest}, baselines=self.baselines,
            min_samples=MIN_SAMPLES, budget_s=self.seconds, seed=self.seed, shared=True,
        )  # fmt: skip
        beside = {name: run.baselines[name] for name in self.baselines if name in run.baselines}
        found = {first: run.samples_us} | {name: run.baselines[name] for name, _ in rest}
        return {name: SampleSet(taken, run.reason, beside, run.conditions) for name, taken in found.items()}

    def _row(
        self, gemm: Gemm, step: Step, entrants: dict[str, Entrant], samples: dict[str, SampleSet],
        binaries: dict[str, Binary], codes: dict[str, Code | None], error: float,
    ) -> Row:  # fmt: skip
        """The rung's row; its parent stands among its baselines, by the parent's name."""
        ours, entrant, binary = samples[step.name], entrants[step.name], binaries[step.name]
        parent = step.rung.parent
        beside = dict(ours.baselines)
        if parent in samples:
            beside[parent] = samples[parent].samples_us
        conditions: dict[str, Any] = {name: ours.conditions[name] for name in _CONDITIONS if name in ours.conditions}
        conditions |= {name: binary.resources[name] for name in ("registers", "spill_bytes", "shared_bytes")}
        code, before = codes[step.name], codes.get(parent) if parent else None
        if code is not None:
            conditions |= {"fma_share": code.fma_share, "lds_per_fma": code.loads_per_fma("LDS"),
                           "ldg_per_fma": code.loads_per_fma("LDG")}  # fmt: skip
            conditions |= {"code_beside_parent": code.beside(before)} if before is not None else {}
        return results.measured_row(
            gemm, entrant.config, step.name, SampleSet(ours.samples_us, ours.reason, beside, ours.conditions),
            error=error, artifact_sha256=entrant.sha256,
            workspace_bytes=binary.launch.workspace_bytes(gemm.m_max), conditions=conditions,
        )  # fmt: skip


def _code(binary: Binary) -> Code | None:
    """None where it is not machine code of a GPU, or where nvdisasm is not installed."""
    if binary.format != "cubin":
        return None
    try:
        return machine_code(binary.data)
    except MissingExtra:
        return None


def _status(error: TirgemmError) -> str:
    if isinstance(error, BuildFailed):
        return "build_failed"
    if isinstance(error, VerificationFailed):
        return "wrong"
    if isinstance(error, MeasurementFailed):
        return "timed_out" if isinstance(error, MeasurementTimedOut) else "crashed"
    return "skipped"
