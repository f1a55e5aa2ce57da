"""Race of kernel sets against the kernels that are tuned for one very m: what a choice at the call costs.

    python benchmarks/kernel_sets/race.py --device cuda:0 --out benchmarks/results/nvidia-h200/rows.sustained.json.gz

The problems of the suite that differ in m alone make one set, over the range from the smallest to the largest of them.
Each is searched for itself too, with the same budget, and both are raced twice at that m, beside the baselines. A row
is of the variant ``set``; its kernel is the member that serves the m, its baseline ``tuned`` what the search for that m
selects. Sets and records stay in the database, so that ``--resume`` goes on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tirgemm.artifact import Trust, read
from tirgemm.bench import results
from tirgemm.bench.contest import MIN_SAMPLES, failed_row
from tirgemm.bench.suites import suite_named
from tirgemm.detect import device as detect_device
from tirgemm.errors import TirgemmError
from tirgemm.gemm import Gemm, Range, Regime, regime_named
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.build.binary import compiled_source
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.measure.measurer import SLOW_BASELINES
from tirgemm.tuning.measure.race import Race
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.set_tuning import tuned_record, tuning_class
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.workbench import Workbench
from tirgemm.tuning_db.data_folder import open_store, signer
from verification import command

ROOT = Path(__file__).resolve().parents[2]
RACES = 2
# Problems of one m whose first candidates are built while others are measured.
AHEAD = 3
SET, TUNED = "set", "tuned"


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    device, suite = detect_device(options.device), suite_named(options.suite)
    regime = regime_named(options.regime)
    budget = Budget.of(options.effort, options.trials, options.search_seconds)
    about = results.environment(device, ROOT, options.commit)
    file = results.ResultsFile(options.out, suite.name, regime, about, resume=options.resume)
    started, failed = time.monotonic(), 0
    with (
        open_store(options.data) as store,
        Workbench(device, store, signer(options.data), lock_dir=options.lock_dir, processes=options.processes) as bench,
    ):
        for whole, gemms in problems(suite.gemms):
            left = [gemm for gemm in gemms if file.find(gemm, SET) is None]
            for number, gemm in enumerate(left):
                if options.limit is not None and time.monotonic() - started > options.limit:
                    print("problems are left: run it again with --resume")
                    return 1
                row = _row(bench, whole, left[number : number + AHEAD], regime, budget, options.seconds)
                file.put(row)
                failed += row["status"] != "measured"
                print(gemm, row["message"] or f"{row['median_us']} us, {row['baselines'][TUNED]['ratio']:.3f} x tuned")
    file.arrange(suite.gemms, (SET,))
    for name, beside in file.document["summary"].get(SET, {}).items():
        print(f"against {name}: geomean {beside['geomean']:.3f}, worst {beside['min']:.3f}, {beside['count']} shapes")
    return 1 if failed else 0


def problems(gemms: tuple[Gemm, ...]) -> Iterator[tuple[Gemm, list[Gemm]]]:
    """The problems that differ in m alone, with the one over their range of m that a set is for."""
    groups: dict[Gemm, list[Gemm]] = {}
    for gemm in gemms:
        groups.setdefault(gemm.with_(m=1), []).append(gemm)
    for alike in groups.values():
        sizes = [gemm.m_max for gemm in alike]
        yield alike[0].with_(m=Range(min(sizes), max(sizes))), alike


def _row(
    bench: Workbench, whole: Gemm, gemms: list[Gemm], regime: Regime, budget: Budget, seconds: float
) -> results.Row:
    """One m of a set, the first of ``gemms``, beside the kernel for that m; for the others builds begin."""
    gemm = gemms[0]
    try:
        kernels = tuned_record(tuning_class(whole)(whole, bench, regime, budget))
        for each in gemms:
            with suppress(TirgemmError):  # which its own row tells
                Tuning(each, bench, regime, budget).build_ahead()
        tuned = tuned_package(Tuning(gemm, bench, regime, budget))
        packages = {SET: bench.store.get_blob(kernels.artifact_sha256), TUNED: tuned}
        served = read(packages[SET], Trust.of(bench.signer.public))
        member = next(one for one in served.manifest.kernels if one.gemm.m_min <= gemm.m_max <= one.gemm.m_max)
        assert bench.measurer is not None
        baselines = tuple(name for name in bench.measurer.baselines() if name not in SLOW_BASELINES)
        races = []
        for number in range(RACES):
            options = RaceOptions(regime, MIN_SAMPLES[regime], seconds / RACES, seed=number, m=gemm.m_max)
            result = Race(bench.measurer, options).run(packages, baselines)
            races.append(result.of(SET).beside(TUNED, result.of(TUNED).samples_us))
    except TirgemmError as error:
        return failed_row(gemm, None, SET, error)
    finally:
        bench.forget_ahead(gemm)
    tests = (member.certificate or {}).get("tests", [])
    kernel = results.MeasuredKernel(
        max(float(test["error"]) for test in tests),
        member.launch.workspace_bytes(gemm.m_max),
        served.sha256,
        member.sources[compiled_source(member.sources)],
    )
    conditions = results.race_conditions(races) | {"effort": budget.effort.value}
    return results.measured_row(gemm, member.config, SET, races, kernel, conditions)


def tuned_package(tuning: Tuning) -> bytes:
    """What the search of one m selects, without its certificate."""
    if tuning.effort is Effort.NONE:
        return tuning.store.get_blob(tuned_record(tuning).artifact_sha256)
    return tuning.selected(tuning.budget).package


def _parser() -> argparse.ArgumentParser:
    made = command.parser(
        __doc__, "--device", "--resume", "--processes", "--data", "--lock-dir", "--commit", "--out", "--limit"
    )
    made.add_argument("--suite", default="rows", help="a suite by name, or its file")
    made.add_argument("--regime", default="sustained")
    made.add_argument("--effort", default=Effort.STANDARD.value, help="of each search")
    made.add_argument("--trials", type=int, default=None, help="candidates of each m that is searched, at most")
    made.add_argument("--search-seconds", type=float, default=None, help="of a set, and of each kernel for one m")
    made.add_argument("--seconds", type=float, default=1.0, help="about how long the races of a problem take")
    return made


if __name__ == "__main__":
    sys.exit(command.run(lambda: main(sys.argv[1:])))
