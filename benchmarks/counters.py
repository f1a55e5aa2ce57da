"""Hardware counters beside what the analysis predicts, for the kernels of ``benchmarks/counted/cases.json``.

    python -m benchmarks.counters --device cuda:0 --seconds 400 --out benchmarks/results/nvidia-h200/counters.json

Kernels are built and predicted first, in many processes; then Nsight Compute profiles each once, many in one process.
``--log FILE`` takes the counts from an earlier run's log of the profiler in place of a new run. On a named device
(``--device sm_90a``) kernels are built and predicted only. The exit code is 1 where a prediction is wrong or a case is
missing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.counted import ncu
from benchmarks.counted.calls import END
from benchmarks.counted.cases import Case, cases
from benchmarks.counted.document import Kernel, documented, summary
from benchmarks.counted.metrics import base_names, candidates, chosen
from benchmarks.counted.predictions import predicted
from service.results import dump, environment
from tirgemm.artifact import Signer, pack
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, MeasurementFailed, TirgemmError
from tirgemm.tuning.compile import build

ROOT = Path(__file__).resolve().parents[1]
CHIPS = {"sm_80": "ga100", "sm_86": "ga102", "sm_89": "ad102", "sm_90a": "gh100"}
# Cases in one process of the profiler: its start costs seconds, and one that is killed tells nothing of what it had.
AT_ONCE = 16
# What is kept of the list of the device's metrics, to choose others from.
_OF_MEMORY = re.compile(r"shared|ldsm|ldgsts|op_(ld|st)|pipe_lsu|inst_executed_op")


def main() -> int:
    options = _options()
    device = detect_device(options.device)
    deadline = time.monotonic() + options.seconds
    options.out.parent.mkdir(parents=True, exist_ok=True)
    wanted = [case for case in cases() if not options.case or any(case.name.startswith(p) for p in options.case)]
    kernels = prepared(wanted, device, options.processes)
    print(f"{len(kernels)} cases, {sum(not k.message for k in kernels)} built and predicted", flush=True)
    known = ncu.available(CHIPS[device.arch]) if device.present and not options.log else frozenset()
    metrics = chosen(known) if device.present else {}
    if options.log:
        launches = [launch for log in options.log for launch in ncu.read(log.read_text(errors="replace"))]
        metrics = chosen({base for launch in launches for name in launch.metrics for base in base_names(name)})
        attribute([k for k in kernels if not k.message], launches)
    elif device.present:
        options.out.with_suffix(".metrics.txt").write_text("\n".join(sorted(filter(_OF_MEMORY.search, known))))
        count(kernels, device, candidates(known), options.out.with_suffix(".ncu"), deadline)
    document = documented(kernels, metrics, environment(device, ROOT, options.commit))
    options.out.write_text(dump(document))
    for line in summary(document):
        print(line)
    return int(any(row.get("right") is False for row in document["rows"]) or any(k.message for k in kernels))


def prepared(wanted: Sequence[Case], device: Device, processes: int | None = None) -> list[Kernel]:
    """Every case built and predicted; what fails says so in ``message``."""
    # Spawned: TVM's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    count = min(len(wanted), processes or len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(max(1, count), mp_context=context) as pool:
        return list(pool.map(prepare, wanted, [device] * len(wanted)))


def prepare(case: Case, device: Device) -> Kernel:
    """One case built and predicted."""
    made = Kernel(case)
    try:
        config = case.config(device)
        made.config = dict(config.knobs)
        made.binary = build(case.gemm, config, device)
        made.predictions = predicted(case.gemm, config, device, made.binary.data)
    except TirgemmError as error:
        made.message = f"{error.code}: {error}"[:600]
    except Exception as error:  # a fault in one kernel's analysis, or TVM's own errors, must not cost the others
        made.message = f"{type(error).__name__}: {error}"[:600]
    return made


def count(kernels: Sequence[Kernel], device: Device, metrics: Sequence[str], logs: Path, deadline: float) -> None:
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
            command = [sys.executable, "-m", "benchmarks.counted.calls", signer.public, *map(str, files)]
            log = logs.with_name(f"{logs.name}.{turn}.csv")
            turn += 1
            try:
                output, launches = ncu.profile(command, metrics, log, left, _environment())
                ended = [line.removeprefix(END).strip() for line in output.splitlines() if line.startswith(END)]
                done = [kernel for kernel in now if kernel.case.name in ended]
                attribute(done, launches)
            except MeasurementFailed as error:
                for kernel in now:
                    kernel.message = str(error)[:600]
                waiting = waiting[len(now) :]
                continue
            if len(done) < len(now):
                now[len(done)].message = f"its call did not end: {' / '.join(output.splitlines()[-4:])[:500]}"
            waiting = [kernel for kernel in waiting if kernel not in done and not kernel.message]
            print(f"{sum(bool(k.counts) for k in kernels)} counted", flush=True)


def attribute(done: Sequence[Kernel], launches: Sequence[ncu.Launch]) -> None:
    """Give the launches to the kernels, in order. Raises MeasurementFailed where their names do not agree."""
    rest = iter(launches)
    for kernel in done:
        assert kernel.binary is not None
        counts = []
        for expected in kernel.binary.launch.kernels:
            found = next(rest, None)
            if found is None or found.kernel != expected.symbol:
                raise MeasurementFailed(
                    f"{kernel.case.name}: the profiler saw {found.kernel if found else 'no more launches'} where "
                    f"{expected.symbol} is launched"
                )
            counts.append(found.metrics)
        kernel.counts = tuple(counts)


def _packed(kernel: Kernel, device: Device, signer: Signer, folder: Path) -> Path:
    if kernel.binary is None:
        raise BuildFailed(f"{kernel.case.name} is not built")
    binary = kernel.binary
    file = folder / f"{kernel.case.name}.tirgemm"
    if not file.exists():
        file.write_bytes(
            pack(
                gemm=kernel.case.gemm, config=kernel.case.config(device),
                device=device.with_(uuid="", index=0, environment=()), launch=binary.launch, binary=binary.data,
                binary_format=binary.format, sources=binary.sources, flags=binary.flags, certificate=None, timings={},
                signer=signer,
            )
        )  # fmt: skip
    return file


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return dict(os.environ) | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--device", default=None, help="cuda:0, or an architecture to predict only (default: the first GPU)"
    )
    made.add_argument("--seconds", type=float, default=400.0, help="begin nothing after so many")
    made.add_argument("--processes", type=int, default=None, help="build processes (default: one a hardware thread)")
    made.add_argument("--case", action="append", help="only cases whose name begins so (again for more)")
    made.add_argument("--log", type=Path, nargs="+", help="an earlier run's logs of the profiler, over the same cases")
    made.add_argument("--commit", default=None, help="the program's commit, for a copy without its history")
    made.add_argument("--out", type=Path, required=True, help="the results file")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
