"""The documents of the live pages: of jobs, batches, the fleet and the front page."""

from __future__ import annotations

from typing import ClassVar

from markupsafe import Markup
from pydantic import BaseModel

from tirgemm.events import Phase
from tirgemm.service.http.batch_documents import BatchList, BatchSummary
from tirgemm.service.http.documents import JobDocument, JobList
from tirgemm.service.views.fleet_view import FleetView
from tirgemm.service.views.job_history import FinalistRace, JobHistory
from tirgemm.service.views.job_pictures import (
    FAILURE_MARKS,
    MARKS,
    failures,
    prediction_picture,
    race_picture,
    timeline_picture,
)
from tirgemm.service.views.model_layers import ModelLayers
from tirgemm.service.views.service_overview import ServiceOverview
from tirgemm.service.views.spaces.listing import candidate_url
from tirgemm.status import LIVE, JobStatus


class JobsPage(JobList):
    """A page of jobs, and the filters that it was made by; ``newer``: whether it is not the first."""

    shape: str
    device: str
    status: JobStatus | None
    newer: bool


class JobPage(BaseModel):
    """A job, with what it has done so far. ``may_change``: whether the caller may cancel it, ``may_ask``: ask for more;
    the budget that the form offers, and what a request may ask for at most."""

    job: JobDocument
    history: JobHistory
    may_change: bool
    may_ask: bool
    offered_trials: int
    offered_seconds: float
    max_trials: int
    max_seconds: float
    # For the page: the phases in words, and the outlines of the marks of families and of what failed.
    phases: ClassVar[dict[str, str]] = {phase.value: phase.words for phase in Phase}
    marks: ClassVar[tuple[str, ...]] = MARKS
    failure_marks: ClassVar[dict[str, str]] = FAILURE_MARKS

    @property
    def live(self) -> bool:
        """Whether the job may still change."""
        return self.job.status in LIVE

    def candidate_url(self, digest: str) -> str:
        """The address of the candidate whose config has the hash ``digest``."""
        return candidate_url(self.job.gemm, self.job.device.key, self.job.regime, digest)

    @property
    def clocks(self) -> list[float]:
        """The clocks that candidates were measured under, in MHz."""
        return [point.clock_mhz for point in self.history.candidates if point.clock_mhz]

    @property
    def powers(self) -> list[float]:
        """The highest power while each candidate was measured, in watts."""
        return [point.power_w for point in self.history.candidates if point.power_w]

    @property
    def failed_counts(self) -> dict[str, int]:
        """How many candidates have no time, by such a status."""
        return {status: len(points) for status, points in failures(self.history).items()}

    @property
    def timeline(self) -> Markup:
        return timeline_picture(self.history)

    @property
    def predictions(self) -> Markup:
        return prediction_picture(self.history)

    @property
    def races(self) -> list[tuple[FinalistRace, Markup]]:
        """The races with their pictures."""
        return [(race, race_picture(race.entries)) for race in self.history.races]


class ModelsPage(BatchList):
    """A page of batches; ``newer``: whether it is not the first."""

    newer: bool


class ModelPage(BaseModel):
    """A batch, with what each of its problems is answered with now. ``may_change``: whether the caller may cancel
    it."""

    batch: BatchSummary
    model: ModelLayers
    may_change: bool


class HitCounts(BaseModel):
    """How many requests for kernels this server has answered since its start: from memory and from the database, which
    are hits, and with a job."""

    memory: int
    database: int
    job: int


class FleetPage(BaseModel):
    """The workers, the queue, and rates."""

    fleet: FleetView
    answers: HitCounts


class FrontPage(BaseModel):
    """What this service is and has, and its address. ``may_tune``: whether the caller may ask for kernels."""

    version: str
    url: str
    overview: ServiceOverview
    fleet: FleetView
    may_tune: bool
