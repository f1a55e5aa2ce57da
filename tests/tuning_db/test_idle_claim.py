"""What a worker without a job asks of the database many times a minute."""

from __future__ import annotations

from pathlib import Path

from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning_db import Database, JobQueue, JobRequest

H200 = named_device("sm_90a")


def test_a_claim_where_no_job_is_live_waits_for_no_writer(tmp_path: Path) -> None:
    with Database.embedded(tmp_path) as database:
        queue = JobQueue(database)
        job = queue.submit(JobRequest(Gemm(3, 5, 7), H200, trials=1, seconds=1.0))[0].id
        queue.cancel(job)
        with database.write():
            assert queue.claim("me", [H200.key], 5.0) is None
        again = queue.submit(JobRequest(Gemm(3, 5, 7), H200, trials=1, seconds=1.0))[0].id
        claimed = queue.claim("me", [H200.key], 5.0)
        assert claimed is not None
        assert claimed.id == again
