"""``/fleet``: the workers, what each of their devices does now, the queue, and rates; and ``/``, the front page."""

from __future__ import annotations

from fastapi import APIRouter, Response

from tirgemm._version import __version__
from tirgemm.service.http.pages.live_documents import FleetPage, FrontPage, HitCounts
from tirgemm.service.http.pages.site import HTML, OwnSite
from tirgemm.service.http.state import Caller, State
from tirgemm.service.views.fleet_view import read_fleet

router = APIRouter(tags=["pages"])


@router.get("/fleet", response_model=FleetPage, responses=HTML)
def fleet_page(site: OwnSite, state: State) -> Response:
    """The workers and what each of their devices does now, the queue, trials and builds a minute, hits."""
    fleet = read_fleet(state.queue, state.settings.alive_seconds)
    answers = HitCounts(**state.metrics.answered())
    return site.answer("fleet.html", "Fleet", FleetPage(fleet=fleet, answers=answers))


@router.get("/", response_model=FrontPage, responses=HTML)
def front_page(site: OwnSite, state: State, caller: Caller) -> Response:
    """What this service is and has: kernels, devices, gains, the newest kernels, running jobs."""
    document = FrontPage(
        version=__version__,
        url=site.service_url,
        overview=state.overview.read(),
        fleet=read_fleet(state.queue, state.settings.alive_seconds),
        may_tune=caller is None or caller.allows("tune"),
    )
    return site.answer("front.html", "Fast, verified matrix-multiply kernels", document)
