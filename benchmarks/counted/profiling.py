"""Profiling of kernels by Nsight Compute: many processes build them and predict their counters, then each runs once."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks.counted import ncu
from benchmarks.counted.cases import CountedCase
from benchmarks.counted.document import CountedKernel
from benchmarks.counted.predictions import predicted
from tirgemm.artifact import Signer, pack
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, MeasurementFailed, TirgemmError
from tirgemm.tuning.build.compile import build
from verification.sanitized_call import END

# Cases in one process of the profiler, whose start costs seconds, and what it may take: what a limit can cost.
AT_ONCE = 4
GROUP_SECONDS = 90.0

# A case, the device, and of an earlier run the config and the cubin.
CountedRun = tuple[CountedCase, Device, Config | None, bytes | None]


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
