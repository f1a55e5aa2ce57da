"""Measure how long a worker takes for a queue of jobs on one device of this host, and on several side by side.

Real worker processes, each run on a fresh SQLite database in a temporary folder, so that none knows what another has
measured; the clock starts when every device of the worker has had a job of its own, and the searches before it are the
same on however many. Runs on one device and on several alternate, each turn of them with problems of its own. With
``--jobs 1`` the devices that are idle help the search of the one job. The file is written after each run, with the rows
of other settings that it has; with ``--resume`` runs of the same jobs at the same commit that it has count, for a
machine on which one command may not last long enough for all.

usage: python -m benchmarks.many_devices.measure [--jobs 40] [--out FILE [--resume]]     from the root of the repository
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.many_devices import document
from benchmarks.many_devices.document import QueueRun
from tirgemm import Gemm
from tirgemm.bench.results import Row, environment, figures_document, load, measured_at, write
from tirgemm.detect import devices
from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, InvalidRequest, ServiceError
from tirgemm.service.views.queries import trials_recorded
from tirgemm.status import LIVE
from tirgemm.tuning.budget import Budget
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore
from verification import command
from verification.service.processes import eventually

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
POLL_SECONDS = 0.05
# Candidates of a job that warms up: behind the first 16 of effort ``standard`` some that its evolution draws.
WARMING_TRIALS = 24


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    served = same_devices(options.kind)
    counts = sorted({count for count in options.devices or (len(served),) if count > 1})
    if max(counts, default=1) > len(served):
        raise DeviceUnavailable(f"{max(counts)} devices were asked for; this host has {len(served)} of a kind")
    about = environment(served[0], ROOT, options.commit)
    held = held_rows(options.out, about)
    same = {
        "jobs": options.jobs,
        "effort": options.effort,
        "trials": options.trials,
        "processes": options.processes,
        "first_gemm": str(problems(options, 0, 1)[0]),
    }
    of = {count: same | {"devices": count} for count in (1, *counts)}
    origin = {"commit": about["commit"]}
    runs = {count: known_runs(held, setting | origin) if options.resume else [] for count, setting in of.items()}
    for count in counts:
        beside = known_runs(held, of[count] | origin, "alone")
        same_turns = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(beside, runs[1], strict=False))
        del runs[count][len(list(same_turns)) :]  # those beside runs on one device that another command made anew
    for turn in range(options.turns):
        for count, of_count in runs.items():
            if len(of_count) > turn:
                continue
            of_count.append(run_queue(served[:count], options, turn, max(runs)))
            print(f"turn {turn + 1}: {options.jobs} jobs on {count} devices: {of_count[-1]}", flush=True)
            rows = [
                document.row_of(of[count], of_count, runs[1]) | measured_at(about, None)
                for count, of_count in runs.items()
                if of_count
            ]
            if options.out is not None:
                joined = {row["figure"]: row for row in (*held, *rows)}
                write(options.out, figures_document(document.SUITE, about, list(joined.values())))
    for count, of_count in runs.items():
        row = document.row_of(of[count], of_count, runs[1])
        print(f"{row['figure']}: {row['seconds']:.1f} s, {row['speedup']:.2f} times as fast as on one")
    return 0


def held_rows(path: Path | None, about: Mapping[str, Any]) -> list[Row]:
    """The rows of the results file. Raises InvalidRequest where they are of devices of another key."""
    if path is None or not path.is_file():
        return []
    held = load(path)
    if (key := held["environment"]["device_key"]) != about["device_key"]:
        raise InvalidRequest(f"{path} was measured on {key}, not on {about['device_key']}: name another file")
    return list(held["rows"])


def known_runs(held: Sequence[Row], wanted: Mapping[str, Any], which: str = "samples") -> list[QueueRun]:
    """The runs of the row that is as ``wanted``, or those on one device beside them (``alone``)."""
    return [
        QueueRun(run["seconds"], tuple(run["measuring_s"]), run.get("candidates"))
        for row in held
        if all(row[name] == value for name, value in wanted.items())
        for run in row[which]
    ]


def same_devices(kind: str) -> list[Device]:
    """The devices of this host of the first one's key, of this kind."""
    of_kind = [device for device in devices() if device.kind == kind]
    if not of_kind:
        raise DeviceUnavailable(f"this host has no {kind} device")
    return [device for device in of_kind if device.key == of_kind[0].key]


def problems(options: argparse.Namespace, first: int, count: int) -> list[Gemm]:
    """So many from the ``first``, all of about one size, and none that records ship for."""
    m, n, k = options.size
    return [Gemm(m + 8 * number, n, k) for number in range(first, first + count)]


def run_queue(served: Sequence[Device], options: argparse.Namespace, turn: int, most: int) -> QueueRun:
    """Tune the problems of a turn on a worker of its own, behind those that warm it up: as many as the ``most`` devices
    of a run. Raises ServiceError where a job fails."""
    asked = problems(options, turn * options.jobs, options.jobs)
    budget = Budget.of(options.effort, options.trials)
    with tempfile.TemporaryDirectory(prefix="tirgemm-jobs-") as folder, Database.embedded(Path(folder)) as database:
        queue = JobQueue(database)
        with worker(Path(folder), served, options):
            _warm(queue, served[0], options, (turn + 1) * options.jobs, most)
            _await_report(queue)
            before = _measuring(queue)
            begun = time.perf_counter()
            await_end(queue, [submit(queue, gemm, served[0], budget) for gemm in asked])
            seconds = time.perf_counter() - begun
            _await_report(queue)
            after = _measuring(queue)
        store, regime = SqlStore(database), JobRequest(asked[0], served[0]).regime
        candidates = sum(trials_recorded(store, gemm, served[0].key, regime) for gemm in asked)
    spent = zip(before, after, strict=True)
    return QueueRun(round(seconds, 2), tuple(round(end - start, 2) for start, end in spent), candidates)


@contextmanager
def worker(folder: Path, served: Sequence[Device], options: argparse.Namespace) -> Iterator[None]:
    """A worker process that serves these devices."""
    names = ",".join(device.name for device in served)
    command = [sys.executable, "-m", "tirgemm.service.commands.worker", "--data", str(folder), "--devices", names]
    command += ["--processes", str(options.processes), "--parent", str(os.getpid())]
    if options.lock_dir is not None:
        command += ["--lock-dir", str(options.lock_dir)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _warm(queue: JobQueue, device: Device, options: argparse.Namespace, first: int, most: int) -> None:
    """Give the worker so many short jobs, and more until each of its devices has measured."""
    deadline = time.monotonic() + START_SECONDS
    asked = Budget.of(options.effort, options.trials)
    budget = Budget.of(options.effort, min(asked.trials, WARMING_TRIALS))
    while not (measuring := _measuring(queue)) or not all(measuring):
        if time.monotonic() > deadline:
            raise ServiceError(f"the worker did not measure on every device within {START_SECONDS:.0f} s")
        await_end(queue, [submit(queue, gemm, device, budget) for gemm in problems(options, first, most)])
        first += most
        _await_report(queue)


def submit(queue: JobQueue, gemm: Gemm, device: Device, budget: Budget) -> str:
    """The id of a new job."""
    request = JobRequest(gemm, device, trials=budget.trials, seconds=budget.seconds, effort=budget.effort)
    return queue.submit(request)[0].id


def await_end(queue: JobQueue, job_ids: Sequence[str]) -> None:
    """Wait until the jobs have ended. Raises ServiceError where one is not done."""
    while any(progress.status in LIVE for progress in queue.progress(job_ids).values()):
        time.sleep(POLL_SECONDS)
    for job_id in job_ids:
        job = queue.job(job_id)
        if job is None or job.status != "done":
            raise ServiceError(f"job {job_id} did not end as done: {job and (job.status, job.error)}")


def _await_report(queue: JobQueue) -> None:
    """Until the worker has said anew for how long it has measured."""
    before = _seen(queue)
    if not eventually(lambda: _seen(queue) != before, START_SECONDS, POLL_SECONDS):
        raise ServiceError(f"the worker gave no sign of life for {START_SECONDS:.0f} s")


def _seen(queue: JobQueue) -> list[str]:
    return [record.seen_at for record in queue.live_workers(START_SECONDS)]


def _measuring(queue: JobQueue) -> list[float]:
    """For how long each device of the worker has been measured on."""
    return [seconds for record in queue.live_workers(START_SECONDS) for seconds in record.measuring]


def _options(arguments: Sequence[str] | None) -> Any:
    parser = command.parser(__doc__, "--lock-dir", "--commit", "--resume")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--devices", type=int, action="append", help="how many besides one; default: all of the host")
    parser.add_argument("--kind", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--trials", type=int, help="candidates of each job; default: the effort's")
    parser.add_argument("--size", type=int, nargs=3, default=(1000, 4104, 4104), help="m of the first problem, n, k")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="build processes")
    parser.add_argument("--out", type=Path, help="the results file to write")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(command.run(main))
