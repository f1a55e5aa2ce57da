"""``/kernels/{kernel_id}/timeline``: what each warpgroup of a kernel does over time, as it was recorded."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel

from tirgemm.errors import InvalidRequest
from tirgemm.families import families
from tirgemm.families.base import WithTimeline
from tirgemm.service.explain.kernel_timeline import (
    DrawnTimeline,
    drawn_timeline,
    recording_place,
    similar_timeline,
)
from tirgemm.service.http.pages.site import HTML, OwnSite
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.routes.kernels import kernel_record
from tirgemm.service.http.routes.parameters import ONLY_KNOWN
from tirgemm.service.http.state import ServiceState, State
from tirgemm.tuning.records import KernelRecord

router = APIRouter(tags=["pages"])


class TimelineDocument(BaseModel):
    """The timeline of a kernel. Without a recording ``reason`` says why, ``command`` records one, where its family has
    time stamps, for ``place`` in the service's data folder, and ``illustration``, of such a family alone, is one that
    comes with the package, of the problem nearest to this one."""

    kernel: str
    gemm: str
    device: str
    family: str
    recording: DrawnTimeline | None
    trace: str | None
    command: str | None
    place: str
    reason: str | None
    illustration: DrawnTimeline | None


@router.get("/kernels/{kernel_id}/timeline", response_model=TimelineDocument, responses=HTML, dependencies=[ONLY_KNOWN])
def timeline_page(kernel_id: str, site: OwnSite, state: State) -> Response:
    """What each warpgroup of each block of a kernel does over time, where that was recorded; else how to record it."""
    document = _timeline(state, kernel_id)
    return site.answer("timeline.html", f"Timeline of kernel {document.kernel}", document)


@router.get(
    "/kernels/{kernel_id}/timeline/trace",
    response_class=Response,
    dependencies=[ONLY_KNOWN],
    responses={200: {"description": "Chrome trace events.", "content": {"application/json": {}}}},
)
def get_timeline_trace(kernel_id: str, state: State) -> Response:
    """The recording as a file that ui.perfetto.dev and chrome://tracing open: a process a block, a thread a
    warpgroup."""
    record = kernel_record(state, kernel_id)
    drawn = drawn_timeline(state.settings.data, record)
    if drawn is None:
        raise Problem(404, f"the timeline of kernel {record.id} was not recorded", "not_found")
    name = f"{record.id}.trace.json"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(drawn.trace, headers=headers, media_type="application/json")


def _timeline(state: ServiceState, kernel_id: str) -> TimelineDocument:
    record = kernel_record(state, kernel_id)
    drawn, unable = None, _unrecordable(record)
    reason = unable or "it was not recorded yet"
    try:
        drawn = None if unable else drawn_timeline(state.settings.data, record)
    except InvalidRequest as error:
        reason = str(error)
    place = recording_place(state.settings.data, record.id)
    return TimelineDocument(
        kernel=record.id,
        gemm=str(record.gemm),
        device=record.device.key,
        family=record.config.family,
        recording=drawn,
        trace=None if drawn is None else f"/kernels/{record.id}/timeline/trace",
        command=None if unable else f"tirgemm explain --kernel {record.id} --timeline {place.name}",
        place=f"{place.parent.name}/{place.name}",
        reason=None if drawn is not None else reason,
        illustration=None if unable or drawn is not None else similar_timeline(record.gemm),
    )


def _unrecordable(record: KernelRecord) -> str | None:
    """Why a kernel can have no recording; None where it can."""
    able = [name for name, family in families().items() if isinstance(family, WithTimeline)]
    if record.config.family in able:
        return None
    return f"kernels of family {record.config.family} have no time stamps; families that have them: {', '.join(able)}"
