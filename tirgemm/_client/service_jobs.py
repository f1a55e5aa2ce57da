"""``ServiceJobs``: the jobs of a service, listed, followed, cancelled, put back, put in another order."""

from __future__ import annotations

from collections.abc import Iterator

from tirgemm._client.arguments import listing_filters
from tirgemm._client.http import ServiceConnection
from tirgemm._client.resource_path import path_of
from tirgemm._client.server_events import ReceivedEvent
from tirgemm._client.service_documents import JOB, Document, documents
from tirgemm._client.watch import watch
from tirgemm.device import Device
from tirgemm.gemm import Gemm


class ServiceJobs:
    """What ``Client`` does with jobs that there are. Methods raise InvalidRequest for what is no id, ServiceError and
    ServiceUnreachable."""

    _session: ServiceConnection

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._session.url

    def jobs(
        self,
        limit: int = 100,
        *,
        gemm: Gemm | str | None = None,
        device: Device | str | None = None,
        status: str | None = None,
    ) -> list[Document]:
        """The newest jobs of the service, at most ``limit`` (up to 1000); where given only those of this problem,
        device, status."""
        params = listing_filters(gemm, device) | {"limit": limit} | ({"status": status} if status is not None else {})
        return documents(self._session.request("GET", "/v1/jobs", params=params).body, "jobs", self.url, JOB)

    def job(self, job_id: str) -> Document:
        """The job document."""
        return self._session.document("GET", path_of("jobs", job_id), JOB)

    def cancel(self, job_id: str) -> Document:
        """Cancel a job; the job document. What it has measured stays recorded."""
        return self._session.document("DELETE", path_of("jobs", job_id), JOB)

    def retry(self, job_id: str, reason: str = "") -> Document:
        """Put a job that failed or was cancelled back into the queue, to go on from its records; the job document."""
        return self._session.document("POST", path_of("jobs", job_id, "/retry"), JOB, body={"reason": reason})

    def prioritise(self, job_id: str, priority: int) -> Document:
        """Give a queued job another place in the queue, higher first; the job document."""
        return self._session.document("PATCH", path_of("jobs", job_id), JOB, body={"priority": priority})

    def events(self, job_id: str, after: int = 0) -> Iterator[ReceivedEvent]:
        """The job's events from behind the event ``after``, each once, until it is finished.

        A lost stream is resumed where it broke; where there is no stream (a proxy swallows it) the job is polled, and
        what is polled comes as an event of kind ``job`` with the job document.
        """
        return watch(self._session, job_id, after)
