"""Measure how long a problem that was never asked for waits for its answer.

Of new problems it is the first answer, the family's default: from a worker that has just started, and from one that has
worked before and has nothing to do. Each sample is one new problem: of odd sizes, which most kernels take a copy for,
and from a warm worker also one whose rows are whole 16 bytes. Of the problems of suites it is the tuned kernel of
shipped records, from the POST to the artifact, from a warm worker: each sample is one more problem of the suite, of
those that shipped records answer without a search, and whose job tried no candidate.

A real server process and real workers, one after the other, on a database and an artifact store that are empty.

usage: python -m benchmarks.service_speed.first_answer [--device cuda:0] [--rows new suites] [--out FILE]     from the
root of the repository
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import httpx

from benchmarks.service_speed.load import Turn
from benchmarks.service_speed.turns import Figures, Server, alternate, parser, server
from benchmarks.service_speed.working import await_idle, await_worker, worker
from tirgemm import Budget, Gemm
from tirgemm.bench.suites import suite_named
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import ServiceError
from tirgemm.events import CandidateRecorded
from tirgemm.gemm import REGIMES
from tirgemm.tuning.budget import shipped_effort
from tirgemm.tuning_db import Database, JobQueue
from tirgemm.tuning_db.shipped.layered_store import LayeredStore
from verification.command import run

ANSWER_SECONDS = 60.0
ROWS, SUITES = ("new", "suites"), ("llama", "deepgemm", "square", "skinny")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    odd, whole = _problems(1001, 2, 1021, 1027), _problems(1000, 8, 1024, 1024)
    with Figures.run(options) as (figures, folder):
        settings = {"TIRGEMM_FALLBACK_SECONDS": f"{ANSWER_SECONDS:g}"}
        with Database.embedded(folder) as database, server(folder, settings) as service:

            def answer_of(problems: Iterator[str]) -> Turn:
                return first_answer(service, database, next(problems), options.device)

            def cold(_turn: int) -> Turn:
                with worker(folder, options.device):
                    await_worker(database)
                    return answer_of(odd)

            with worker(folder, options.device) as pid:
                await_worker(database)
                answer_of(odd)  # from a worker that has just started

                def warm(problems: Iterator[str]) -> Callable[[int], Turn]:
                    def turn(_turn: int) -> Turn:
                        await_idle(pid)
                        return answer_of(problems)

                    return turn

                name = f"first answer, {options.device}, warm"
                if "new" in options.rows:
                    figures.add(name, alternate(service.port, warm(odd), options))
                    figures.add(f"{name}, rows of whole 16 bytes", alternate(service.port, warm(whole), options))
                if "suites" in options.rows:
                    measure_suites(figures, service, database, pid, options)
            if "new" in options.rows:
                figures.add(f"first answer, {options.device}, cold", alternate(service.port, cold, options))
    return 0


def first_answer(service: Server, database: Database, gemm: str, device: str) -> Turn:
    """The time from the request to an answer with a kernel; the search behind it is cancelled, which the worker hears
    of within half a second. Raises ServiceError where the answer has none."""
    begun = time.perf_counter()
    answer = httpx.post(
        f"http://127.0.0.1:{service.port}/v1/kernels",
        json={"gemm": gemm, "device": device},
        headers=service.headers,
        timeout=2 * ANSWER_SECONDS,
    )
    took = time.perf_counter() - begun
    pending = answer.raise_for_status().json()
    if answer.status_code == 202:
        if pending["fallback"] is None:
            raise ServiceError(f"{gemm} has no answer after {took:.0f} s")
        # Else the next problem waits for this one's search.
        JobQueue(database).cancel(pending["job"]["id"])
    return Turn(1 / took, 1e3 * took, 1e3 * took)


def measure_suites(
    figures: Figures, service: Server, database: Database, worker_pid: int, options: argparse.Namespace
) -> None:
    """A row for each suite: its first problems that shipped records answer and no suite before it has. Raises
    ServiceError where there are fewer than two."""
    asked: set[Gemm] = set()
    for suite in map(suite_named, options.suites):
        shipped = shipped_problems(database, suite.gemms, detect_device(options.device))
        problems = [gemm for gemm in shipped if gemm not in asked][: 1 + options.turns]
        if len(problems) < 2:
            raise ServiceError(
                f"suite {suite.name} has {len(problems)} problems to ask for on {options.device}, of at least 2: those "
                f"that shipped records of this driver and TVM answer, and that no suite before it has"
            )
        asked.update(problems)
        unasked, trials = iter(problems), list[int]()

        def turn(_turn: int, unasked: Iterator[Gemm] = unasked, trials: list[int] = trials) -> Turn:
            await_idle(worker_pid)
            answered, tried = shipped_answer(service, database, next(unasked), options.device)
            trials.append(tried)
            return answered

        measured = alternate(service.port, turn, options, turns=len(problems) - 1)
        figures.add(
            f"shipped kernel, {options.device}, warm, {suite.name}",
            measured,
            problems=[str(gemm) for gemm in problems[1:]],
            trials=sum(trials[1:]),
            suite_problems=len(suite.gemms),
            shipped_problems=len(shipped),
        )


def shipped_problems(database: Database, problems: Iterable[Gemm], device: Device) -> list[Gemm]:
    """Those problems whose shipped records answer a request of the usual effort on ``device`` without a search."""
    store = LayeredStore(database)

    def is_answered(gemm: Gemm) -> bool:
        offers = {regime: store.offer(gemm, device, regime) for regime in REGIMES}
        offer = offers["sustained"]
        configs = max(0 if each is None else len(each.candidates) for each in offers.values())
        return offer is not None and offer.answers and shipped_effort(configs).level >= Budget().effort.level

    return [gemm for gemm in problems if is_answered(gemm)]


def shipped_answer(service: Server, database: Database, gemm: Gemm, device: str) -> tuple[Turn, int]:
    """The time from the request to the artifact of the tuned kernel, and how many candidates its job has tried. Raises
    ServiceError where there is none, and where the job has tried a candidate or ended with a search."""
    prefer = {"Prefer": f"wait={ANSWER_SECONDS:g}"}
    with httpx.Client(
        base_url=f"http://127.0.0.1:{service.port}", headers=service.headers, timeout=2 * ANSWER_SECONDS
    ) as client:
        begun = time.perf_counter()
        answer = client.post("/v1/kernels", json={"gemm": str(gemm), "device": device}, headers=prefer)
        kernel = answer.raise_for_status().json()
        if answer.status_code != 200:
            raise ServiceError(f"{gemm} has no tuned kernel after {time.perf_counter() - begun:.0f} s")
        artifact = client.get(kernel["artifact"]["url"]).raise_for_status().content
        took = time.perf_counter() - begun
    queue = JobQueue(database)
    (job,) = queue.jobs(gemm=gemm)
    trials = sum(event.kind == CandidateRecorded.KIND for event in queue.events(job.id))
    ended = (kernel["timings"].get("search") or {}).get("ended")
    if (job.kernel_id, kernel["role"], ended, trials) != (kernel["id"], "tuned", "shipped", 0):
        raise ServiceError(
            f"{gemm} was not answered from shipped records alone: its kernel is {kernel['role']}, the search ended "
            f"with {ended!r} and tried {trials} candidates"
        )
    if len(artifact) != kernel["artifact"]["bytes"]:
        raise ServiceError(f"the artifact of {gemm} has {len(artifact)} bytes, not {kernel['artifact']['bytes']}")
    return Turn(1 / took, 1e3 * took, 1e3 * took), trials


def _problems(first: int, step: int, n: int, k: int) -> Iterator[str]:
    """Problems that no kernel is there for."""
    return (f"{m}x{n}x{k}:f16:nt" for m in itertools.count(first, step))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--device", default="cpu", help="what the worker serves and is asked for")
    options.add_argument("--rows", nargs="+", choices=ROWS, default=["new"], help="new problems, those of suites")
    options.add_argument("--suites", nargs="+", default=SUITES, help="names or JSON files, for the rows of suites")
    return options.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run(main))
