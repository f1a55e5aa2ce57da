"""The two operations that others wait for: recording a candidate, and looking a kernel up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.storage.databases import DEVICE, GEMM, candidate, kernel
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore
from tirgemm.tuning_db.queue.batches import BatchTable, WantedProblem


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with Database.embedded(tmp_path) as database:
        yield SqlStore(database)


def quickest_ms(act: Callable[[int], object]) -> float:
    """The best of 30: what the operation costs when nothing else runs."""
    times = []
    for number in range(30):
        start = time.perf_counter()
        act(number)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


@pytest.mark.timing
def test_recording_a_candidate_takes_less_than_5_ms(store: SqlStore) -> None:
    trace = [[["SampleCategorical", [], [[0, 1, 2], [0.3, 0.3, 0.4]], [f"v{number}"]] for number in range(20)], []]
    taken = SampleSet(tuple(10.0 + number / 7 for number in range(101)))
    assert quickest_ms(lambda n: store.add_candidate(candidate(n, trace=trace, sample_sets=(taken,)))) < 5


@pytest.mark.timing
def test_looking_a_kernel_up_takes_less_than_2_ms(store: SqlStore) -> None:
    for number in range(50):
        store.put_kernel(kernel(gemm=GEMM.with_(m=number + 1)))
    assert quickest_ms(lambda _: store.kernel(GEMM, DEVICE.key, "sustained")) < 2


def test_a_claim_looks_at_no_more_rows_where_many_jobs_wait(tmp_path: Path) -> None:
    """By the steps of SQLite's machine: every claim holds its one lock."""
    with Database.embedded(tmp_path) as database:
        queue, batches, steps = JobQueue(database), BatchTable(database), list[int]()
        for jobs in (range(1, 21), range(21, 1021), range(1021, 2021)):
            wanted = [WantedProblem(JobRequest(GEMM.with_(m=m), DEVICE)) for m in jobs]
            batches.submit(wanted, asked=len(wanted))
            counted = [0]

            def count(counted: list[int] = counted) -> None:
                counted[0] += 1

            with database.engine.connect() as connection:
                raw = connection.connection.driver_connection
            assert raw is not None
            raw.set_progress_handler(count, 10)
            assert queue.claim("w", [DEVICE.key], 60.0) is not None
            raw.set_progress_handler(None, 0)
            steps.append(counted[0])
    assert steps[2] < 2 * steps[0] + 100, f"tens of steps with 20, 1,020 and 2,020 jobs: {steps}"
