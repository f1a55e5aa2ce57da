"""``kill -9`` at random moments: processes of a real service, connections and processes of its database, and nodes of
its Ray cluster.

Each run asks a real service for one kernel more and kills one victim at a random moment of the job. What was committed
before stays as it was, the search measures nothing again, the job ends, and neither a process nor a lock is left.

usage: python -m verification.service.kills --runs 200 --seed 1 --out FILE [--fresh] [--deployments 3 | --engine ray]
from the root of the repository
"""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
from sqlalchemy import func, select

from tirgemm.errors import AlreadyRunning, InvalidRequest, StoreUnavailable
from tirgemm.events import BuildsCounted
from tirgemm.gemm import Gemm
from tirgemm.status import ENDED
from tirgemm.tuning.process.locks import FileLock
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning_db import Database, Job, JobQueue, SqlStore, StoredEvent
from tirgemm.tuning_db.models import AttemptRow, GemmRow
from verification import command
from verification.service.postgres_server import PostgresServer, find_programs, running
from verification.service.processes import Serve, alive, command_line, descendants, eventually, kill
from verification.service.proofs_file import ProofsFile
from verification.service.ray_cluster import add_nodes, kill_node, running_cluster

# Committed transactions outlive the processes of the database, as they do where it is operated; the machine stays up.
DURABLE = ("fsync=off", "shared_buffers=16MB")
_PROCESSES = ("worker", "measuring child", "build child", "server", "everything")
VICTIMS = {"sqlite": _PROCESSES, "postgresql": (*_PROCESSES, "database connections", "database process")}
# The victim where the engine is on a Ray cluster, on any database, and how many nodes that has beside its head.
RAY_NODE, RAY_NODES = "Ray node", 2
LEASE_SECONDS = 5.0
JOB_SECONDS = 600.0
# No claim of how fast anything is: for so long is waited for what must happen, on however busy a machine.
PATIENCE_SECONDS = 120.0
MOMENT_SECONDS = 6.0
# Of a session's problems, each of its own: m is twice that and one.
SIZES = range(2, 200)
CHILDREN = {"measuring child": b"tirgemm.tuning.measure", "build child": b"tirgemm.tuning.build"}


class Records:
    """What is committed about one job, read past the service."""

    def __init__(self, database: Database, job_id: str, gemm: Gemm) -> None:
        self.database, self.job_id, self.gemm = database, job_id, gemm

    def candidates(self) -> dict[str, Candidate]:
        stored = SqlStore(self.database).candidates(self.gemm, self.job().request.device.key, "sustained")
        return {candidate.config.digest: candidate for candidate in stored}

    def lost_attempts(self) -> int:
        """How many candidates were begun and never recorded."""
        mine = select(GemmRow.id).where(GemmRow.text == str(self.gemm)).scalar_subquery()
        wanted = select(func.count()).select_from(AttemptRow).where(AttemptRow.gemm_id == mine)
        with self.database.read() as connection:
            return int(connection.execute(wanted.where(AttemptRow.recorded_at.is_(None))).scalar_one())

    def certified(self) -> bool:
        """Whether the job's kernel is stored with a certificate that passed."""
        kernel = SqlStore(self.database).kernel_by_id(self.job().kernel_id or "")
        return kernel is not None and kernel.certificate is not None and kernel.certificate.passed

    def events(self) -> list[StoredEvent]:
        """All but the counts of builds, which go when the job ends."""
        return [event for event in JobQueue(self.database).events(self.job_id) if event.kind != BuildsCounted.KIND]

    def job(self) -> Job:
        job = JobQueue(self.database).job(self.job_id)
        assert job is not None
        return job

    def wait_for_progress(self) -> None:
        """Until the job has begun and no death counts against it, or has ended: three deaths without a measurement
        between them would set it aside."""
        eventually(lambda: (job := self.job()).status in ENDED or (job.attempts <= 1 and self.events()), 40)


def lost(before: dict[str, Candidate], after: dict[str, Candidate]) -> list[str]:
    """What of ``before`` is not in ``after`` as it was; only the races after the search may have added samples."""
    wrong = []
    for digest, old in before.items():
        new = after.get(digest)
        if new is None:
            wrong.append(f"candidate {digest} is lost")
            continue
        kept = new.sample_sets[: len(old.sample_sets)]
        added = {samples.reason for samples in new.sample_sets[len(old.sample_sets) :]}
        same = (new.status, new.attempt, new.message) == (old.status, old.attempt, old.message)
        if not same or kept != old.sample_sets or not added <= {"selection", "report", "other_regime"}:
            wrong.append(f"candidate {digest} was changed")
    return wrong


def measured_twice(candidates: dict[str, Candidate]) -> list[str]:
    """The candidates that the search measured more than once."""
    return [
        f"candidate {digest} was measured again"
        for digest, candidate in candidates.items()
        if candidate.status is Status.MEASURED and [s.reason for s in candidate.sample_sets].count("search") > 1
    ]


class Deployment:
    """A service with its worker, on a database; ``restart`` starts it again where it has been killed. Its engine is
    this machine's, or on the Ray ``cluster``."""

    def __init__(self, folder: Path, postgres: PostgresServer | None = None, cluster: Any = None) -> None:
        self.folder, self.postgres, self.cluster = folder, postgres, cluster
        self.url = url = "" if postgres is None else postgres.url.replace("DATABASE", "postgres")
        self.server: Serve | None = None
        self.restart()
        self.database = Database(url, folder) if url else Database.embedded(folder)

    def restart(self) -> Serve:
        if self.server is None or self.server.process.poll() is not None:
            environment = {"TIRGEMM_DB": self.url} if self.url else {}
            options = ["--lease-seconds", f"{LEASE_SECONDS:g}", "--processes", "1"]
            if self.cluster is not None:
                options += ["--engine", "ray", "--address", self.cluster.address, "--devices", "cpu"]
            self.server = Serve(self.folder, *options, environment=environment)
        return self.server

    def submit(self, gemm: Gemm, trials: int) -> Records:
        """Ask for a kernel; the request is repeated where the service or its database is not back yet. Nodes that were
        killed are replaced first: a job ends on those that are left."""
        if self.cluster is not None:
            add_nodes(self.cluster, RAY_NODES)
        body: dict[str, Any] = {"gemm": str(gemm), "budget": {"trials": trials, "seconds": 60}}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                answer = httpx.post(
                    f"{self.restart().url}/v1/kernels",
                    json=body,
                    headers={"Prefer": "wait=0"},
                    timeout=PATIENCE_SECONDS,
                )
                if answer.status_code == 202:
                    return Records(self.database, answer.json()["job"]["id"], gemm)
                words = answer.text
            except httpx.HTTPError as error:
                words = str(error)
            if time.monotonic() > deadline:
                raise AssertionError(f"{gemm} is not taken: {words}")
            time.sleep(0.2)

    def close(self) -> None:
        self.database.close()
        if self.server is not None:
            self.server.kill_all()


def kill_victim(deployment: Deployment, victim: str, rng: random.Random) -> list[int] | None:
    """SIGKILL to the victim: the processes that have to end with it; None where it does not run at this moment."""
    server = deployment.restart()
    if victim == RAY_NODE:
        return kill_node(deployment.cluster, rng.choice(list(deployment.cluster.worker_nodes)))
    if victim in ("database connections", "database process"):
        return [] if _strike_database(deployment.url, victim) else None
    if victim in ("server", "everything"):
        left = descendants(server.process.pid)
        if victim == "everything":
            server.kill_all()
        else:
            server.process.kill()
            server.process.wait(PATIENCE_SECONDS)
        return left
    worker = server.worker_pid()
    if not worker:
        return None
    struck = [worker]
    if victim != "worker":
        struck = [pid for pid in descendants(worker) if CHILDREN[victim] in command_line(pid)]
    left = [pid for one in struck for pid in (one, *descendants(one))]
    for pid in struck:
        kill(pid)
    return left or None


def _strike_database(url: str, victim: str) -> bool:
    """End every connection of the service, or kill a process of the database: the server then restarts all of them."""
    folder = url.partition("host=")[2]
    with psycopg.connect(host=folder, user="tirgemm", dbname="postgres", autocommit=True) as connection:
        others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"
        if victim == "database connections":
            return bool(connection.execute(f"SELECT pg_terminate_backend(pid) {others}").fetchall())
        row = connection.execute(f"SELECT pid {others} ORDER BY random() LIMIT 1").fetchone()
    if row is None:
        return False
    kill(int(row[0]))
    return True


def one_run(deployment: Deployment, victim: str, gemm: Gemm, rng: random.Random) -> list[str]:
    """Kill ``victim`` once while the service makes the kernel of ``gemm``; what went wrong, a sentence each."""
    records = deployment.submit(gemm, 5)
    records.wait_for_progress()
    time.sleep(rng.uniform(0, MOMENT_SECONDS))
    before, events = records.candidates(), records.events()
    while (left := kill_victim(deployment, victim, rng)) is None and _patient(records.job).status != "done":
        time.sleep(0.05)
    wrong = survivors(left or (), f"the {victim}")
    wrong += lost(before, _patient(records.candidates))
    if _patient(records.events)[: len(events)] != events:
        wrong.append("events are lost")
    return [*wrong, *ended(deployment, records, before)]


def ended(deployment: Deployment, records: Records, before: dict[str, Candidate]) -> list[str]:
    """Wait for the end of a job; what is wrong with it, and with what was recorded ``before``, a sentence each."""
    deployment.restart()
    in_time, job = eventually(lambda: _patient(records.job).status in ENDED, JOB_SECONDS, 0.1), _patient(records.job)
    if not in_time:
        return [f"job {job.id} is still {job.status} after {JOB_SECONDS:g} s"]
    wrong = []
    if job.status != "done":
        wrong.append(f"job {job.id} ended as {job.status}: {job.error}")
    elif not _patient(records.certified):
        wrong.append(f"job {job.id} ended without a certified kernel")
    if (attempts := _patient(records.lost_attempts)) > 1:
        wrong.append(f"{attempts} attempts are lost; one was in flight at most")
    final = _patient(records.candidates)
    return [*wrong, *lost(before, final), *measured_twice(final), *_held(deployment)]


def _patient(read: Callable[[], Any]) -> Any:
    """What ``read`` gives, once the database answers again."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return read()
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def survivors(pids: Sequence[int], what: str, patience_s: float = PATIENCE_SECONDS) -> list[str]:
    """Of the processes that had to end with ``what`` those that run after so long."""
    eventually(lambda: not any(map(alive, pids)), patience_s)
    return [f"process {pid} ({command_line(pid)[:60]!r}) outlives {what}" for pid in pids if alive(pid)]


def _held(deployment: Deployment) -> list[str]:
    """The device locks that somebody holds although no job runs."""
    wrong = []
    for path in sorted((deployment.folder / "locks").glob("*.lock")):
        if path.name.startswith("worker-"):
            continue
        lock = FileLock(path)
        try:
            lock.acquire(timeout_s=PATIENCE_SECONDS)
            lock.release()
        except AlreadyRunning as error:
            wrong.append(f"a lock is left: {error}")
    return wrong


@contextmanager
def deployed(kind: str, *, on_ray: bool = False) -> Iterator[Deployment]:
    """A fresh service on a database of that kind, in a folder that is deleted at the end; ``on_ray``: on a Ray cluster
    of its own, which only the main thread may start."""
    folder = Path(tempfile.mkdtemp(prefix="tirgemm-kills-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = None if kind == "sqlite" else stack.enter_context(running(find_programs(), DURABLE))
        cluster = stack.enter_context(running_cluster(RAY_NODES)) if on_ray else None
        deployment = Deployment(folder, server, cluster)
        stack.callback(deployment.close)
        yield deployment


@dataclass(frozen=True)
class KillSession:
    """Some runs on one deployment: with one of ``victims`` each, drawn anew."""

    kind: str
    runs: int
    seed: int
    victims: tuple[str, ...]

    @property
    def on_ray(self) -> bool:
        return self.victims == (RAY_NODE,)


def sessions(runs: int, length: int, seed: int, *, on_ray: bool) -> list[KillSession]:
    """``runs`` as sessions of at most ``length``, on each kind of database in turn."""
    rng, kinds = random.Random(seed), itertools.cycle(VICTIMS)
    return [
        KillSession(kind, min(length, runs - begun), rng.randrange(2**31), (RAY_NODE,) if on_ray else VICTIMS[kind])
        for begun, kind in zip(range(0, runs, length), kinds, strict=False)
    ]


def campaign(session: KillSession, proofs: ProofsFile, stop: threading.Event) -> int:
    """The runs of a session, each noted in ``proofs`` as it ends, until ``stop``: how many went wrong."""
    if stop.is_set():
        return 0
    rng, failed = random.Random(session.seed), 0
    with deployed(session.kind, on_ray=session.on_ray) as deployment:
        sizes = rng.sample(SIZES, session.runs)
        for number, size in enumerate(sizes, 1):
            victim = rng.choice(session.victims)
            gemm = Gemm(2 * size + 1, 27, 29, dtype="f32", layout="nn")
            began = time.monotonic()
            wrong = one_run(deployment, victim, gemm, rng)
            proofs.count(f"kill -9, {session.kind}: {victim}", wrong, time.monotonic() - began)
            failed += bool(wrong)
            told = "; ".join(wrong) or "held"
            print(f"{session.kind} {number} of {session.runs}: {victim}, {gemm}: {told}", flush=True)
            if stop.is_set():
                break
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__, "--fresh", "--commit", "--out")
    parser.add_argument("--runs", type=int, default=20, help="in all, half of them on each database")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--session", type=int, default=10, help="runs in one deployment, then a fresh one")
    parser.add_argument("--deployments", type=int, default=1, help="so many side by side")
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help=f"ray: the victim is a {RAY_NODE}")
    options = parser.parse_args(arguments)
    on_ray = options.engine == "ray"
    if not 1 <= options.session <= len(SIZES):
        raise InvalidRequest(f"--session is {options.session}; a deployment has 1 to {len(SIZES)} runs")
    if on_ray and options.deployments > 1:
        raise InvalidRequest(
            "--deployments is more than 1; only the main thread may start a Ray cluster, so it must be 1"
        )
    # What was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    proofs, stop = ProofsFile(options.out, commit=options.commit, fresh=options.fresh), threading.Event()
    planned = sessions(options.runs, options.session, options.seed, on_ray=on_ray)
    if options.deployments == 1:
        return int(sum(campaign(session, proofs, stop) for session in planned) > 0)
    with ThreadPoolExecutor(options.deployments) as threads:
        futures = [threads.submit(campaign, session, proofs, stop) for session in planned]
        try:
            return int(sum(future.result() for future in futures) > 0)
        finally:
            stop.set()


if __name__ == "__main__":
    sys.exit(command.run(main))
