"""``/metrics``: figures of this service and its database for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from tirgemm.service.http.state import State

router = APIRouter(tags=["service"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The figures."}},
)
async def metrics(state: State) -> Response:
    """Requests, hits, live jobs by state, trials and builds by status, ages of leases and workers, in the text format
    of Prometheus."""
    return Response(await state.metrics.text(), headers={"Cache-Control": "no-store"}, media_type=CONTENT_TYPE_LATEST)
