"""``/kernels/{kernel_id}``: all that is known of one kernel, its code, and forms that pin, unpin and delete it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from tirgemm.errors import QueueFull, TirgemmError
from tirgemm.progress import role_description, role_name
from tirgemm.service.http.documents import ExplanationDocument, KernelDocument
from tirgemm.service.http.pages.forms import FormFields, redirected
from tirgemm.service.http.pages.kernel_page_documents import (
    ExplanationPageBody,
    KernelCodeBody,
    KernelPageBody,
    OtherKernelBody,
    knobs_of,
)
from tirgemm.service.http.pages.site import HTML, OwnSite
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.routes.explain import stored_kernel
from tirgemm.service.http.routes.kernels import delete_kernel, kernel_record, pin_kernel, unpin_kernel
from tirgemm.service.http.state import Caller, ServiceState, State
from tirgemm.service.views.artifact_file import OpenedArtifact, open_kernel
from tirgemm.service.views.artifact_texts import NAMES, kinds, text_of
from tirgemm.service.views.kernel_samples import samples_of
from tirgemm.service.views.kernels.code_lines import CodeText, linked_text
from tirgemm.service.views.kernels.get_snippets import snippets
from tirgemm.service.views.kernels.kernel_history import environment_of, kernels_of_problem
from tirgemm.service.views.kernels.kernel_timings import regime_times
from tirgemm.service.views.search_summary_text import search_summary_text
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db.access.api_keys import ApiKey

router = APIRouter(prefix="/kernels", tags=["pages"])

# Of all texts on the page of the code: the rest of a page's megabyte is for what is around them.
CODE_BYTES = 900_000

T = TypeVar("T")


@router.get("/{kernel_id}", response_model=KernelPageBody, responses=HTML)
def kernel_page(kernel_id: str, site: OwnSite, state: State, caller: Caller) -> Response:
    """A kernel: its times and their distributions, its config, certificate and history, and how to get it."""
    document = _document(state, kernel_id, site.service_url, caller)
    return site.answer("kernel.html", f"Kernel of {document.kernel.gemm}", document)


def _document(state: ServiceState, kernel_id: str, url: str, caller: ApiKey | None) -> KernelPageBody:
    record = kernel_record(state, kernel_id)
    samples = samples_of(state.store, record.gemm, record.device.key, record.config, None)
    marked = record.other_device is not None
    answer = state.store.kernel(record.gemm, record.device.key, record.regime, other_devices=marked)
    others = [each for each in kernels_of_problem(state.database, record) if each.id != record.id]
    defaults = [each for each in others if each.role == "fallback" and each.regime == record.regime]
    history = [each for each in others if each.device.model == record.device.model]
    environment = environment_of(state.store, record)

    def body(other: KernelRecord) -> OtherKernelBody:
        return OtherKernelBody.of(other, environment_of(state.store, other), record, environment)

    return KernelPageBody(
        kernel=KernelDocument.of(record),
        role_words=role_description(record.role, portable=record.portable, other_device=record.other_device),
        shown_role=role_name(record.role, portable=record.portable),
        answers=answer is not None and answer.id == record.id,
        flops=record.gemm.flops,
        times=list(regime_times(record, samples)),
        knobs=knobs_of(record),
        environment=environment,
        snippets=list(snippets(record, url, state.public_key, signed_in=caller is not None)),
        signer=state.public_key,
        search=search_summary_text(record.timings.search, record.trials),
        history=[body(each) for each in history],
        elsewhere=[body(each) for each in others if each not in history],
        default_id=next((each.id for each in defaults if each.device.key == record.device.key), None),
        may_change=caller is None or caller.allows("admin"),
    )


@router.get("/{kernel_id}/explain", response_model=ExplanationPageBody, responses=HTML)
async def explanation_page(kernel_id: str, site: OwnSite, state: State) -> Response:
    """Why a kernel is as fast as it is, as a page among the others."""
    stored = await run_in_threadpool(stored_kernel, state, kernel_id)
    explanation, page = await state.explainer.answer(stored)
    read = ExplanationDocument.model_validate(explanation)
    # What that page shows beneath its heading.
    content = page.partition("</h1>")[2].rpartition("</body>")[0]
    document = ExplanationPageBody(id=kernel_id, explanation=read, html=content)
    title = f"Why the kernel of {stored.record.gemm} is so fast"
    return await run_in_threadpool(site.answer, "kernel_explanation.html", title, document)


@router.get("/{kernel_id}/code", response_model=KernelCodeBody, responses=HTML)
async def code_page(kernel_id: str, site: OwnSite, state: State) -> Response:
    """Source, TVMScript, PTX and machine code of a kernel side by side, with their lines linked."""
    record, opened = await run_in_threadpool(_opened, state, kernel_id)
    texts = [await _linked(state, opened, kind) for kind in kinds(opened.package)]
    document = KernelCodeBody.of(record, texts, CODE_BYTES)
    return await run_in_threadpool(site.answer, "kernel_code.html", f"Code of {document.gemm}", document)


async def _linked(state: ServiceState, opened: OpenedArtifact, kind: str) -> CodeText:
    """A text with its lines linked; where it cannot be made, why it is missing: that is not kept, for it may be made
    later. Raises QueueFull, which is for the whole page to say."""
    try:
        return await read_code(state, opened, linked_text, kind)
    except QueueFull:
        raise
    except TirgemmError as error:
        return CodeText(kind, missing=str(error))


@router.get("/{kernel_id}/code/{kind}", response_class=PlainTextResponse)
async def code_text(kernel_id: str, kind: str, state: State) -> Response:
    """One text of a kernel, whole: ``script``, ``cuda``, ``ptx``, ``sass``, ``llvm`` or ``asm``."""
    if kind not in NAMES:
        raise Problem(404, f"there is no text {kind[:64]!r} of a kernel; there may be {', '.join(NAMES)}")
    _, opened = await run_in_threadpool(_opened, state, kernel_id)
    held = kinds(opened.package)
    if kind not in held:
        raise Problem(404, f"kernel {kernel_id} has no text {kind!r} ({NAMES[kind]}); it has {', '.join(held)}")
    text = await read_code(state, opened, text_of, kind)
    return PlainTextResponse(
        text.text,
        headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"},
    )


def _opened(state: ServiceState, kernel_id: str) -> tuple[KernelRecord, OpenedArtifact]:
    record = kernel_record(state, kernel_id)
    return record, opened_kernel(state, record)


async def read_code(state: ServiceState, opened: OpenedArtifact, function: Callable[..., T], *arguments: str) -> T:
    """What ``function`` says of an artifact's code: compiled and disassembled in the explainer's process, and kept.
    Raises what ``Explainer.call`` raises."""
    key = (function.__name__, opened.package.sha256, opened.trusted, *arguments)
    bare = replace(opened, record=None, samples=())
    what = f"reading {', '.join(arguments) or 'the code'} of {opened.where}"
    return await state.explainer.call(key, what, function, bare, *arguments)


def opened_kernel(state: ServiceState, record: KernelRecord) -> OpenedArtifact:
    """The artifact of a kernel, trusted where this service signed it or the user that runs it trusts its key."""
    return open_kernel(state.store, record, state.trust)


@router.post("/{kernel_id}/pin", include_in_schema=False)
async def pin_form(kernel_id: str, state: State, request: Request, fields: FormFields) -> Response:
    """Pin the kernel."""
    del fields
    await run_in_threadpool(pin_kernel, kernel_id, state, request)
    return redirected(request, f"/kernels/{kernel_id}", f"/v1/kernels/{kernel_id}/pin")


@router.post("/{kernel_id}/unpin", include_in_schema=False)
async def unpin_form(kernel_id: str, state: State, request: Request, fields: FormFields) -> Response:
    """Unpin the kernel."""
    del fields
    await run_in_threadpool(unpin_kernel, kernel_id, state)
    return redirected(request, f"/kernels/{kernel_id}", f"/v1/kernels/{kernel_id}/pin")


@router.post("/{kernel_id}/delete", include_in_schema=False)
async def delete_form(kernel_id: str, state: State, request: Request, fields: FormFields) -> Response:
    """Delete the kernel."""
    del fields
    await run_in_threadpool(delete_kernel, kernel_id, state)
    return redirected(request, "/kernels", f"/v1/kernels/{kernel_id}")
