"""``/compare``: two or more kernels side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel

from tirgemm.errors import QueueFull, TirgemmError
from tirgemm.gemm import REGIMES, Regime
from tirgemm.progress import role_name
from tirgemm.service.http.documents import DeviceBody
from tirgemm.service.http.pages.one_kernel_page import opened_kernel, read_code
from tirgemm.service.http.pages.site import HTML, OwnSite
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.routes.explain import stored_kernel
from tirgemm.service.http.routes.kernels import kernel_record
from tirgemm.service.http.routes.parameters import ONLY_KNOWN
from tirgemm.service.http.state import ServiceState, State
from tirgemm.service.views.code_figures import CodeFigures, code_figures
from tirgemm.service.views.comparison import PairedTimes, verdict
from tirgemm.service.views.kernels.code_differences import CountRow, count_rows
from tirgemm.service.views.kernels.kernel_comparison import (
    LETTERS,
    MAX_KERNELS,
    MIN_KERNELS,
    ComparedKernel,
    common_roofline,
    compared,
    differing_knobs,
)
from tirgemm.service.views.kernels.kernel_history import kernels_of_problem
from tirgemm.tuning.records import KernelRecord

router = APIRouter(tags=["pages"])

_DESCRIPTION = "The ids of 2 to 6 kernels; the first is what the others are compared with."
_SCHEMA: dict[str, Any] = {
    "items": {"type": "string", "pattern": "^[0-9a-f]{1,32}$"},
    "minItems": MIN_KERNELS,
    "maxItems": MAX_KERNELS,
    "uniqueItems": True,
}
Ids = Annotated[list[str], Query(description=_DESCRIPTION, json_schema_extra=_SCHEMA)]
Chosen = Annotated[list[str], Query(default_factory=list, description=_DESCRIPTION, json_schema_extra=_SCHEMA)]

# Of more that were ticked, or of a problem with more, these are shown to choose from.
MOST_CHOICES = 50


class IntervalBody(BaseModel):
    """Between which values something lies with 95 % confidence."""

    low: float
    high: float


class PairBody(BaseModel):
    """A kernel against the first. ``ratio``: how many times as long it takes; ``same_run``: both ran interleaved;
    ``verdict``: what that says, in a sentence."""

    ratio: float | None
    interval: IntervalBody | None
    same_run: bool
    verdict: str


class ComparedKernelBody(BaseModel):
    """A kernel that is compared, with its time in the regime; ``taken`` says when, ``samples_us`` are those stored."""

    letter: str
    id: str
    gemm: str
    device: DeviceBody
    regime: Regime
    shown_role: str
    family: str
    kernel_sha256: str
    us: float | None
    interval: IntervalBody | None
    tflops: float | None
    taken: str | None
    samples_us: list[float]
    against_first: PairBody | None


class KnobRowBody(BaseModel):
    """A knob in which kernels differ, with its value in each; null where a config does not have it."""

    name: str
    values: list[int | str | bool | None]


class KernelChoice(BaseModel):
    """A kernel that may be ticked to be compared."""

    id: str
    gemm: str
    device: str
    regime: Regime
    shown_role: str
    us: float | None
    chosen: bool

    @classmethod
    def of(cls, record: KernelRecord, *, chosen: bool) -> KernelChoice:
        timing = record.timings.of(record.regime)
        return cls(
            id=record.id,
            gemm=str(record.gemm),
            device=record.device.model,
            regime=record.regime,
            shown_role=role_name(record.role, portable=record.portable),
            us=timing.median_us if timing else None,
            chosen=chosen,
        )


class CompareBody(BaseModel):
    """Kernels side by side; empty before enough are chosen, with ``fault`` saying what is wrong with those that are and
    ``choices`` to choose from. ``code``: the address of what their machine code says."""

    regime: Regime
    kernels: list[ComparedKernelBody]
    same_kernel: bool
    knobs: list[KnobRowBody]
    code: str | None
    regimes: dict[str, str]
    fault: str | None = None
    choices: list[KernelChoice] = []


class CompareCodeBody(BaseModel):
    """What the machine code of kernels says: figures, instructions by kind, in all and in the main loop, and by opcode,
    what differs first; by letter what is ``missing``, and the roofline that all are in, as an SVG."""

    letters: list[str]
    kernels: list[KernelChoice]
    figures: list[CountRow]
    units: list[CountRow]
    loop: list[CountRow]
    opcodes: list[CountRow]
    missing: dict[str, str]
    roofline: str | None


@router.get("/compare", response_model=CompareBody, responses=HTML, dependencies=[ONLY_KNOWN])
def compare_page(site: OwnSite, state: State, kernel: Chosen, regime: Regime | None = None) -> Response:
    """Kernels side by side: times, knobs, machine code. Without any, the form that takes ids."""
    # A field of a form that was left empty is none.
    ids = [each for each in dict.fromkeys(kernel) if each]
    fault = _fault(ids) if kernel else None
    if not site.wants_html:
        return site.answer("compare.html", "Compare kernels", _comparison(state, kernel, regime))
    if fault is None:
        return site.answer("compare.html", "Compare kernels", _comparison(state, ids, regime))
    document = _comparison(state, [], regime).model_copy(update={"fault": fault, "choices": _choices(state, ids)})
    return site.page("compare.html", "Compare kernels", 422, page=document)


@router.get("/compare/code", response_model=CompareCodeBody, responses=HTML, dependencies=[ONLY_KNOWN])
async def compare_code_page(site: OwnSite, state: State, kernel: Ids) -> Response:
    """What the machine code of kernels says, which takes seconds to read, and their places in one roofline."""
    records = await run_in_threadpool(_records, state, kernel)
    figures = [await _figures(state, record) for record in records]
    explanations, missing = {}, {}
    for letter, record, figure in zip(LETTERS, records, figures, strict=False):
        if figure.missing:
            missing[letter] = figure.missing
        if record.device.kind != "cuda":
            missing.setdefault(letter, f"{record.device.model} is no GPU: it is in no roofline")
            continue
        try:
            stored = await run_in_threadpool(stored_kernel, state, record.id)
            explanations[letter] = (await state.explainer.answer(stored))[0]
        except TirgemmError as error:
            missing.setdefault(letter, str(error))
    taken = [{"bytes of code and data": each.nbytes} | dict(each.figures) for each in figures]
    document = CompareCodeBody(
        letters=list(LETTERS[: len(records)]),
        kernels=[KernelChoice.of(record, chosen=True) for record in records],
        figures=list(count_rows(taken, absent=None)),
        units=list(count_rows([_units(each) for each in figures])),
        loop=list(count_rows([dict(each.loop) for each in figures])),
        opcodes=list(count_rows([dict(each.opcodes) for each in figures])),
        missing=missing,
        roofline=common_roofline(explanations),
    )
    return await run_in_threadpool(site.answer, "compare_code.html", "Machine code", document)


async def _figures(state: ServiceState, record: KernelRecord) -> CodeFigures:
    try:
        opened = await run_in_threadpool(opened_kernel, state, record)
        return await read_code(state, opened, code_figures)
    except QueueFull:
        raise  # it is the server that is busy, whatever the kernel
    except TirgemmError as error:
        return CodeFigures(record.artifact_bytes, missing=str(error))


def _units(figures: CodeFigures) -> dict[str, int]:
    """Instructions by kind, and all of them."""
    return {"all": figures.instructions, **dict(figures.units)} if figures.instructions is not None else {}


def _records(state: ServiceState, ids: list[str]) -> list[KernelRecord]:
    """The kernels of these ids. Raises Problem for too few, too many, and for one that is not there."""
    fault = _fault(ids)
    if fault is not None:
        raise Problem(422, fault, "invalid_request")
    return [kernel_record(state, each) for each in ids]


def _fault(ids: Sequence[str]) -> str | None:
    """What is wrong with the number of kernels that are to be compared."""
    count = len(set(filter(None, ids)))
    if MIN_KERNELS <= count == len(ids) <= MAX_KERNELS:
        return None
    several = "an id is empty or twice among those" if MIN_KERNELS <= count <= MAX_KERNELS else f"{count} kernels are"
    chosen = "no kernel is" if not count else "1 kernel is" if count == 1 else several
    return f"{chosen} to be compared; it takes {MIN_KERNELS} to {MAX_KERNELS} different ones"


def _choices(state: ServiceState, ids: Sequence[str]) -> list[KernelChoice]:
    """The kernels that were chosen, and where that is one, others of its problem."""
    chosen = [kernel_record(state, each) for each in ids[:MOST_CHOICES]]
    others = kernels_of_problem(state.database, chosen[0]) if len(chosen) == 1 else []
    beside = [record for record in others if record.id not in ids][: MOST_CHOICES - len(chosen)]
    return [KernelChoice.of(record, chosen=record in chosen) for record in (*chosen, *beside)]


def _comparison(state: ServiceState, ids: list[str], regime: Regime | None) -> CompareBody:
    if not ids:
        return CompareBody(regime=regime or "sustained", kernels=[], same_kernel=False, knobs=[], code=None, regimes={})
    records = _records(state, ids)
    asked = regime or records[0].regime
    kernels = compared(state.store, records)
    query = "&".join(f"kernel={record.id}" for record in records)
    return CompareBody(
        regime=asked,
        kernels=[_body(each, kernels[0], asked) for each in kernels],
        same_kernel=len({record.kernel_sha256 for record in records}) == 1,
        knobs=[KnobRowBody(name=name, values=values) for name, values in differing_knobs(records)],
        code=f"/compare/code?{query}",
        regimes={name: f"/compare?{query}&regime={name}" for name in REGIMES},
    )


def _body(kernel: ComparedKernel, first: ComparedKernel, regime: Regime) -> ComparedKernelBody:
    record, time = kernel.record, kernel.time(regime)
    interval = time.interval if time else None
    return ComparedKernelBody(
        letter=kernel.letter,
        id=record.id,
        gemm=str(record.gemm),
        device=DeviceBody.of(record.device),
        regime=record.regime,
        shown_role=role_name(record.role, portable=record.portable),
        family=record.config.family,
        kernel_sha256=record.kernel_sha256,
        us=time.us if time else None,
        interval=IntervalBody(low=interval.low, high=interval.high) if interval else None,
        tflops=record.gemm.flops / time.us / 1e6 if time else None,
        taken=time.taken if time else None,
        samples_us=list(time.samples.samples_us) if time and time.samples else [],
        against_first=None if kernel is first else _pair(kernel, first, kernel.against(first, regime)),
    )


def _pair(kernel: ComparedKernel, first: ComparedKernel, timing: PairedTimes) -> PairBody:
    interval = timing.ratio_interval
    return PairBody(
        ratio=timing.ratio,
        interval=IntervalBody(low=interval.low, high=interval.high) if interval else None,
        same_run=timing.same_run,
        verdict=" ".join(verdict(timing, first.letter, kernel.letter)),
    )
