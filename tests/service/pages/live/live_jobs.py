"""Jobs that wait or run, for the tests of live pages, and browsers that are signed in."""

from __future__ import annotations

from typing import Any

from tests.service.pages.browser import Browser
from tests.service.pages.search_events import search_events
from tests.service.support import CPU, Service
from tirgemm.gemm import Gemm
from tirgemm.timings import BaselineTime, Timing
from tirgemm.tuning_db import Job, JobRequest
from tirgemm.tuning_db.access.api_keys import KeyTable

GEMM = Gemm.parse("1023x1021x1027:f16:nt")

WORKER = "elsewhere:1:0"


def queued(service: Service, gemm: Gemm = GEMM, **request: Any) -> Job:
    return service.queue.submit(JobRequest(gemm, CPU, **request))[0]


def running(service: Service, count: int = 24) -> Job:
    """A job that a worker holds, and that has told of ``count`` candidates."""
    job = queued(service, trials=64)
    assert service.queue.claim(f"{WORKER}.0", [CPU.key], 60.0) is not None
    for event in search_events(count):
        service.queue.add_event(job.id, event)
    return job


def timing(us: float, default_us: float, baseline_us: float = 30.0) -> Timing:
    beside = {"default": default_us, "torch.matmul": baseline_us, "slow": 2 * baseline_us}
    return Timing(us, 50, {name: BaselineTime(theirs, theirs / us) for name, theirs in beside.items()})


def signed_in(service: Service, browser: Browser, scope: Any, name: str = "somebody") -> str:
    """Sign in with a new key of a scope; its id."""
    key, secret = KeyTable(service.state.database).create(name, scope)
    service.state.access.read()
    assert browser.sign_in(secret).status_code == 303
    return key.id
