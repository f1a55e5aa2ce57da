"""Race of what two versions of the program have chosen: defaults and tuned configs of both, side by side.

    python benchmarks/versions/race.py redesign before.json after.json --device cuda:0 --out
    benchmarks/results/nvidia-h200/redesign.sustained.json.gz

The files are those of ``benchmarks/versions/choices.py``. All configs are built by this version, which gives them the
kernels that they had (tests hold source hashes), verified and raced twice on the same operands beside the baselines.
Rows are of the variants ``before_default``, ``before_tuned``, ``default`` and ``tuned``, each beside the others;
configs that are the same are one kernel and have the same samples.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import command
from tirgemm.artifact import Trust
from tirgemm.bench import results
from tirgemm.bench.contest import Contest, Entrant, failed_row
from tirgemm.bench.suites import suite_named
from tirgemm.config import Config
from tirgemm.detect import device as detect_device
from tirgemm.errors import InvalidRequest, TirgemmError
from tirgemm.gemm import Gemm, Regime, regime_named
from tirgemm.tuning.measure.measurer import SLOW_BASELINES
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench

ROOT = Path(__file__).resolve().parents[2]
RACES = 2
_CONDITIONS = ("shared", "operand_sets", "temperature_c", "absent", "left_out")


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    device = detect_device(options.device)
    suite = suite_named(options.suite)
    before, after = (json.loads(path.read_text()) for path in (options.before, options.after))
    if before["regime"] != after["regime"]:
        raise InvalidRequest(f"the choices are for the regimes {before['regime']} and {after['regime']}")
    regime = regime_named(before["regime"])
    about = results.environment(device, ROOT, options.commit) | {"before_commit": before["commit"]}
    file = results.ResultsFile(options.out, suite.name, regime, about, resume=False)
    failed = 0
    with Workbench(device, MemoryStore(), processes=options.processes) as bench:
        chosen = {gemm: _configs(gemm, before, after) for gemm in suite.gemms}
        builds = {(g, c): bench.build(g, c) for g, configs in chosen.items() for c in dict.fromkeys(configs.values())}
        for gemm, configs in chosen.items():
            packages = {}
            for config in dict.fromkeys(configs.values()):
                packages[config] = bench.package(gemm, config, builds[gemm, config].result())
            rows = _rows(bench, gemm, regime, {name: Entrant(c, packages[c]) for name, c in configs.items()}, options)
            file.put(*rows)
            failed += sum(row["status"] != "measured" for row in rows)
            print(gemm, *(f"{row['variant']} {row['median_us']} us" for row in rows), flush=True)
    file.arrange(suite.gemms, ("before_default", "before_tuned", "default", "tuned"))
    return 1 if failed else 0


def _configs(gemm: Gemm, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Config]:
    """By variant. Raises InvalidRequest where a version has not chosen for the problem."""
    configs: dict[str, Config] = {}
    for prefix, document in (("before_", before), ("", after)):
        choice = document["choices"].get(str(gemm))
        if choice is None:
            raise InvalidRequest(f"the choices of {document['commit']} have none for {gemm}")
        configs |= {f"{prefix}{name}": Config.from_json(choice[name]) for name in ("default", "tuned")}
    return configs


def _rows(
    bench: Workbench, gemm: Gemm, regime: Regime, entrants: dict[str, Entrant], options: argparse.Namespace
) -> list[results.Row]:
    assert bench.measurer is not None
    baselines = tuple(name for name in bench.measurer.baselines() if name not in SLOW_BASELINES)
    contest = Contest(bench.measurer, baselines, options.seconds)
    rows: dict[str, results.Row] = {}
    errors: dict[str, float] = {}
    sound: dict[str, Entrant] = {}
    for name, entrant in entrants.items():
        try:
            errors[name] = contest.verify(entrant)
            sound[name] = entrant
        except TirgemmError as error:
            rows[name] = failed_row(gemm, entrant.config, name, error)
    reports = contest.report(gemm, list(sound.values()), regime, RACES)
    for name, entrant in sound.items():
        failures = [report.failed[entrant.name] for report in reports if entrant.name in report.failed]
        if failures:
            rows[name] = failed_row(gemm, entrant.config, name, failures[0])
            continue
        races = [_beside(report.samples, name, sound) for report in reports]
        conditions = {key: races[0].conditions[key] for key in _CONDITIONS if key in races[0].conditions}
        kernel = entrant.measured(gemm, errors[name], Trust.of(bench.signer.public))
        rows[name] = results.measured_row(gemm, entrant.config, name, races, kernel, conditions)
    return [rows[name] for name in entrants]


def _beside(samples: dict[str, SampleSet], name: str, entrants: dict[str, Entrant]) -> SampleSet:
    """The samples of a variant with those of the others of the same race beside them."""
    taken = samples[entrants[name].name]
    for other, entrant in entrants.items():
        if other != name and entrant.name in samples:
            taken = taken.beside(other, samples[entrant.name].samples_us)
    return taken


def _parser() -> argparse.ArgumentParser:
    made = command.parser(__doc__, "--device", "--processes", "--commit", "--out")
    made.add_argument("suite")
    made.add_argument("before", type=Path)
    made.add_argument("after", type=Path)
    made.add_argument("--seconds", type=float, default=1.0, help="about how long the races of a problem take")
    return made


if __name__ == "__main__":
    sys.exit(command.run(lambda: main(sys.argv[1:])))
