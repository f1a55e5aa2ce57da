"""Rehearse a worker's queue of jobs on made-up GPUs, without any: what the worker itself costs and waits for.

Builds and measurements only sleep, for about what they take on an H200; everything else is the worker's own: queue,
store, searches, artifacts. Beside the seconds of all jobs it says when the last of them had its first answer, how long
the devices were busy, and the processor seconds of the worker's process, in all and after some seconds.

usage: python -m benchmarks.many_devices.rehearsal [--jobs 40] [--devices 4]     from the root of the repository
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.many_devices.measure import POLL_SECONDS, await_end, submit
from tirgemm import Gemm
from tirgemm._interpreter import collect_seldom, switch_often
from tirgemm.artifact import Manifest, Signer, read
from tirgemm.device import Device
from tirgemm.hardware import named_device
from tirgemm.launch import KernelLaunch, Launch, Pointer, scalar_args, tensor_args
from tirgemm.service.jobs.engine import TunerImports, TuningEngine
from tirgemm.service.jobs.worker import Worker
from tirgemm.status import LIVE
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.prepared import PreparedBuilds
from tirgemm.tuning.build.processes import BuildProcesses
from tirgemm.tuning.measure.requests import Request
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.records.store import Store
from tirgemm.tuning.verify.result import Verification
from tirgemm.tuning.workbench import Workbench
from tirgemm.tuning_db import Database, Job, JobQueue
from tirgemm.tuning_db.shipped.layered_store import LayeredStore

# Seconds on an H200 of jobs such as 1000x4104x4104:f16:nt with effort quick.
BUILD = 1.1
VERIFY = {"candidate": 0.02, "certificate": 0.06}
TIME = {"search": 0.063, "fallback": 0.13, "selection": 0.55, "report": 0.22}
LOOKS = (5.0, 11.0)
_CUBIN = 128 << 10


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--processes", type=int, default=64, help="build processes")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--pace", type=float, default=1.0, help="by which builds and measurements take longer")
    options = parser.parse_args(arguments)
    print(json.dumps(rehearse(options)))
    return 0


def rehearse(options: argparse.Namespace) -> dict[str, Any]:
    """Run the jobs. Raises ServiceError where one fails."""
    named = named_device("sm_90a").with_(environment=(("driver", "made up"),))
    served = [named.with_(uuid=f"GPU-{index}", index=index) for index in range(options.devices)]
    with tempfile.TemporaryDirectory(prefix="tirgemm-jobs-") as folder, Database.embedded(Path(folder)) as database:
        queue, store, budget = JobQueue(database), LayeredStore(database), Budget.of(options.effort)

        def asked(numbers: range) -> list[str]:
            return [submit(queue, Gemm(1000 + 8 * number, 4104, 4104), served[0], budget) for number in numbers]

        fleet = SleepingFleet(store, served, options.processes, options.pace)
        with closing(fleet), working(Worker(queue, store, fleet, lease_s=30.0)):
            await_end(queue, asked(range(options.jobs, options.jobs + len(served))))
            busy, begun, spent = fleet.busy(), time.perf_counter(), time.process_time()
            job_ids = asked(range(options.jobs))
            looks: list[float] = []
            unanswered, unfinished, answered = list(job_ids), list(job_ids), 0.0
            while unfinished:
                seconds = time.perf_counter() - begun
                if len(looks) < len(LOOKS) and seconds >= LOOKS[len(looks)]:
                    looks.append(round(time.process_time() - spent, 2))
                while unanswered and _job(queue, unanswered[0]).fallback_id:
                    answered = seconds
                    del unanswered[0]
                while unfinished and _job(queue, unfinished[0]).status not in LIVE:
                    del unfinished[0]
                time.sleep(POLL_SECONDS)
            await_end(queue, job_ids)
            return {
                "jobs": options.jobs,
                "devices": options.devices,
                "seconds": round(seconds, 2),
                "first_answers_s": round(answered, 2),
                "busy_s": [round(after - before, 2) for before, after in zip(busy, fleet.busy(), strict=True)],
                "cpu_s": round(time.process_time() - spent, 2),
                "cpu_s_after": dict(zip(map(str, LOOKS), looks, strict=False)),
            }


class SleepingFleet:
    """Engines whose builds and measurements sleep."""

    def __init__(self, store: Store, served: Sequence[Device], processes: int, pace: float) -> None:
        self._builds = SleepingBuilds(processes, pace)
        self._prepared, imports, signer = PreparedBuilds(served[0], self._builds), TunerImports(), Signer.generate()

        def open_bench(device: Device) -> Workbench:
            return Workbench(
                device,
                store,
                signer,
                processes=self._builds,
                start_measuring=lambda _device, _lock_dir: SleepingMeasurements(pace),
            )

        self._engines: list[TuningEngine] = []
        self._engines += [TuningEngine(each, open_bench, imports, self.engines, self._prepared) for each in served]

    def engines(self) -> list[TuningEngine]:
        return self._engines

    def busy(self) -> list[float]:
        return [seconds for engine in self._engines for seconds in engine.measuring_seconds()]

    def close(self) -> None:
        for engine in self._engines:
            engine.close()
        self._prepared.close()
        self._builds.close()


class SleepingBuilds(BuildProcesses):
    """In-process stand-in for the build processes: each build sleeps."""

    def __init__(self, processes: int, pace: float) -> None:
        self._pace = pace
        super().__init__(processes)

    def _start(self) -> Any:
        return _SleepingBuild(self._pace)


class _SleepingBuild:
    """In place of a build process: its answer is a header and noise of a cubin's size."""

    def __init__(self, pace: float) -> None:
        self.alive = True
        self._pace = pace

    def request(self, message: Any, **_: Any) -> Binary:
        gemm, config, *_others = message
        time.sleep(BUILD * self._pace)
        launch = Launch(tensor_args(gemm), scalar_args(gemm), (KernelLaunch("made_up", (Pointer("a"),)),))
        header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + b"\x03\0" + bytes([190, 0])
        noise = hashlib.shake_128(f"{gemm} {config}".encode()).digest(_CUBIN)
        return Binary(header.ljust(64, b"\0") + noise, "cubin", launch, {"kernel.cu": f"{gemm} {config}"}, (), {})

    def kill(self) -> None:
        self.alive = False


class SleepingMeasurements:
    """In place of a measuring process: everything is right, and as fast as a hash of its config says."""

    def __init__(self, pace: float) -> None:
        self.alive = True
        self.busy_s = 0.0
        self._pace = pace

    def request(self, message: Any, **_: Any) -> tuple[Verification | None, SampleSet | None]:
        request: Request = message
        manifest = self._manifest(request, request.package)
        verify, timed = request.verify, request.time
        seconds = VERIFY[verify.level] if verify is not None else 0.0
        if timed is not None:
            reason = timed.options.reason
            seconds += TIME["fallback" if reason == "search" and verify is None else reason]
        time.sleep(seconds * self._pace)
        self.busy_s += seconds * self._pace
        verification = samples = None
        if verify is not None:
            test = {"name": "exact", "passed": True, "error": 0.0}
            verification = Verification(True, 0.0, (test,), "made up", manifest.kernel_sha256)
        if timed is not None:
            beside = {name: self._us(self._manifest(request, package)) for name, package in timed.against.items()}
            beside |= dict.fromkeys(timed.baselines, (80.0,) * 20)
            samples = SampleSet(self._us(manifest), timed.options.reason, beside, {"regime": timed.options.regime})
        return verification, samples

    def kill(self) -> None:
        self.alive = False

    def _manifest(self, request: Request, package: bytes) -> Manifest:
        return read(package, request.trust).manifest

    def _us(self, manifest: Manifest) -> tuple[float, ...]:
        return (60.0 + int(manifest.config.digest[:4], 16) % 1000 / 20,) * 20


@contextmanager
def working(worker: Worker) -> Iterator[None]:
    """Within the block the worker runs, in a thread."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def _job(queue: JobQueue, job_id: str) -> Job:
    job = queue.job(job_id)
    assert job is not None
    return job


if __name__ == "__main__":
    collect_seldom()
    switch_often()
    sys.exit(main())
