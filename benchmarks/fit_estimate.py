"""Fit the constants of the ``wgmma`` family's analytic model to what a search over configs measured.

    python benchmarks/fit_estimate.py benchmarks/results/nvidia-h200/configs.json.gz --regime sustained

Minimises the mean relative error, fast configs weighing most, by Powell's method; prints the constants before and after,
and what taking the best-estimated of each problem's measured configs would lose.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm.device import Device
from tirgemm.errors import InvalidConfig
from tirgemm.families.wgmma.estimate import ISOLATED, SUSTAINED, Constants, Cuts, estimate_us
from tirgemm.families.wgmma.plan import plan
from tirgemm.gemm import Gemm
from tirgemm.tuning.measured_configs import MeasuredConfigs

Array = npt.NDArray[np.float64]
# A model that is further off than this says nothing more by being worse still.
_WORST = 0.6


@dataclass(frozen=True)
class Measured:
    """Every measured config of one problem, as columns, and its microseconds."""

    gemm: Gemm
    cuts: Cuts
    us: Array


def measured(found: MeasuredConfigs, regime: str) -> list[Measured]:
    """The problems of a file in one regime. Configs of knobs that the family no longer has are left out."""
    problems = []
    for gemm in dict.fromkeys(session.gemm for session in found.sessions):
        rows, times = [], []
        for config, us in found.times(gemm, regime).items():
            if us is None or config.family != "wgmma":
                continue
            try:
                rows.append(Cuts.of(plan(gemm, config, found.device.units)))
            except (InvalidConfig, TypeError):
                continue
            times.append(us)
        if rows:
            columns = [np.array([getattr(row, field.name) for row in rows]) for field in fields(Cuts)]
            problems.append(Measured(gemm, Cuts(*columns), np.array(times)))
    return problems


def error(problems: Sequence[Measured], device: Device, regime: str, constants: Constants) -> float:
    """Mean |log(estimate / measured)|; a config that takes twice the best counts a sixteenth."""
    total = weights = 0.0
    for problem in problems:
        off = np.abs(np.log(estimate_us(problem.cuts, problem.gemm, device, regime, constants) / problem.us))
        weight = np.clip(problem.us.min() / problem.us, 0.3, 1.0) ** 4
        total += float((np.minimum(off, _WORST) * weight).sum())
        weights += float(weight.sum())
    return total / weights


def regret(problems: Sequence[Measured], device: Device, regime: str, constants: Constants) -> tuple[float, float]:
    """Geometric mean and least, over problems, of the best time over that of the best-estimated config."""
    shares = [
        problem.us.min() / problem.us[np.argmin(estimate_us(problem.cuts, problem.gemm, device, regime, constants))]
        for problem in problems
    ]
    return float(np.exp(np.mean(np.log(shares)))), float(min(shares))


def present(regime: str) -> Constants:
    """The constants of a regime as they are in the program."""
    return SUSTAINED if regime == "sustained" else ISOLATED


def fitted(problems: Sequence[Measured], device: Device, regime: str, rounds: int) -> Constants:
    """Constants that make the error least, from the present ones on."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    names = [field.name for field in fields(Constants)]
    start = np.array([getattr(present(regime), name) for name in names])

    def at(shift: Array) -> Constants:
        return Constants(**dict(zip(names, np.maximum(start * (1 + shift), 1e-3 * start), strict=True)))

    best: Any = minimize(
        lambda shift: error(problems, device, regime, at(shift)), np.zeros(len(names)), method="Powell",
        options={"maxiter": rounds, "xtol": 1e-2, "ftol": 1e-4},
    )  # fmt: skip
    return at(best.x)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--regime", default="sustained")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    problems: list[Measured] = []
    for path in options.files:
        found = MeasuredConfigs.load(path)
        problems += measured(found, options.regime)
    device = found.device
    for name, constants in (
        ("before", present(options.regime)),
        ("after", fitted(problems, device, options.regime, options.rounds)),
    ):
        mean, least = regret(problems, device, options.regime, constants)
        off = error(problems, device, options.regime, constants)
        print(f"{name}: mean error {off:.3f}; best-estimated over best measured: mean {mean:.3f}, least {least:.3f}")
    for field in fields(Constants):
        print(f"    {field.name}: float = {getattr(constants, field.name):.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
