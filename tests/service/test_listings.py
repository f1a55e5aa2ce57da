"""Listings by pages: each kernel and job once, and no kernel rendered twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.support import CPU, Service, kernel_record
from tirgemm.gemm import Gemm
from tirgemm.service.http.kernel_cache import kernel_documents
from tirgemm.service.http.kernel_cache.kernel_documents import KernelDocuments
from tirgemm.service.http.kernel_pages import KernelPages
from tirgemm.service.views.queries import KernelFilter
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import JobRequest
from tirgemm.tuning_db.answers.kernel_document import render


def stored(service: Service, count: int) -> list[str]:
    """Ids of new kernels, newest first."""
    gemms = [Gemm.parse(f"{129 + number}x67x31") for number in range(count)]
    return [kernel_record(service.store, JobRequest(gemm, CPU)).id for gemm in gemms][::-1]


def pages(service: Service, path: str, limit: int) -> list[list[str]]:
    """The ids of all pages of a listing."""
    actual, after = [], ""
    while True:
        page = service.http.get(path, params={"limit": limit} | ({"after": after} if after else {})).json()
        actual.append([each["id"] for each in page[path.rsplit("/", 1)[1]]])
        if page["next"] is None:
            return actual
        after = page["next"]


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the kernels whose documents are made, from now on."""
    ids: list[str] = []

    def counted(record: KernelRecord) -> str:
        ids.append(record.id)
        return render(record)

    monkeypatch.setattr(kernel_documents, "render", counted)
    return ids


def test_pages_hold_every_kernel_once_newest_first(service: Service) -> None:
    ids = stored(service, 7)
    assert pages(service, "/v1/kernels", 3) == [ids[:3], ids[3:6], ids[6:]]
    assert pages(service, "/v1/kernels", 7) == [ids]
    assert service.http.get("/v1/kernels?limit=1").json()["kernels"][0] == (
        service.http.get(f"/v1/kernels/{ids[0]}").json()
    )


def test_pages_hold_every_job_once_newest_first(service: Service) -> None:
    requests = [JobRequest(Gemm.parse(f"{129 + number}x67x31"), CPU) for number in range(5)]
    ids = [service.queue.submit(request)[0].id for request in requests][::-1]
    assert pages(service, "/v1/jobs", 2) == [ids[:2], ids[2:4], ids[4:]]
    answer = service.http.get("/v1/jobs?after=abcdef")
    assert (answer.status_code, answer.json()["code"]) == (404, "page_not_found")


def without_texts(service: Service) -> None:
    """Take away the documents that are stored with the kernels."""
    with service.state.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM kernel_documents")


def test_kernels_are_listed_as_their_documents_are_stored(service: Service, rendered: list[str]) -> None:
    ids = stored(service, 5)
    assert service.http.put(f"/v1/kernels/{ids[1]}/pin").status_code == 200
    with service.state.database.write() as connection:  # as damage would
        connection.exec_driver_sql("UPDATE kernel_documents SET json = replace(json, '12.5', '11.5') WHERE seq = 1")
    rendered.clear()
    listed = service.http.get("/v1/kernels?limit=5").json()["kernels"]
    assert [each["id"] for each in listed] == ids
    assert rendered == [ids[4]], "what is damaged is rendered again"
    assert [each["pinned"] for each in listed] == [False, True, False, False, False]
    assert listed == [service.http.get(f"/v1/kernels/{each}").json() for each in ids]


def test_a_kernel_is_rendered_once_however_often_it_is_listed(service: Service, rendered: list[str]) -> None:
    ids = stored(service, 5)
    without_texts(service)
    for _ in range(3):
        assert pages(service, "/v1/kernels", 2) == [ids[:2], ids[2:4], ids[4:]]
    assert sorted(rendered) == sorted(ids)
    newer = stored(service, 1)
    without_texts(service)
    assert service.http.delete(f"/v1/kernels/{ids[1]}").status_code == 204
    assert pages(service, "/v1/kernels", 10) == [[*newer, ids[0], *ids[2:]]], "what is deleted is listed no more"
    assert len(rendered) == 6


def test_what_is_kept_of_listings_is_bounded(service: Service, rendered: list[str]) -> None:
    ids = stored(service, 4)
    without_texts(service)

    def listed(kept: KernelPages, limit: int) -> list[Any]:
        return [each["id"] for each in json.loads(kept.page(KernelFilter(), "", limit))["kernels"]]

    database = service.state.database
    one = len(KernelPages(database, KernelDocuments()).page(KernelFilter(), "", 1))
    kept = KernelPages(database, KernelDocuments(kept_bytes=2 * one))
    rendered.clear()
    assert listed(kept, 4) == listed(kept, 4) == ids
    assert len(rendered) > 4, "not all of them are kept"
    rendered.clear()
    assert listed(kept, 1) == ids[:1]
    assert listed(kept, 1) == ids[:1]
    assert len(rendered) <= 1
