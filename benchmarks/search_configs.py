"""Search the knobs for every shape of some suites, on one device, in as many runs as it takes.

    python benchmarks/search_configs.py square deepgemm llama skinny odd --device cuda:0 --family wgmma \\
        --regime sustained,isolated --seconds 540 --out benchmarks/results/nvidia-h200/configs.json.gz

Each config is verified, then timed in a short burst beside the reference (``torch.matmul``, on a CPU ``numpy_f32``).
Started again with the same file it goes on where it stopped. ``tirgemm.tuning.measured_configs`` reads the file.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from service.results import environment
from service.suites import Suite, benchmarks_folder, find_suite
from tirgemm.config import Config
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, TirgemmError
from tirgemm.families import Family, Rule, family_named
from tirgemm.gemm import REGIMES, Gemm
from tirgemm.tuning.measured_configs import MeasuredConfigs
from tirgemm.tuning.memory_store import MemoryStore
from tirgemm.tuning.suite_search import SuiteSearch
from tirgemm.tuning.workbench import Workbench

REFERENCE = "torch.matmul"
# A kernel that gives no sign of life for so long is stopped.
TIMEOUT_S = 10.0


def limited(family: Family, without: Sequence[str]) -> Family:
    """The family without some choices of its knobs, given as ``KNOB=CHOICE``."""
    return cast("Family", _Limited(family, without)) if without else family


class _Limited:
    """A family with one rule more."""

    def __init__(self, family: Family, without: Sequence[str]) -> None:
        self._family = family
        self.name = family.name
        self._without = [text.partition("=")[::2] for text in without]
        if any(not choice for _, choice in self._without):
            raise InvalidRequest(f"--without {', '.join(without)} is not KNOB=CHOICE")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (Rule("without", self._excluded), *self._family.rules)

    def _excluded(self, gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG002
        knobs = {name: str(value) for name, value in config.knobs}
        found = [f"{name}={choice}" for name, choice in self._without if knobs.get(name) == choice]
        return f"the search goes without {found[0]}" if found else None


def main() -> int:
    options = _options()
    try:
        suites = {suite.name: suite.gemms for suite in (Suite.read(find_suite(name)) for name in options.suites)}
        regimes = _regimes(options.regime)
        families = [limited(family_named(name), options.without) for name in options.family] or None
        device, home = detect_device(options.device), benchmarks_folder()
        run = environment(device, home.parent if home else None, options.commit)
        with Workbench(device, MemoryStore(), processes=options.processes, timeout_s=TIMEOUT_S) as workbench:
            workbench.warm()
            found = opened(options.out, workbench, run)
            search = SuiteSearch(
                suites, workbench, found, regimes, families=families, first=options.first, batch=options.batch,
                burst_s=options.burst, seed=options.seed, tell=lambda line: print(line, flush=True),
            )  # fmt: skip
            print(f"{len(search.problems)} shapes on {device.name}, {len(found.entries)} entries known", flush=True)
            search.run(options.seconds, lambda: found.save(options.out))
            print("\n".join([*summary(search), f"{options.out}: {len(found.entries)} entries"]))
    except TirgemmError as error:
        print(f"search_configs: {error}", file=sys.stderr)
        return 1
    return 0


def opened(path: Path, workbench: Workbench, run: dict[str, Any]) -> MeasuredConfigs:
    """The file to go on with, or a new one, with a new run. Raises InvalidRequest for another device's."""
    device = workbench.device.with_(uuid="", index=0, environment=())
    offered = workbench.measurer.baselines() if workbench.measurer else ()
    reference = REFERENCE if REFERENCE in offered else next(iter(offered), "")
    found = MeasuredConfigs.load(path) if path.exists() else MeasuredConfigs(device, reference)
    if (found.device.key, found.reference) != (device.key, reference):
        raise InvalidRequest(
            f"{path} is of {found.device.key} beside {found.reference}, not of {device.key} beside {reference}"
        )
    found.runs.append(run)
    return found


def summary(search: SuiteSearch) -> list[str]:
    """A line for each suite and regime, and the mean over the suites, each against the reference."""
    lines = []
    for regime in search.regimes:
        means = []
        for name, gemms in search.suites.items():
            ratios = [ratio for gemm in gemms if (ratio := search.ratio(gemm, regime))]
            if not ratios:
                continue
            means.append(statistics.geometric_mean(ratios))
            lines.append(
                f"{regime} {name}: {means[-1]:.3f} x {search.found.reference}, least {min(ratios):.3f}, "
                f"{len(ratios)} of {len(gemms)} shapes; default {_default_share(search, name, regime)}"
            )
        if means:
            lines.append(f"{regime}, mean over {len(means)} suites: {statistics.geometric_mean(means):.3f}")
    return lines + [f"skipped {gemm}: {why}" for gemm, why in search.skipped.items()]


def _default_share(search: SuiteSearch, suite: str, regime: str) -> str:
    """Speed of the default over the best config's, in geometric mean over the shapes where both were measured."""
    shares = []
    for problem in (p for p in search.problems if p.gemm in search.suites[suite]):
        times = search.found.times(problem.gemm, regime)
        best = search.found.best(problem.gemm, regime)
        default = times.get(problem.family.default(problem.gemm, search.workbench.device, regime))
        if best and default:
            shares.append((times[best[0]] or math.nan) / default)
    return f"{statistics.geometric_mean(shares):.3f} of the best" if shares else "not measured"


def _regimes(text: str) -> list[str]:
    regimes = text.split(",")
    for regime in regimes:
        if regime not in REGIMES:
            raise InvalidRequest(f"regime is {regime!r}; it must be one of {', '.join(REGIMES)}")
    return regimes


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suites", nargs="+", metavar="SUITE", help="names from benchmarks/suites, or JSON files")
    parser.add_argument("--device", default=None, help="cpu, cuda:0, ... (default: the first GPU, else the CPU)")
    parser.add_argument("--family", action="append", default=[], help="only these families; repeatable")
    parser.add_argument(
        "--without", action="append", default=[], metavar="KNOB=CHOICE", help="with --family; repeatable"
    )
    parser.add_argument("--regime", default="sustained", help="one, or several with commas; the first leads the search")
    parser.add_argument("--seconds", type=float, default=540.0, help="of searching, after everything has started")
    parser.add_argument("--first", type=int, default=5, help="configs of a shape in its first round")
    parser.add_argument("--batch", type=int, default=5, help="configs of a shape in each later round")
    parser.add_argument("--burst", type=float, default=0.04, help="seconds that each config is timed for")
    parser.add_argument("--processes", type=int, default=None, help="that build (default: one a hardware thread)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", default=None, help="the program's commit, where this copy has no history")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
