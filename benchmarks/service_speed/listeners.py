"""Measure how long events of running jobs take to their listeners, many on each job, and what the server needs.

A real server process; the jobs' events are written into its database by this process, which also listens. Each event
must come to each listener of its job.

usage: python -m benchmarks.service_speed.listeners [--listeners 1000] [--out FILE]     from the root of the repository
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.service_speed.load import Turn
from benchmarks.service_speed.turns import Figures, Server, alternate, parser, server
from benchmarks.service_speed.working import submitted
from tirgemm.detect import device as detect_device
from tirgemm.errors import ServiceError
from tirgemm.events import CandidateRecorded
from tirgemm.status import Status
from tirgemm.tuning_db import Database, JobQueue
from verification.command import run

OWNER, EVER_SECONDS, ARRIVE_SECONDS = "measuring:1:0", 36_000.0, 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    with Figures.run(options) as (figures, folder):
        allowed = {"TIRGEMM_MAX_CONNECTIONS": str(options.listeners + options.connections + 16)}
        with Database.embedded(folder) as database, server(folder, allowed) as service:
            queue, device = JobQueue(database), detect_device("cpu")
            for number in range(options.jobs):
                submitted(database, f"{number + 1}x511x513:f16:nt", seconds=60.0)
            jobs = [queue.claim(OWNER, [device.key], EVER_SECONDS) for _ in range(options.jobs)]
            ids = [job.id for job in jobs if job is not None]
            audience = Audience(service, [ids[number % len(ids)] for number in range(options.listeners)])
            audience.start()

            def turn(_number: int) -> Turn:
                return audience.told(queue, ids, options.events)

            measured = alternate(service.port, turn, options)
            figures.add(
                f"events to {options.listeners:,} listeners on {options.jobs} jobs",
                measured,
                listeners=options.listeners,
                events=options.events * options.jobs,
                missing=0,
                server_mib=round(peak_mib(service.pid), 1),
            )
            audience.close()
    return 0


def peak_mib(pid: int) -> float:
    """The most memory that a process has had so far."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (kib,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kib) / 1024


class Audience:
    """Connections that each follow one job, in a thread with a loop of its own."""

    def __init__(self, service: Server, jobs: Sequence[str]) -> None:
        self._port = service.port
        self._requests = [service.request("GET", f"/v1/jobs/{job}/events") for job in jobs]
        self._listeners: list[_Listener] = []
        self._loop = uvloop.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._number = 0
        self.sent: dict[int, float] = {}
        """When the event of a number was written."""
        self.latencies: list[float] = []
        self.arrived = threading.Condition()
        self.awaited = 0

    def start(self) -> None:
        """Connect, and wait until every stream has begun. Raises ServiceError."""
        self._thread.start()
        if not self._ready.wait(ARRIVE_SECONDS):
            raise ServiceError(f"not all of {len(self._requests)} streams have begun after {ARRIVE_SECONDS:g} s")

    def told(self, queue: JobQueue, jobs: Sequence[str], events: int) -> Turn:
        """Write so many events of each job, and wait until every listener has those of its own. Raises ServiceError."""
        self.latencies, self.awaited = [], events * len(self._requests)
        begun = time.perf_counter()
        for _ in range(events):
            for job in jobs:
                self._number += 1
                self.sent[self._number] = time.perf_counter()
                queue.add_event(job, CandidateRecorded(trials=self._number, status=Status.MEASURED), OWNER)
        with self.arrived:
            all_came = self.arrived.wait_for(lambda: len(self.latencies) >= self.awaited, ARRIVE_SECONDS)
        if not all_came:
            raise ServiceError(f"{self.awaited - len(self.latencies)} of {self.awaited} events did not come")
        return Turn.of(self.latencies, time.perf_counter() - begun)

    def close(self) -> None:
        """Close the connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._connect())
        self._ready.set()
        self._loop.run_forever()
        for listener in self._listeners:
            listener.close()
        self._loop.close()

    async def _connect(self) -> None:
        for request in self._requests:
            _, listener = await self._loop.create_connection(lambda: _Listener(self), "127.0.0.1", self._port)
            self._listeners.append(listener)
            listener.send(request)
        await asyncio.gather(*(listener.begun for listener in self._listeners))


class _Listener(asyncio.Protocol):
    """One stream of events; those that the audience waits for are counted with how long they took."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._text = b""
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes) -> None:
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if not self.begun.done():
            if not data.startswith(b"HTTP/1.1 200 "):
                self.begun.set_exception(ServiceError(f"the service answered {data[:80]!r}"))
                return
            self.begun.set_result(None)
        *whole, self._text = (self._text + data).split(b"\n\n")
        now, audience = time.perf_counter(), self._audience
        for event in whole:
            # Between events there are the sizes of the chunks in which they come.
            body = event.partition(b"data: ")[2].partition(b"\n")[0]
            if b'"trials"' in body:
                audience.latencies.append(now - audience.sent[json.loads(body)["trials"]])
        if whole and len(audience.latencies) >= audience.awaited:
            with audience.arrived:
                audience.arrived.notify_all()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--listeners", type=int, default=1000)
    options.add_argument("--jobs", type=int, default=10)
    options.add_argument("--events", type=int, default=5, help="of each job in a turn")
    return options.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run(main))
