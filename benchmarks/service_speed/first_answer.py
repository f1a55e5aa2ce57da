"""Measure how long a new problem waits for its first answer, the family's default: from a worker that has just started,
and from one that has worked before and has nothing to do.

A real server process and real workers, one after the other; each sample is one new problem: of odd sizes, which most
kernels take a copy for, and from a warm worker also one whose rows are whole 16 bytes.

usage: python -m benchmarks.service_speed.first_answer [--device cuda:0] [--out FILE]   from the root of the repository
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import httpx

from benchmarks.service_speed.load import Turn
from benchmarks.service_speed.turns import Figures, Server, alternate, parser, server
from benchmarks.service_speed.working import await_idle, await_worker, worker
from tirgemm.errors import ServiceError
from tirgemm.tuning_db import Database, JobQueue
from verification.command import run

ANSWER_SECONDS = 60.0


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
                figures.add(name, alternate(service.port, warm(odd), options))
                figures.add(f"{name}, rows of whole 16 bytes", alternate(service.port, warm(whole), options))
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


def _problems(first: int, step: int, n: int, k: int) -> Iterator[str]:
    """Problems that no kernel is there for."""
    return (f"{m}x{n}x{k}:f16:nt" for m in itertools.count(first, step))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--device", default="cpu", help="what the worker serves and is asked for")
    return options.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run(main))
