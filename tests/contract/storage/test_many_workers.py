"""Workers side by side whose clocks are hours apart, some of them taken for dead in the middle of a search: each
candidate is measured once."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.storage.databases import PostgresDatabases
from tests.helpers.fake_workbench import CPU, FakeBench, FakeMeasurer
from tests.helpers.toy_family import Toy
from tests.waiting import PATIENCE_S, until
from tirgemm.config import Config, Knob
from tirgemm.device import Device
from tirgemm.families import FAMILIES
from tirgemm.gemm import Gemm
from tirgemm.service.jobs.engine import TunerImports, TuningEngine
from tirgemm.service.jobs.worker import Worker
from tirgemm.service.jobs.worker_names import owner_name
from tirgemm.tuning import tune, tuning_task
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore

TRIALS = 6


class SmallFamily(Toy):
    """Sixteen configs for any device: to choose among them takes no time."""

    rules = ()

    def __init__(self) -> None:
        super().__init__("small", (Knob("block_m", (64, 16, 32, 128)), Knob("block_n", (64, 16, 32, 128))))

    def predict_us(self, gemm: Gemm, config: Config, device: Device, regime: str) -> float:  # noqa: ARG002
        return float(config["block_m"] + config["block_n"])


class Evaluations:
    """What all workers measured for their searches, in order, and what had a record before that was begun."""

    def __init__(self, after: Callable[[int, str], None]) -> None:
        self.each: list[tuple[str, str]] = []
        self.again: list[tuple[str, str]] = []
        self._after = after
        self._count = itertools.count(1)

    def note(self, bench: CountedBench, package: bytes) -> None:
        """Before a candidate of a worker is measured."""
        manifest = bench.fake.manifest(package)
        named = (str(manifest.gemm), manifest.config.digest)
        stored = bench.store.candidates(manifest.gemm, CPU.key, "sustained")
        if manifest.config.digest in [candidate.config.digest for candidate in stored]:
            self.again.append(named)
        self.each.append(named)
        self._after(next(self._count), str(manifest.gemm))


class CountedMeasurer(FakeMeasurer):
    seconds = 0.0

    def evaluate(self, package: bytes, regime: str, **options: Any) -> Any:
        assert isinstance(self.bench, CountedBench)
        self.bench.evaluations.note(self.bench, package)
        return super().evaluate(package, regime, **options)


class CountedBench(FakeBench):
    def __init__(self, store: SqlStore, evaluations: Evaluations) -> None:
        super().__init__(store=store)
        self.evaluations = evaluations
        self.fake = self.measurer = CountedMeasurer(self)

    def warm(self) -> None:
        """Nothing is to be loaded."""


class OneDevice:
    """A fleet of one engine, on a workbench that compiles nothing."""

    def __init__(self, bench: CountedBench, imports: TunerImports) -> None:
        def opened(_device: Device) -> CountedBench:
            return bench

        self._engine = TuningEngine(CPU, opened, imports)

    def engines(self) -> list[TuningEngine]:
        return [self._engine]

    def close(self) -> None:
        """Nothing was started."""


@pytest.mark.parametrize(("kind", "count"), [("sqlite", 2), ("postgresql", 10)])
def test_no_candidate_is_measured_twice(
    kind: str, count: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, now = tmp_path / "data", time.time
    monkeypatch.setitem(FAMILIES, "small", SmallFamily())
    for module in (tune, tuning_task):
        monkeypatch.setattr(module, "chosen_families", lambda *_: (FAMILIES["small"],))
    hours, own = itertools.cycle((-2, 1, 0, 2, -1)), threading.local()

    def wrong() -> float:
        """The time by the clock of a thread: each new one's is hours from the one's before it."""
        if not hasattr(own, "hours"):
            own.hours = next(hours)
        return now() + 3600 * float(own.hours)

    monkeypatch.setattr(time, "time", wrong)
    url = ""
    if kind == "postgresql":
        postgres: PostgresDatabases = request.getfixturevalue("postgres")
        url = postgres.migrated(folder)
    databases = [Database(url, folder) if url else Database.embedded(folder) for _ in range(count)]
    queue = JobQueue(databases[0])
    gemms = [Gemm.parse(f"{m}x67x31:f32:nt") for m in (129, 131)]
    jobs = {gemm: queue.submit(JobRequest(gemm, CPU, trials=TRIALS, seconds=600.0))[0].id for gemm in gemms}
    deaths, one_at_a_time = list[str](), threading.Lock()

    def die(number: int, gemm: str) -> None:
        """Whoever is at the fourth and the eighth candidate, or at one behind it where the job's row is locked at that
        moment, is taken for dead, and goes on all the same."""
        with one_at_a_time:
            job = queue.job(jobs[Gemm.parse(gemm)])
            if len(deaths) < 2 and number >= 4 * (len(deaths) + 1) and job is not None and job.owner:
                dead = queue.declare_dead(job.owner)
                assert dead in ([], [job.id])
                deaths.extend(dead)

    evaluations, imports = Evaluations(die), TunerImports()
    workers = [
        # Each of a host of its own: one that starts takes those of its process that held a job before it for dead.
        Worker(
            JobQueue(database),
            store,
            OneDevice(CountedBench(store, evaluations), imports),
            lease_s=600.0,
            name=owner_name(host=f"host{number}"),
        )
        for number, (database, store) in enumerate((each, SqlStore(each)) for each in databases)
    ]
    threads = [threading.Thread(target=worker.run, name=worker.name) for worker in workers]
    for thread in threads:
        thread.start()
    until(lambda: all((job := queue.job(each)) is not None and job.ended for each in jobs.values()))
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join(PATIENCE_S)
    ended = [job for each in jobs.values() if (job := queue.job(each)) is not None]
    assert [(job.status, job.error) for job in ended] == [("done", None)] * len(jobs)
    assert len(deaths) == 2
    assert evaluations.again == [], "it had a record"
    store = SqlStore(databases[0])
    stored = [candidate for gemm in gemms for candidate in store.candidates(gemm, CPU.key, "sustained")]
    searches = [[samples.reason for samples in candidate.sample_sets].count("search") for candidate in stored]
    assert max(searches) == 1
    assert sum(Counter(evaluations.each).values()) <= len(stored) + len(deaths), "a death costs the one in flight"
    for each in databases:
        each.close()
