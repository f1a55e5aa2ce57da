"""Fit the constants of the ``wgmma`` family's analytic model to what a search over configs measured.

    python benchmarks/fit_estimate.py tuning_db/shipped/nvidia-h200.jsonl.gz --regime sustained

Minimises the mean relative error, fast configs weighing most, by Powell's method; prints the error before and after,
and what taking the best-estimated of each problem's measured configs would lose. With ``--write`` the constants go into
the family's ``estimate.json``, with what they were fitted to; all of them are fitted, those set by hand too.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm.bench.results import environment, git_output
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig, InvalidRequest
from tirgemm.families import wgmma
from tirgemm.families.common.fit_file import FILE, FitProvenance
from tirgemm.families.wgmma.estimate import CONSTANTS, Cuts, WgmmaConstants, estimate_us
from tirgemm.families.wgmma.planning.plan import plan
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Candidate
from tirgemm.tuning.records.comparable_times import comparable_times
from tirgemm.tuning_db.transfer import read_candidates, read_devices

Floats = npt.NDArray[np.float64]
# A model that is further off than this says nothing more by being worse still.
_WORST = 0.6
ROOT = Path(__file__).resolve().parents[1]
ESTIMATE = Path(wgmma.__file__).parent / FILE


@dataclass(frozen=True)
class MeasuredConfigs:
    """Every measured config of one problem, as columns, and its microseconds."""

    gemm: Gemm
    cuts: Cuts
    us: Floats


def measured(candidates: Sequence[Candidate], device: Device, regime: Regime) -> list[MeasuredConfigs]:
    """The problems of records in one regime. Configs of knobs that the family no longer has are left out."""
    recorded: dict[Gemm, list[Candidate]] = {}
    for candidate in candidates:
        if (candidate.device_key, candidate.regime, candidate.config.family) == (device.key, regime, "wgmma"):
            recorded.setdefault(candidate.gemm, []).append(candidate)
    problems = []
    for gemm, tried in recorded.items():
        rows, times = [], []
        for config, us in comparable_times(tried).items():
            if us is None:
                continue
            try:
                rows.append(Cuts.of(plan(gemm, config, device.units)))
            except (InvalidConfig, TypeError):
                continue
            times.append(us)
        if rows:
            columns = [np.array([getattr(row, field.name) for row in rows]) for field in fields(Cuts)]
            problems.append(MeasuredConfigs(gemm, Cuts(*columns), np.array(times)))
    return problems


def error(problems: Sequence[MeasuredConfigs], device: Device, regime: Regime, constants: WgmmaConstants) -> float:
    """Mean |log(estimate / measured)|; a config that takes twice the best counts a sixteenth."""
    total = weights = 0.0
    for problem in problems:
        off = np.abs(np.log(estimate_us(problem.cuts, problem.gemm, device, regime, constants) / problem.us))
        weight = np.clip(problem.us.min() / problem.us, 0.3, 1.0) ** 4
        total += float((np.minimum(off, _WORST) * weight).sum())
        weights += float(weight.sum())
    return total / weights


def regret(
    problems: Sequence[MeasuredConfigs], device: Device, regime: Regime, constants: WgmmaConstants
) -> tuple[float, float]:
    """Geometric mean and least, over problems, of the best time over that of the best-estimated config."""
    shares = [
        problem.us.min() / problem.us[np.argmin(estimate_us(problem.cuts, problem.gemm, device, regime, constants))]
        for problem in problems
    ]
    return float(np.exp(np.mean(np.log(shares)))), float(min(shares))


def fitted(problems: Sequence[MeasuredConfigs], device: Device, regime: Regime, rounds: int) -> WgmmaConstants:
    """Constants that make the error least, from the present ones on."""
    from scipy.optimize import minimize

    names = [field.name for field in fields(WgmmaConstants)]
    start = np.array([getattr(CONSTANTS[regime], name) for name in names])

    def at(shift: Floats) -> WgmmaConstants:
        return WgmmaConstants(**dict(zip(names, np.maximum(start * (1 + shift), 1e-3 * start), strict=True)))

    best: Any = minimize(
        lambda shift: error(problems, device, regime, at(shift)),
        np.zeros(len(names)),
        method="Powell",
        options={"maxiter": rounds, "xtol": 1e-2, "ftol": 1e-4},
    )
    return at(best.x)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="a records file; it is fitted to the first device in it")
    parser.add_argument("--regime", default="sustained")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    device = read_devices(options.file)[0]
    problems = measured(read_candidates(options.file), device, options.regime)
    for name, constants in (
        ("before", CONSTANTS[options.regime]),
        ("after", fitted(problems, device, options.regime, options.rounds)),
    ):
        mean, least = regret(problems, device, options.regime, constants)
        off = error(problems, device, options.regime, constants)
        print(f"{name}: mean error {off:.3f}; best-estimated over best measured: mean {mean:.3f}, least {least:.3f}")
    for name, value in rounded(constants).items():
        print(f"    {name}: {value:g}")
    if options.write:
        write(options.regime, constants, device, sys.argv)
    return 0


def rounded(constants: WgmmaConstants) -> dict[str, float]:
    """Four digits of each constant, by name."""
    return {name: float(f"{value:.4g}") for name, value in asdict(constants).items()}


def records_commit(files: Sequence[str]) -> str:
    """The first commit that has all these files as they are now: the newest of those that each came with. Raises
    InvalidRequest where one is not committed."""
    commits = []
    for path in map(Path, files):
        blob = git_output(path.parent, "hash-object", "--", path.name)
        came = git_output(path.parent, "log", "--format=%ct %H", f"--find-object={blob}", "--", path.name)
        if not came:
            raise InvalidRequest(f"{path} is not committed as it is; commit what constants are fitted to first")
        seconds, commit = came.splitlines()[-1].split()
        commits.append((int(seconds), commit))
    return max(commits, default=(0, ""))[1]


def write(
    regime: Regime, constants: WgmmaConstants, device: Device, command: Sequence[str], path: Path = ESTIMATE
) -> None:
    """Replace a regime's constants in the family's file, with their provenance. Raises InvalidRequest as
    ``records_commit``."""
    now = environment(device, ROOT)
    regimes = json.loads(path.read_text())
    fitted_to = tuple(argument for argument in command[1:] if argument.endswith(".gz"))
    provenance = FitProvenance(
        fitted_to=fitted_to,
        records_commit=records_commit(fitted_to),
        device=device.model,
        command=shlex.join(["python", *command]),
        commit=now["commit"],
        date=now["date"],
    )
    regimes[regime] = {"provenance": provenance.to_json(), "constants": rounded(constants)}
    path.write_text(json.dumps(regimes, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
