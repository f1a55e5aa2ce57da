"""``/models`` and ``/models/{id}``: batches, the shapes of a model that were asked for together, layer by layer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from tirgemm.service.access.scopes import may_change
from tirgemm.service.http.batch_documents import BatchSummary
from tirgemm.service.http.pages.forms import FormFields, only_fields, redirected
from tirgemm.service.http.pages.live_documents import ModelPage, ModelsPage
from tirgemm.service.http.pages.site import HTML, OwnSite
from tirgemm.service.http.routes.batches import NamedBatch, cancel_batch, list_batches
from tirgemm.service.http.routes.parameters import ONLY_KNOWN, PageAfter
from tirgemm.service.http.state import Caller, State
from tirgemm.service.views.model_layers import model_layers

router = APIRouter(prefix="/models", tags=["pages"])

PAGE = 20


@router.get("", dependencies=[ONLY_KNOWN], response_model=ModelsPage, responses=HTML)
def models_page(
    site: OwnSite,
    state: State,
    after: PageAfter = "",
) -> Response:
    """The newest batches, 20 at a time."""
    page = list_batches(state, after, PAGE)
    return site.answer("models.html", "Models", ModelsPage(**dict(page), newer=bool(after)))


@router.get("/{batch_id}", response_model=ModelPage, responses=HTML)
def model_page(site: OwnSite, batch: NamedBatch, state: State, caller: Caller) -> Response:
    """One batch: its progress, what each problem is answered with now, the gain by layer and in total."""
    document = ModelPage(
        batch=BatchSummary.of(batch),
        model=model_layers(state.database, batch),
        may_change=may_change(batch.key_id, caller),
    )
    return site.answer("model.html", f"Model {batch.id}", document)


@router.post("/{batch_id}/cancel", response_class=RedirectResponse, status_code=303, include_in_schema=False)
def cancel(batch: NamedBatch, state: State, caller: Caller, request: Request, fields: FormFields) -> Response:
    """Cancel the batch, as DELETE /v1/batches/{batch_id} does, and lead back to its page."""
    only_fields(fields)
    cancel_batch(batch, state, caller)
    return redirected(request, f"/models/{batch.id}", f"/v1/batches/{batch.id}")
