"""``/v1/batches``: problems that are asked for together, looked at, followed and cancelled as one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from tirgemm.service.http.batch_documents import BatchDocument, BatchList, BatchRequest, BatchSummary
from tirgemm.service.http.batch_requests import answer_batch
from tirgemm.service.http.events import Follower, stream_batch
from tirgemm.service.http.key_check import require_still_admitted
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.routes.jobs import After, Beats
from tirgemm.service.http.routes.parameters import JSON_BODY, ONLY_KNOWN, PageAfter, RepeatableId, require_own
from tirgemm.service.http.state import Caller, State
from tirgemm.status import ENDED_BATCH
from tirgemm.tuning_db.queue.batch_totals import BatchTotals
from tirgemm.tuning_db.queue.batches import Batch
from tirgemm.tuning_db.record_values import RECORD_ID

router = APIRouter(prefix="/v1/batches", tags=["batches"])


def _batch(batch_id: str, state: State) -> Batch:
    return _there(batch_id, state.batches.batch(batch_id) if RECORD_ID.fullmatch(batch_id) else None)


def _totals(batch_id: str, state: State) -> BatchTotals:
    return _there(batch_id, state.batches.totals([batch_id]).get(batch_id) if RECORD_ID.fullmatch(batch_id) else None)


B = TypeVar("B", bound=BatchTotals)


def _there(batch_id: str, batch: B | None) -> B:
    if batch is None:
        raise Problem(404, f"there is no batch {batch_id[:64]!r}; GET /v1/batches lists them", "batch_not_found")
    return batch


NamedBatch = Annotated[Batch, Depends(_batch)]
NamedTotals = Annotated[BatchTotals, Depends(_totals)]


@router.post(
    "",
    dependencies=[JSON_BODY],
    response_model=BatchDocument,
    responses={
        200: {"description": "Every kernel was there, or the batch that this request made before has ended."},
        202: {
            "model": BatchDocument,
            "description": "Jobs work on it; Location is the batch's address.",
            "headers": {"Location": {"schema": {"type": "string"}}},
        },
    },
)
async def request_batch(
    request: Request, body: BatchRequest, state: State, caller: Caller, batch_id: RepeatableId
) -> Response:
    """Ask for the kernels of up to 1,000 problems on one device in one regime: one group with one progress.

    Equal problems are one, known kernels are hits, jobs that live are joined. The others are queued by falling expected
    gain, all or none; a budget is of all of them, and divided by expected gain whenever one of them starts. The same
    request with the same Idempotency-Key is answered with the batch that it made.
    """
    state.access.require_priority(caller, body.queue.priority)
    asker = state.access.asker(caller)
    answered = partial(answer_batch, state, body, asker=asker, batch_id=batch_id)
    batch = await run_in_threadpool(answered, patient=state.settings.worker)
    if batch is None:
        await state.watch.worker(state.settings.fallback_seconds)
        await require_still_admitted(state.access, caller)
        batch = await run_in_threadpool(answered, patient=False)
    assert batch is not None
    address = f"/v1/batches/{batch.id}"
    request.state.changed = address
    headers = {"Location": address, "Cache-Control": "no-store"}
    status = 200 if batch.status in ENDED_BATCH else 202
    return JSONResponse(BatchDocument.with_items(batch).model_dump(mode="json"), status, headers)


@router.get("", dependencies=[ONLY_KNOWN])
def list_batches(
    state: State,
    after: PageAfter = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> BatchList:
    """The newest batches, without their items."""
    batches = state.batches.batches(limit + 1, after=after)
    page = [BatchSummary.of(batch) for batch in batches[:limit]]
    return BatchList(batches=page, next=page[-1].id if len(batches) > limit else None)


@router.get("/{batch_id}")
def get_batch(batch: NamedBatch, response: Response) -> BatchDocument:
    """One batch: how many of its problems are in which state, the gain so far, and every problem."""
    response.headers["Cache-Control"] = "no-store"
    return BatchDocument.with_items(batch)


@router.delete("/{batch_id}")
def cancel_batch(batch: NamedBatch, state: State, caller: Caller) -> BatchDocument:
    """Cancel every job that the batch made, for everyone who joined them; jobs that it joined go on.

    A key cancels the batches that it asked for; one of the scope admin every batch.
    """
    require_own(f"batch {batch.id}", batch.key_id, caller, "cancel")
    batch = state.batches.cancel(batch.id)
    if batch.status == "done":
        raise Problem(409, f"batch {batch.id} is done; there is nothing to cancel", "job_finished")
    return BatchDocument.with_items(batch)


@router.get("/{batch_id}/events", response_class=EventSourceResponse)
async def batch_events(
    batch: NamedTotals, state: State, after: After, caller: Caller, beats: Beats = False
) -> AsyncIterator[ServerSentEvent]:
    """How far the batch is, now and whenever one of its problems changes its state; ends when the batch does.

    Kinds: progress, and last one of done, cancelled; each has the batch without its items. Whoever comes back with
    Last-Event-ID is told how far it is by then. A comment comes every 15 seconds in which nothing happens.
    """
    async for event in stream_batch(state, batch.id, after, Follower(state.access, caller, beats=beats)):
        yield event
