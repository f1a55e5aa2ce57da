"""What a service meets that is operated for long: a database that is away, a disk that is full or cannot be written, a
long queue, many slow connections.

usage: python -m verification.service.outages --out FILE [--only NAME...] [--fresh]    from the root of the repository;
it takes root to mount the small file system whose disk is full, and to make files immutable
"""

from __future__ import annotations

import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from tirgemm.gemm import Gemm
from verification import command
from verification.service.file_systems import immutable, small_disk
from verification.service.kills import Deployment, deployed, ended, lost
from verification.service.processes import eventually
from verification.service.proofs_file import ProofsFile
from verification.service.random_requests import server

KNOWN = {"gemm": "33x17x19:f32:nt", "device": "cpu", "effort": "none"}
ANSWER_SECONDS = 5.0
END_SECONDS = 900.0
NAMES = ("postgresql", "disk", "read-only", "queue", "connections")


def postgres_away(seconds: float) -> list[str]:
    """PostgreSQL is stopped for so long while a job runs: 503 with Retry-After meanwhile, then the job goes on."""
    with deployed("postgresql") as deployment:
        records = deployment.submit(Gemm(61, 27, 29, dtype="f32", layout="nn"), 8)
        records.wait_for_progress()
        before, wrong = records.candidates(), list[str]()
        assert deployment.postgres is not None
        deployment.postgres.stop()
        until = time.monotonic() + seconds
        url = deployment.restart().url
        while time.monotonic() < until:
            wrong += _refusals(url, (("GET", "/v1/jobs", 503), ("GET", "/readyz", 503), ("GET", "/healthz", 200)))
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))
        deployment.postgres.start()
        return [*wrong, *ended(deployment, records, before)]


def _refusals(url: str, expected: Sequence[tuple[str, str, int]]) -> list[str]:
    """What is wrong with the answers of a service, of which those statuses are ``expected``."""
    wrong = []
    for method, path, status in expected:
        began = time.monotonic()
        answer = httpx.request(method, url + path, timeout=30)
        took = time.monotonic() - began
        if answer.status_code != status or took > 2 * ANSWER_SECONDS:
            wrong.append(f"{method} {path} is answered with {answer.status_code} after {took:.1f} s, not {status}")
        if status != 200 and not answer.headers.get("retry-after", "").isdigit():
            wrong.append(f"{method} {path} does not say when to ask again")
    return wrong


def disk_full(mebibytes: int) -> list[str]:
    """The disk of the data folder is full: what needs no space is answered, the rest says why, and it recovers."""
    with small_disk(mebibytes) as folder:
        deployment = Deployment(folder)
        try:
            first = deployment.submit(Gemm(61, 27, 29, dtype="f32", layout="nn"), 4)
            wrong = ended(deployment, first, {})
            before = first.candidates()
            filler = folder / "filler"
            with filler.open("wb") as file:
                try:
                    while file.write(b"\0" * 65536):
                        file.flush()
                except OSError:
                    pass
            url = deployment.restart().url
            known = httpx.post(f"{url}/v1/kernels", json={"gemm": str(first.gemm)}, timeout=30)
            if known.status_code != 200:
                wrong.append(f"a known kernel is answered with {known.status_code}")
            wrong += _full(url)
            filler.unlink()
            second = deployment.submit(Gemm(63, 27, 29, dtype="f32", layout="nn"), 4)
            return [*wrong, *ended(deployment, second, {}), *lost(before, first.candidates())]
        finally:
            deployment.close()


def _full(url: str) -> list[str]:
    """What is wrong with the answer to a request that cannot be stored, now or by its job."""
    body = {"gemm": "2039x1021x1027:f32:nn", "budget": {"trials": 4, "seconds": 60}}
    answer = httpx.post(f"{url}/v1/kernels", json=body, headers={"Prefer": "wait=60"}, timeout=90)
    if (answer.status_code, answer.json().get("code")) != (507, "storage_full"):
        return [f"a request that needs space is answered with {answer.status_code}: {answer.text[:200]}"]
    return []


def read_only(seconds: float) -> list[str]:
    """The data folder cannot be written for so long while a job runs, as where a disk is remounted read-only: known
    kernels are answered, the rest is refused with 503, then the job goes on."""
    with deployed("sqlite") as deployment:
        first = deployment.submit(Gemm(61, 27, 29, dtype="f32", layout="nn"), 4)
        wrong = ended(deployment, first, {})
        records = deployment.submit(Gemm(63, 27, 29, dtype="f32", layout="nn"), 8)
        records.wait_for_progress()
        before, until = records.candidates(), time.monotonic() + seconds
        with immutable(deployment.folder):
            url = deployment.restart().url
            while time.monotonic() < until:
                wrong += _refusals(url, (("GET", "/readyz", 503), ("GET", "/v1/jobs", 200), ("GET", "/healthz", 200)))
                for gemm, status in ((str(first.gemm), 200), ("65x27x29:f32:nn", 503)):
                    answer = httpx.post(f"{url}/v1/kernels", json={"gemm": gemm}, timeout=30)
                    if answer.status_code != status:
                        wrong.append(f"{gemm} is answered with {answer.status_code}, not {status}: {answer.text[:200]}")
                time.sleep(min(1.0, max(0.0, until - time.monotonic())))
        wrong += ended(deployment, records, before)
        if not eventually(lambda: httpx.get(f"{url}/readyz", timeout=30).status_code == 200, ANSWER_SECONDS):
            wrong.append("the service is not ready again")
        return [*wrong, *ended(deployment, deployment.submit(Gemm(67, 27, 29, dtype="f32", layout="nn"), 4), {})]


def long_queue(batches: int, problems: int) -> list[str]:
    """So many batches wait: known kernels are answered meanwhile, then every job ends, and none is lost or doubled."""
    with fuzzed() as http:
        shapes = [[3 + number % 97, 5 + number // 97] for number in range(problems)]
        waiting = [
            {"shapes": shapes, "problem": {"m": m + 1, "dtype": "f32"}, "queue": {"window": closed_window()}}
            for m in range(batches)
        ]
        made = [http.post("/v1/batches", json=body).raise_for_status().json() for body in waiting]
        wrong = []
        if sum(batch["states"].get("queued", 0) for batch in made) != batches * problems:
            wrong.append(f"the batches are in the states {[batch['states'] for batch in made]}")
        times = [_seconds(lambda: http.post("/v1/kernels", json=KNOWN).raise_for_status()) for _ in range(100)]
        page = _seconds(lambda: http.get("/v1/jobs?status=queued&limit=1000").raise_for_status())
        median = statistics.median(times)
        print(f"{batches * problems} jobs wait: a hit takes {median * 1e3:.1f} ms, a page of 1,000 {page * 1e3:.0f} ms")
        if median > ANSWER_SECONDS / 10 or page > ANSWER_SECONDS:
            wrong.append(f"a hit takes {median:.2f} s and a page {page:.1f} s")
        for body in waiting:
            http.post("/v1/batches", json=body | {"queue": {}}).raise_for_status()
        eventually(lambda: not _live(http), END_SECONDS, 1.0)
        for batch in made:
            states = http.get(f"/v1/batches/{batch['id']}").raise_for_status().json()["states"]
            if states.get("done", 0) + states.get("failed", 0) != problems:
                wrong.append(f"batch {batch['id']} is in the states {states} after {END_SECONDS:g} s")
        return wrong


def _live(http: httpx.Client) -> bool:
    """Whether a job is queued or running."""
    return any(
        http.get(f"/v1/jobs?status={status}&limit=1").raise_for_status().json()["jobs"]
        for status in ("queued", "running")
    )


def slow_connections(count: int, seconds: float) -> list[str]:
    """So many connections send a byte now and then: others are answered, and those are cut off."""
    with fuzzed() as http, ExitStack() as stack:
        host, port = http.base_url.host, http.base_url.port
        assert port is not None
        slow = [stack.enter_context(socket.create_connection((host, port), timeout=30)) for _ in range(count)]
        wrong, times, until = list[str](), list[float](), time.monotonic() + seconds
        for connection in slow:
            connection.sendall(b"GET /v1/kernels HTTP/1.1\r\nX: ")
        while time.monotonic() < until:
            for connection in slow:
                try:
                    connection.sendall(b"a")
                except OSError:
                    continue
            times.append(_seconds(lambda: http.post("/v1/kernels", json=KNOWN).raise_for_status()))
            time.sleep(0.2)
        worst = max(times)
        print(
            f"{count} slow connections: a hit takes {statistics.median(times) * 1e3:.1f} ms, {worst * 1e3:.0f} at most"
        )
        if worst > ANSWER_SECONDS:
            wrong.append(f"a hit takes {worst:.1f} s beside {count} slow connections")
        open_still = sum(not _closed(connection) for connection in slow)
        if open_still:
            wrong.append(f"{open_still} connections are open after {seconds:g} s")
        return wrong


def _closed(connection: socket.socket) -> bool:
    connection.settimeout(2.0)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@contextmanager
def fuzzed() -> Iterator[httpx.Client]:
    """A client of a service whose worker ends every job at once, with a key of it."""
    with (
        tempfile.TemporaryDirectory(prefix="tirgemm-outages-") as folder,
        server(Path(folder)) as (url, key),
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http,
    ):
        yield http


def closed_window() -> str:
    """A window of the day that is hours away."""
    hour = (time.gmtime().tm_hour + 6) % 24
    return f"{hour:02}:00-{(hour + 1) % 24:02}:00"


def _seconds(call: Callable[[], Any]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__, "--fresh", "--commit", "--out")
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, help="these proofs")
    options = parser.parse_args(arguments)
    proofs = ProofsFile(options.out, commit=options.commit, fresh=options.fresh)
    made: dict[str, tuple[str, Callable[[], list[str]]]] = {
        "postgresql": ("PostgreSQL stopped for 60 s", lambda: postgres_away(60.0)),
        "disk": ("disk full", lambda: disk_full(24)),
        "read-only": ("folder read-only for 60 s", lambda: read_only(60.0)),
        "queue": ("10,000 queued jobs", lambda: long_queue(10, 1000)),
        "connections": ("1,000 slow connections", lambda: slow_connections(1000, 35.0)),
    }
    failures = 0
    for name in options.only:
        proof, prove = made[name]
        began = time.monotonic()
        wrong = prove()
        proofs.count(proof, wrong, time.monotonic() - began)
        print(f"{proof}: {'; '.join(wrong) or 'held'}", flush=True)
        failures += bool(wrong)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(command.run(main))
