"""Measure a family's space, or a part of it, point by point into a file that the search is judged on.

    python benchmarks/record_space.py 1023x1021x1027:f16:nt --family simt --device cuda:0 \\
        --knob block_m=32,64,128 --knob stages=2,3 --seconds 500 --out tests/data/h200_simt.json.gz

``--knob`` keeps only some choices of a knob. Points are measured in random order, so that a file that ran out of time
is a fair sample; started again with the same arguments it goes on where it stopped. What a rule rejects is recorded
as pruned and not built.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from tirgemm.config import Config, Knob, Space
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, TirgemmError, Unsupported
from tirgemm.families import Family, family_named, rejected
from tirgemm.gemm import REGIMES, Gemm, Regime
from tirgemm.tuning.evaluate import Evaluator
from tirgemm.tuning.records import Status
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.search.recorded_space import RecordedSpace, Row
from tirgemm.tuning.search.search import Proposal
from tirgemm.tuning.workbench import Workbench

SAVE_EVERY_S = 20.0


def main() -> int:
    options = _options()
    try:
        record(
            Gemm.parse(options.gemm),
            detect_device(options.device),
            family_named(options.family),
            options.regime,
            knobs=dict(_knob(text) for text in options.knob),
            points=options.points,
            seconds=options.seconds,
            out=options.out,
        )
    except TirgemmError as error:
        print(f"record_space: {error}", file=sys.stderr)
        return 1
    return 0


def record(
    gemm: Gemm,
    device: Device,
    family: Family,
    regime: Regime,
    *,
    knobs: dict[str, list[str]],
    points: int | None,
    seconds: float,
    out: Path,
) -> RecordedSpace:
    """Measure until every point (or ``points`` of them) has a row or the time is up; the file is always whole."""
    reason = family.supports(gemm, device)
    if reason is not None:
        raise Unsupported(f"family {family.name} does not write {gemm} for {device.name}: {reason}")
    recorded = _opened(out, gemm, device, family, regime, _limited(family.space(gemm, device), knobs))
    todo = list(range(recorded.space.size))
    random.Random(0).shuffle(todo)
    todo = [number for number in todo[:points] if number not in recorded.rows]
    print(f"{gemm} {family.name} on {device.name}: {recorded.space.size} points, {len(todo)} to go")
    start = saved = time.monotonic()
    # On a CPU nothing builds while something measures, so builds and measurements alternate in batches.
    batch = 16 if device.kind == "cpu" else 1
    with Workbench(device, MemoryStore()) as bench:
        evaluator = Evaluator(gemm, bench, regime, seed=0, cancel=threading.Event())
        ahead = max(batch, 2 * bench.pool.processes)
        building: dict[Future[Any], tuple[int, Config]] = {}
        while (todo or building) and time.monotonic() - start < seconds:
            while todo and len(building) < ahead:
                number = todo.pop()
                config = recorded.space.at(number)
                why = rejected(family, gemm, config, device)
                if why is not None:
                    recorded.rows[number] = Row(Status.PRUNED, None, 0.0)  # what breaks a rule has no prediction
                else:
                    building[bench.build(gemm, config)] = (number, config)
            done = (
                wait(building, return_when="ALL_COMPLETED" if batch > 1 else FIRST_COMPLETED).done if building else ()
            )
            for future in done:
                number, config = building.pop(future)
                candidate = evaluator.candidate(Proposal(config, None), future)
                predicted = _predicted(family, recorded, config)
                recorded.rows[number] = Row(candidate.status, candidate.search_us, predicted)
            if time.monotonic() - saved > SAVE_EVERY_S:
                saved = time.monotonic()
                recorded.save(out)
                print(f"{len(recorded.rows)} rows, best {min(recorded.times, default=float('nan')):.2f} us", flush=True)
        for future in building:
            future.cancel()
    recorded.save(out)
    print(f"{out}: {len(recorded.rows)} of {recorded.space.size} points, {len(recorded.times)} measured")
    return recorded


def _opened(out: Path, gemm: Gemm, device: Device, family: Family, regime: Regime, space: Space) -> RecordedSpace:
    """The file to go on with, or a new one. Raises InvalidRequest for a file of something else."""
    default = family.default(gemm, device, regime)
    space.check(default)
    new = RecordedSpace(gemm, device, regime, space, default, source=f"measured on {device.model}")
    if not out.exists():
        return new
    old = RecordedSpace.load(out)
    if (old.gemm, old.device.key, old.regime, old.space) != (gemm, device.key, regime, space):
        raise InvalidRequest(f"{out} records another problem, device, regime or space; give another file")
    return old


def _predicted(family: Family, space: RecordedSpace, config: Config) -> float:
    return round(family.predict_us(space.gemm, config, space.device, space.regime), 3)


def _limited(space: Space, knobs: dict[str, list[str]]) -> Space:
    """The space with only the choices that ``knobs`` keeps. Raises InvalidRequest for a knob or choice it lacks."""
    known = {knob.name: knob for knob in space.knobs}
    for name, kept in knobs.items():
        choices = [str(choice) for choice in known[name].choices] if name in known else []
        missing = [text for text in kept if text not in choices]
        if name not in known or missing:
            raise InvalidRequest(
                f"knob {name}={','.join(missing or kept)} is not in the space; knobs are {', '.join(known)}"
                + (f", choices of {name} are {', '.join(choices)}" if choices else "")
            )
    return Space(
        space.family,
        tuple(
            Knob(k.name, tuple(c for c in k.choices if k.name not in knobs or str(c) in knobs[k.name]))
            for k in space.knobs
        ),
    )


def _knob(text: str) -> tuple[str, list[str]]:
    name, equals, choices = text.partition("=")
    if not equals or not choices:
        raise InvalidRequest(f"--knob {text!r} is not NAME=CHOICE,CHOICE")
    return name, choices.split(",")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("gemm", help="the problem, such as 1023x1021x1027:f16:nt")
    parser.add_argument("--family", required=True)
    parser.add_argument("--device", default=None, help="cpu, cuda:0, ... (default: the first GPU, else the CPU)")
    parser.add_argument("--regime", choices=REGIMES, default="sustained")
    parser.add_argument("--knob", action="append", default=[], metavar="NAME=CHOICE,CHOICE")
    parser.add_argument("--points", type=int, default=None, help="at most so many points (default: all)")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
