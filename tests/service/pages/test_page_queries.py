"""How pages read the database: by indexes, so that they stay quick with a hundred thousand kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.helpers import recorded_space
from tests.service.pages.page_records import searched_kernel
from tests.service.pages.query_plans import QueryPlan, query_plans
from tests.service.support import CPU, Service, serving
from tirgemm.gemm import Gemm
from tirgemm.tuning_db import JobRequest
from tirgemm.tuning_db.queue.batches import WantedProblem

# Tables with long rows, many for each problem, or both. The rest may be walked through.
_LARGE = "attempts|candidates|events|jobs|kernel_documents|kernels|sample_sets"


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with two kernels, two jobs, one of them a batch's, and a space; tests only look."""
    with serving(tmp_path_factory.mktemp("stocked"), worker=False) as service:
        for m in (129, 131):
            searched_kernel(service.store, f"{m}x67x31:f16:nt")
        service.queue.submit(JobRequest(Gemm.parse("7x67x31:f16:nt"), CPU))
        service.state.batches.submit([WantedProblem(JobRequest(Gemm.parse("9x67x31:f16:nt"), CPU))], asked=1)
        recorded_space.record(service.state.database, recorded_space.every())
        yield service


def _faults(plan: QueryPlan) -> list[str]:
    """Steps whose time grows with a large table: reading it without an index to its end, sorting it for one page."""
    is_sorted = "USE TEMP B-TREE FOR ORDER BY" in plan.steps
    stops = "LIMIT" in plan.statement and not is_sorted
    faults = [step for step in plan.steps if "AUTOMATIC" in step or (re.match(f"SCAN ({_LARGE})", step) and not stops)]
    return faults + ["the list of jobs is sorted"] * (is_sorted and "FROM jobs" in plan.statement)


@pytest.mark.parametrize(
    "page",
    [
        "/",
        "/kernels",
        "/kernels?sort=us&role=tuned&shape=n%3D67",
        "/kernels/{kernel}",
        "/compare?kernel={kernel}&kernel={other}",
        "/jobs",
        "/jobs?status=queued",
        "/jobs?status=done&device=cpu",
        "/jobs/{job}",
        "/models",
        "/models/{batch}",
        "/spaces",
        "/spaces?family=mma&dtype=bf16&gemm=129x",
        "/spaces/{space}",
        "/fleet",
        "/metrics",
    ],
)
def test_a_page_reads_large_tables_by_their_indexes(stocked: Service, page: str) -> None:
    other, kernel = (each["id"] for each in stocked.http.get("/v1/kernels").json()["kernels"])
    job = stocked.queue.jobs()[0].id
    batch = stocked.state.batches.batches()[0].id
    path = page.format(kernel=kernel, other=other, job=job, batch=batch, space=recorded_space.GEMM)
    with query_plans(stocked.state.database) as plans:
        answer = stocked.http.get(path)
    assert answer.status_code == 200, answer.text
    assert any(plan.steps for plan in plans)
    faults = {plan.statement: _faults(plan) for plan in plans if _faults(plan)}
    assert not faults
