"""Measure what each step from plain WMMA fragments to mma.sync on permuted tiles gains, one change at a time.

    python benchmarks/tensorcore_steps.py --device cuda:0 --out
    benchmarks/results/nvidia-h200/tensorcore_steps.sustained.json

Every step of a problem is verified, then all of them run interleaved with the baselines on the same operands; a row's
baselines have its parent's samples too, by the parent's name. The file is written after every problem; ``--resume``
goes on behind the last. On a device that is only named steps are built. The exit code is 1 where a step failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tirgemm.bench import results
from tirgemm.bench.contest import Contest
from tirgemm.bench.step_race import RacedStep, race_steps
from tirgemm.bench.suite_file import Suite
from tirgemm.config import Config, Value
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench
from verification import command

ROOT = Path(__file__).resolve().parents[1]

SUITE = ROOT / "benchmarks" / "suites" / "tensorcore_steps.json"


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel of ``family``: its parent's with ``knobs`` changed, which ``changed`` says in words."""

    name: str
    parent: str | None
    family: str
    changed: str
    knobs: tuple[tuple[str, Value], ...]


def _step(name: str, parent: str | None, family: str, changed: str, **knobs: Value) -> Step:
    return Step(name, parent, family, changed, tuple(knobs.items()))


STEPS = (
    _step(
        "wmma",
        None,
        "wmma",
        "fragments of 16x16x16 from unpadded rows, a block of 128x256, two stages",
        tile_m=128,
        tile_n=256,
        tile_k=32,
        warps_m=2,
        warps_n=4,
        stages=2,
        registers=1,
        pad=0,
        split=1,
        raster=1,
    ),
    _step("wmma_padded", "wmma", "wmma", "8 elements after each row of a shared tile", pad=8),
    _step("wmma_pad16", "wmma", "wmma", "16 elements after each row", pad=16),
    _step("wmma_stages", "wmma_padded", "wmma", "four stages in shared memory", stages=4),
    _step("wmma_registers", "wmma_stages", "wmma", "fragments of the next 16 of k are loaded meanwhile", registers=2),
    _step("wmma_raster", "wmma_registers", "wmma", "4 columns of blocks are neighbours in time", raster=4),
    _step(
        "mma_padded",
        "wmma_raster",
        "mma",
        "ldmatrix and m16n8k16 in place of WMMA; sums stay in registers",
        shared="padded",
        copy="line",
        epilogue="direct",
    ),
    _step("mma_none", "mma_padded", "mma", "unpadded rows again", shared="none"),
    _step("mma_permuted", "mma_padded", "mma", "rows unpadded, their runs permuted", shared="permuted"),
    _step("mma_staged", "mma_permuted", "mma", "outputs leave through shared memory, by rows", epilogue="staged"),
    _step(
        "mma_lines",
        "mma_permuted",
        "mma",
        "64 of k a step, so that rows of k are lines; three stages",
        tile_k=64,
        stages=3,
    ),
    _step("mma_half_lines", "mma_lines", "mma", "neighbouring threads copy halves of lines", copy="half"),
)
_BY_NAME = {step.name: step for step in STEPS}


def config(name: str, gemm: Gemm, device: Device) -> Config:
    """The config of a step: the family's default with every knob that the step and those before it set."""
    chain: list[Step] = []
    step: Step | None = _BY_NAME[name]
    while step is not None:
        chain.append(step)
        step = _BY_NAME[step.parent] if step.parent else None
    made = family_named(chain[0].family).default(gemm, device, "sustained")
    known = {knob for knob, _ in made.knobs}
    for one in reversed(chain):
        made = made.with_(**{knob: value for knob, value in one.knobs if knob in known})
    return made


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    device = detect_device(options.device)
    gemms = [Gemm.parse(text) for text in options.gemm] or list(Suite.read(SUITE).gemms)
    about = results.environment(device, ROOT, options.commit)
    file = results.ResultsFile(options.out, "tensorcore_steps", options.regime, about, resume=options.resume)
    failed, began = 0, time.monotonic()
    with Workbench(device, MemoryStore(), lock_dir=options.lock_dir, processes=options.processes) as bench:
        for gemm in gemms:
            if time.monotonic() - began > options.limit:
                print(f"{options.limit:g} s are over: {gemm} and what follows are not begun", flush=True)
                return 1
            if all(file.find(gemm, step.name) for step in STEPS):
                continue
            configs = {step.name: config(step.name, gemm, device) for step in STEPS}
            if bench.measurer is None:
                for name, build in {name: bench.build(gemm, made) for name, made in configs.items()}.items():
                    print(gemm, name, build.result().resources, flush=True)
                continue
            raced = [RacedStep(step.name, step.parent, configs[step.name]) for step in STEPS]
            contest = Contest(bench.measurer, bench.measurer.baselines(), options.seconds)
            rows = race_steps(bench, contest, gemm, options.regime, raced, on_stage=print)
            file.put(*rows)
            failed += sum(row["status"] != "measured" for row in rows)
            print(gemm, *(f"{row['variant']} {row['tflops'] or 0:.0f}" for row in rows), "TFLOP/s", flush=True)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    made = command.parser(__doc__, "--resume", "--processes", "--lock-dir", "--commit", "--out")
    made.add_argument("gemm", nargs="*", help="problems (default: the suite tensorcore_steps)")
    made.add_argument(
        "--device", default=None, help="cuda:0, or an architecture to build only (default: the first GPU)"
    )
    made.add_argument("--regime", default="sustained", choices=("sustained", "isolated"))
    made.add_argument("--seconds", type=float, default=4.0, help="about how long a problem's interleaved run takes")
    made.add_argument("--limit", type=float, default=600.0, help="begin no problem after so many seconds")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
