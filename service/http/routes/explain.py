"""``/v1/kernels/{kernel_id}/explain``: why a kernel is as fast as it is, and why the others lost."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse

from tirgemm.errors import Unsupported
from tirgemm.service.explain.stored_kernel import StoredKernelInput
from tirgemm.service.http.accept import wants_html
from tirgemm.service.http.documents import ExplanationDocument
from tirgemm.service.http.routes.kernels import kernel_record
from tirgemm.service.http.routes.parameters import ONLY_KNOWN
from tirgemm.service.http.state import ServiceState, State

router = APIRouter(prefix="/v1/kernels", tags=["kernels"])

# The page needs nothing but its own style.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@router.get(
    "/{kernel_id}/explain",
    response_model=ExplanationDocument,
    dependencies=[ONLY_KNOWN],
    responses={200: {"description": "The explanation.", "content": {"text/html": {"schema": {"type": "string"}}}}},
)
async def explain_kernel(
    kernel_id: str,
    state: State,
    format: Annotated[
        Literal["json", "html"] | None, Query(description="By default what Accept asks for, else json.")
    ] = None,
    accept: Annotated[str, Header(description="`text/html` for the page")] = "",
) -> Response:
    """Why a kernel is as fast as it is: banks, sectors, occupancy, waves, roofline, and why the others lost.

    From its IR and its machine code alone: the device need not be here.
    """
    stored = await run_in_threadpool(stored_kernel, state, kernel_id)
    document, page = await state.explainer.answer(stored)
    headers = {"Cache-Control": "no-cache", "Vary": "Accept"}
    if format == "html" or (format is None and wants_html(accept)):
        return HTMLResponse(page, headers=headers | {"Content-Security-Policy": _POLICY})
    return JSONResponse(document, headers=headers)


def stored_kernel(state: ServiceState, kernel_id: str) -> StoredKernelInput:
    """What explaining a kernel takes, by the id that a client sent. Raises Problem, and Unsupported for one that is not
    for a GPU."""
    record = kernel_record(state, kernel_id)
    if record.device.kind != "cuda":
        raise Unsupported(
            f"kernel {record.id} is for {record.device.model}, a {record.device.kind}: what is explained are GPU "
            f"kernels"
        )
    return StoredKernelInput.of(state.store, record, state.trust)
