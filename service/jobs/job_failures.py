"""``JobFailures``: a worker's counts of failed attempts by job, which bound how often it tries a job again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tirgemm.status import LIVE
from tirgemm.tuning_db import JobQueue


@dataclass(slots=True)
class JobFailures:
    """How often the database, and the device or the machine, have failed each job, and the ``hopeless`` waiting jobs,
    whose fallback cannot be built."""

    of_store: Counter[str] = field(default_factory=Counter)
    of_device: Counter[str] = field(default_factory=Counter)
    hopeless: set[str] = field(default_factory=set)

    def forget(self, job_id: str) -> None:
        """Forget one job: where it is put back it begins anew."""
        self.hopeless.discard(job_id)
        for counter in (self.of_store, self.of_device):
            counter.pop(job_id, None)

    def forget_ended(self, queue: JobQueue) -> None:
        """Forget the jobs that have ended, also under other workers; hopeless are only those that wait. Raises
        StoreError."""
        known = list(self.hopeless | self.of_store.keys() | self.of_device.keys())
        progress = queue.progress(known) if known else {}
        live = {job_id: job.status for job_id, job in progress.items() if job.status in LIVE}
        for job_id in known:
            if job_id not in live:
                self.forget(job_id)
            elif live[job_id] == "running":
                self.hopeless.discard(job_id)
