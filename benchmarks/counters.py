"""Hardware counters beside what the analysis predicts, for the kernels of ``benchmarks/counted/cases.json``.

    python -m benchmarks.counters --device cuda:0 --seconds 400 --out benchmarks/results/nvidia-h200/counters.json

Kernels are built and predicted first, in many processes; then Nsight Compute profiles each once, many in one process.
Beside the results lie the profiler's logs (``counters.ncu.N.csv``), the device's metrics and the cubins: ``--again
FOLDER`` predicts anew for those and compares with those, anywhere; the file's ``predicted_commit`` says by which
commit. On a named device (``--device sm_90a``) kernels are built and predicted only. The exit code is 1 where
a prediction is wrong or a case is missing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.counted import ncu
from benchmarks.counted.cases import CountedCase, cases
from benchmarks.counted.document import COUNTED, CountedKernel, documented, summary
from benchmarks.counted.metrics import base_names, candidates, chosen
from benchmarks.counted.predictions import predicted
from tirgemm.artifact import Signer, pack
from tirgemm.bench.results import dump, environment
from tirgemm.config import Config
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, InvalidRequest, MeasurementFailed, TirgemmError
from tirgemm.hardware import named_device
from tirgemm.tuning.build.compile import build
from verification import command
from verification.sanitized_call import END

ROOT = Path(__file__).resolve().parents[1]
# Cases in one process of the profiler, whose start costs seconds, and what it may take: what a limit can cost.
AT_ONCE = 4
GROUP_SECONDS = 90.0
# What is kept of the list of the device's metrics, to choose others from.
_OF_MEMORY = re.compile(r"shared|ldsm|ldgsts|op_(ld|st)|pipe_lsu|inst_executed_op")

# A case, the device, and of an earlier run the config and the cubin.
CountedRun = tuple[CountedCase, Device, Config | None, bytes | None]


def main() -> int:
    options = _options()
    deadline = time.monotonic() + options.seconds
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.again:
        device, kernels, metrics, about = repeated(options.again, options.processes)
    else:
        device = detect_device(options.device)
        wanted = [case for case in cases() if not options.case or any(case.name.startswith(p) for p in options.case)]
        kernels = prepared([(case, device, None, None) for case in wanted], options.processes)
        print(f"{len(kernels)} cases, {sum(not k.message for k in kernels)} built and predicted", flush=True)
        metrics, about = {}, environment(device, ROOT, options.commit)
        if device.present:
            known = ncu.available(device.arch)
            metrics = chosen(known)
            options.out.with_suffix(".metrics.txt").write_text("\n".join(sorted(filter(_OF_MEMORY.search, known))))
            keep(kernels, options.out.with_suffix(".cubins.zip"))
            count(kernels, device, candidates(known), options.out.with_suffix(".ncu"), deadline)
    document = documented(kernels, metrics, about)
    if options.again:
        document |= {"predicted_commit": environment(device, ROOT, options.commit)["commit"]}
    options.out.write_text(dump(document))
    for line in summary(document):
        print(line)
    return int(any(row.get("right") is False for row in document["rows"]) or any(k.message for k in kernels))


def prepared(wanted: Sequence[CountedRun], processes: int | None = None) -> list[CountedKernel]:
    """Every case built and predicted; what fails says so in ``message``."""
    # Spawned: TVM's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    count = min(len(wanted), processes or len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(max(1, count), mp_context=context) as pool:
        return list(pool.map(prepare, wanted))


def prepare(wanted: CountedRun) -> CountedKernel:
    """One case built and predicted; of an earlier run with its config and for its cubin."""
    case, device, config, cubin = wanted
    made = CountedKernel(case)
    try:
        config = config or case.config(device)
        made.config = dict(config.knobs)
        binary = build(case.gemm, config, device)
        made.binary = replace(binary, data=cubin) if cubin is not None else binary
        made.predictions = predicted(case.gemm, config, device, made.binary.data)
    except TirgemmError as error:
        made.message = f"{error.code}: {error}"[:600]
    except Exception as error:  # a fault in one kernel's analysis, or TVM's own errors, must not cost the others
        made.message = f"{type(error).__name__}: {error}"[:600]
    return made


def keep(kernels: Sequence[CountedKernel], file: Path) -> None:
    """The cubins by name, for ``repeated``."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as kept:
        for kernel in kernels:
            if kernel.binary is not None:
                kept.writestr(kernel.case.name, kernel.binary.data)


def repeated(
    folder: Path, processes: int | None = None
) -> tuple[Device, list[CountedKernel], dict[str, str], dict[str, Any]]:
    """An earlier run's device, its counted cases predicted anew, its metrics and its environment."""
    candidates = [path for path in folder.glob("*.json") if path.with_suffix(".cubins.zip").exists()]
    if len(candidates) != 1:
        raise InvalidRequest(
            f"{folder} has {len(candidates)} results files with a .cubins.zip beside them; --again takes one"
        )
    (results,) = candidates
    earlier = json.loads(results.read_text())
    arch = earlier["environment"]["device_key"].split(":")[1]
    device, named = named_device(arch), {case.name: case for case in cases()}
    counted = [case for case in earlier["cases"] if case["status"] == COUNTED and case["name"] in named]
    with zipfile.ZipFile(results.with_suffix(".cubins.zip")) as kept:
        wanted: list[CountedRun] = [
            (named[c["name"]], device, Config(c["family"], tuple(c["config"].items())), kept.read(c["name"]))
            for c in counted
        ]
    kernels = prepared(wanted, processes)
    seen: set[str] = set()
    for log in dict.fromkeys(case["log"] for case in counted):
        launches = ncu.read((folder / log).read_text(errors="replace"))
        of_log = [kernel for kernel, case in zip(kernels, counted, strict=True) if case["log"] == log]
        attribute(of_log, launches, log)
        seen |= {base for launch in launches for name in launch.metrics for base in base_names(name)}
    return device, kernels, chosen(seen), earlier["environment"]


def count(
    kernels: Sequence[CountedKernel], device: Device, metrics: Sequence[str], logs: Path, deadline: float
) -> None:
    """Profile what was built, AT_ONCE in a process; a case at which a process ends is left out of the next."""
    signer = Signer.generate()
    waiting = [kernel for kernel in kernels if not kernel.message]
    with tempfile.TemporaryDirectory(prefix="tirgemm-counted-") as folder:
        turn = 0
        while waiting:
            left = deadline - time.monotonic()
            if left < 5:
                for kernel in waiting:
                    kernel.message = "not reached in time"
                return
            now = waiting[:AT_ONCE]
            files = [_packed(kernel, device, signer, Path(folder)) for kernel in now]
            command = [sys.executable, "-m", "benchmarks.counted.calls", device.uuid, signer.public, *map(str, files)]
            log = logs.with_name(f"{logs.name}.{turn}.csv")
            turn += 1
            try:
                output, launches = ncu.profile(command, metrics, log, min(left, GROUP_SECONDS))
                ended = [line.removeprefix(END).strip() for line in output.splitlines() if line.startswith(END)]
                done = [kernel for kernel in now if kernel.case.name in ended]
                attribute(done, launches, log.name)
            except MeasurementFailed as error:
                for kernel in now:
                    if not kernel.counts:
                        kernel.message = str(error)[:600]
                waiting = waiting[len(now) :]
                continue
            if len(done) < len(now):
                now[len(done)].message = f"its call did not end: {' / '.join(output.splitlines()[-4:])[:500]}"
            waiting = [kernel for kernel in waiting if kernel not in done and not kernel.message]
            after = f"{left - (deadline - time.monotonic()):.0f} s for {now[0].case.name} to {now[-1].case.name}"
            print(f"{sum(bool(k.counts) for k in kernels)} counted, {after}", flush=True)


def attribute(done: Sequence[CountedKernel], launches: Sequence[ncu.ProfiledLaunch], log: str) -> None:
    """Give the launches of one log to its kernels, in order; a call that did not end may have left more of them.

    Raises MeasurementFailed where their names do not agree."""
    rest = iter(launches)
    for kernel in done:
        assert kernel.binary is not None
        counts = []
        for expected in kernel.binary.launch.kernels:
            launch = next(rest, None)
            if launch is None or launch.kernel != expected.symbol:
                raise MeasurementFailed(
                    f"{kernel.case.name}: the profiler saw {launch.kernel if launch else 'no more launches'} where "
                    f"{expected.symbol} is launched"
                )
            counts.append(launch.metrics)
        kernel.counts, kernel.log = tuple(counts), log


def _packed(kernel: CountedKernel, device: Device, signer: Signer, folder: Path) -> Path:
    if kernel.binary is None:
        raise BuildFailed(f"{kernel.case.name} is not built")
    binary = kernel.binary
    file = folder / f"{kernel.case.name}.tirgemm"
    if not file.exists():
        contents = binary.contents(kernel.case.gemm, kernel.case.config(device), device.device_class)
        file.write_bytes(pack(contents, signer))
    return file


def _options() -> argparse.Namespace:
    made = command.parser(__doc__, "--processes", "--commit", "--out")
    made.add_argument(
        "--device", default=None, help="cuda:0, or an architecture to predict only (default: the first GPU)"
    )
    made.add_argument("--seconds", type=float, default=400.0, help="begin nothing after so many")
    made.add_argument("--case", action="append", help="only cases whose name begins so (again for more)")
    made.add_argument("--again", type=Path, metavar="FOLDER", help="an earlier run's files, to compare with once more")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
