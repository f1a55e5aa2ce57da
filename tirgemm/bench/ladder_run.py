"""Ladder measurement: every rung of a problem beside the baselines in interleaved races, each verified first.

A rung whose launches would take too long is left out, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tirgemm.bench.contest import Contest, chosen_baselines
from tirgemm.bench.ladder_report import steps, tuned
from tirgemm.bench.machine_code import Code, machine_code
from tirgemm.bench.results import Row
from tirgemm.bench.step_race import RACES, RacedStep, race_steps
from tirgemm.errors import (
    InvalidRequest,
    MissingExtra,
    Unsupported,
)
from tirgemm.families import family_named
from tirgemm.families.simt.ladder import FAMILY
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records.comparable_times import known_candidates

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary
    from tirgemm.tuning.measure import Measurer
    from tirgemm.tuning.workbench import Workbench

BASELINES = ("torch.matmul", "cublaslt_best")
# Launches of a kernel that takes long: two to verify, and a race two to see how long it takes, three samples, one for
# good measure.
SLOW_LAUNCHES = 2 + 6 * RACES

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
        usual = (name for name in BASELINES if name in self.measurer.baselines())
        self.baselines = chosen_baselines(self.measurer, workbench.device, usual if baselines is None else baselines)

    def measure(
        self, gemm: Gemm, regime: Regime, known: Sequence[Row], on_stage: OnStage = lambda _: None
    ) -> list[Row]:
        """A row for each rung, in the ladder's order; ``known`` rows of other problems say what a launch may take.

        Raises Unsupported where simt does not write the problem.
        """
        refused = family_named(FAMILY).supports(gemm, self.workbench.device)
        if refused:
            raise Unsupported(refused)
        ladder = steps(gemm, self.workbench.device, regime)
        if self.recorded:
            known_configs = known_candidates(self.workbench.store, gemm, self.workbench.device, regime)
            ladder = (*ladder, tuned(gemm, self.workbench.device, regime, known_configs))
        contest = Contest(self.measurer, self.baselines, self.seconds, self.seed)
        codes: dict[str, Code | None] = {}

        def about(step: RacedStep, binaries: Mapping[str, Binary]) -> dict[str, Any]:
            for name, binary in binaries.items() if not codes else ():
                codes[name] = _code(binary)
            return _code_figures(codes[step.name], codes.get(step.parent) if step.parent else None)

        raced = [RacedStep(step.name, step.rung.parent, step.config, step.refused) for step in ladder]
        require = partial(self._require_quick, gemm, regime, known)
        return race_steps(self.workbench, contest, gemm, regime, raced, require=require, about=about, on_stage=on_stage)

    def _require_quick(self, gemm: Gemm, regime: Regime, known: Sequence[Row], step: RacedStep) -> None:
        """Raise Unsupported where the rung's launches would take longer than it may."""
        launch_s, source = self._launch_seconds(step, gemm, regime, known)
        if SLOW_LAUNCHES * launch_s > self.limit_s:
            raise Unsupported(
                f"a launch takes about {launch_s:.3g} s by {source}: {SLOW_LAUNCHES} of them are more than the"
                f" {self.limit_s:g} s that a rung may take"
            )

    def _launch_seconds(self, step: RacedStep, gemm: Gemm, regime: Regime, known: Sequence[Row]) -> tuple[float, str]:
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
        us = family_named(FAMILY).predict_us(gemm, step.config, self.workbench.device, regime)
        return us / 1e6, "the family's estimate"


def _code_figures(code: Code | None, before: Code | None) -> dict[str, Any]:
    """What a row says of a rung's machine code, beside its parent's."""
    if code is None:
        return {}
    figures: dict[str, Any] = {
        "fma_share": code.fma_share,
        "lds_per_fma": code.loads_per_fma("LDS"),
        "ldg_per_fma": code.loads_per_fma("LDG"),
    }
    return figures | ({} if before is None else {"code_beside_parent": code.beside(before)})


def _code(binary: Binary) -> Code | None:
    """None where it is not machine code of a GPU, or where nvdisasm is not installed."""
    if binary.format != "cubin":
        return None
    try:
        return machine_code(binary.data)
    except MissingExtra:
        return None
