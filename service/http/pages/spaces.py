"""``/spaces`` and ``/candidates``: everything that was tried for a problem, in pictures and one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from tirgemm.errors import PageNotFound
from tirgemm.families import families
from tirgemm.gemm import Gemm, Regime
from tirgemm.service.http.pages.site import HTML, OwnSite
from tirgemm.service.http.pages.space_documents import (
    CandidateDocument,
    CandidateRowBody,
    SpaceChoices,
    SpaceDocument,
    SpaceList,
)
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.routes.parameters import ONLY_KNOWN
from tirgemm.service.http.state import ServiceState, State
from tirgemm.service.validation_messages import FAMILY, TextForm
from tirgemm.service.views.candidate_list import ListedCandidate, Recorded, recorded, recorded_places
from tirgemm.service.views.spaces.candidate_detail import candidate_detail
from tirgemm.service.views.spaces.family_space import FamilySpace, HeatMap
from tirgemm.service.views.spaces.importance import ImportanceOfKnobs
from tirgemm.service.views.spaces.listing import (
    SpaceFilter,
    candidate_url,
    list_spaces,
    recorded_devices,
    space_url,
    summaries,
)
from tirgemm.service.views.spaces.problem_space import ProblemSpace

router = APIRouter(tags=["pages"])

_PER_PAGE = 50

GemmPart = Annotated[
    str,
    Query(description="A part of the text form, such as 4096x or :bf16:."),
    TextForm(r"^[0-9A-Za-z_.:=]{0,512}$", "up to 512 letters, digits, and any of _ . : ="),
]
DeviceName = Annotated[str, Query(max_length=200, description="A key, or a name such as cpu, cuda or sm_90a.")]
AfterPage = Annotated[
    str,
    Query(description="The `next` of the page before."),
    TextForm(r"^[ -~]{0,900}$", "the next of a page, up to 900 characters of ASCII"),
]


@router.get("/spaces", response_model=SpaceList, responses=HTML, dependencies=[ONLY_KNOWN])
def spaces_page(
    site: OwnSite,
    state: State,
    gemm: GemmPart = "",
    dtype: Annotated[str, Query(), TextForm("^(f16|bf16|f32)?$", "f16, bf16, f32 or empty")] = "",
    family: Annotated[str, Query(), FAMILY] = "",
    device: DeviceName = "",
    regime: Annotated[str, Query(), TextForm("^(sustained|isolated)?$", "sustained, isolated or empty")] = "",
    after: AfterPage = "",
) -> Response:
    """The problems that have recorded candidates, by device and regime, 50 at a time."""
    wanted = SpaceFilter(gemm, dtype, family, device, regime)
    return site.answer("spaces.html", "Spaces", _space_list(state, wanted, after))


@router.get("/spaces/{gemm}", response_model=SpaceDocument, responses=HTML, dependencies=[ONLY_KNOWN])
def space_page(
    gemm: str,
    site: OwnSite,
    state: State,
    device: Annotated[DeviceName | None, Query(max_length=200)] = None,
    regime: Regime | None = None,
    family: Annotated[str, Query(max_length=64)] = "",
    knob: Annotated[
        list[str] | None, Query(max_length=2, description="The knobs of the heat map: across, then down.")
    ] = None,
    after: Annotated[
        str,
        Query(description="The `next` of the page before."),
        TextForm("^([0-9a-f]{16})?$", "the next of a page, 16 hexadecimal digits in lower case"),
    ] = "",
) -> Response:
    """All recorded candidates of a problem: a heat map over two knobs, parallel coordinates, the importance of knobs,
    and the candidates of one family, 50 at a time."""
    document = _space(state, Gemm.parse(gemm), device, regime, (family, tuple(knob or ()), after))
    return site.answer("space.html", f"Space of {document.gemm}", document)


@router.get("/candidates/{config_hash}", response_model=CandidateDocument, responses=HTML, dependencies=[ONLY_KNOWN])
def candidate_page(
    config_hash: str,
    site: OwnSite,
    state: State,
    gemm: Annotated[str, Query(max_length=512)],
    device: DeviceName,
    regime: Regime = "sustained",
) -> Response:
    """One candidate of a problem on a device in a regime: its config, what became of it, and its samples beside those
    of the default and of the fastest."""
    document = _candidate(state, config_hash, Gemm.parse(gemm), device, regime)
    return site.answer("candidate.html", f"Candidate {document.config_hash}", document)


def _space_list(state: ServiceState, wanted: SpaceFilter, after: str) -> SpaceList:
    shipped = state.store.shipped
    listed, more = list_spaces(state.database, shipped, wanted, after, _PER_PAGE)
    return SpaceList(
        spaces=listed,
        next=more,
        newer=bool(after),
        filters={name: getattr(wanted, name) for name in SpaceFilter.__slots__},
        choices=SpaceChoices(tuple(recorded_devices(state.database, shipped)), tuple(families())),
    )


def _recorded(state: ServiceState, gemm: Gemm, device: str | None, regime: Regime | None) -> Recorded:
    """The candidates of a problem. Raises Problem where it has none at all, InvalidRequest where not there."""
    places = recorded_places(state.database, state.store.shipped, gemm)
    if not places:
        raise Problem(404, f"no candidate of {gemm} is recorded; /spaces lists the problems that have some")
    if regime is None:
        regime = "sustained" if any(where == "sustained" for _, where in places) else "isolated"
    return recorded(state.database, gemm, device, regime, state.store.shipped)


def _space(
    state: ServiceState,
    gemm: Gemm,
    device: str | None,
    regime: Regime | None,
    chosen: tuple[str, tuple[str, ...], str],
) -> SpaceDocument:
    family, knobs, after = chosen
    every = _recorded(state, gemm, device, regime)
    problem = ProblemSpace.of(state.store, every)
    space = problem.family(family)
    importance = state.importances.read(space.times)
    place = (str(gemm), every.device_key, every.regime)
    others = {(str(gemm), key, where) for key, where in recorded_places(state.database, state.store.shipped, gemm)}
    kernel = state.store.kernel(gemm, every.device_key, every.regime)
    first, rows = _candidate_page(space, after)
    return SpaceDocument(
        gemm=place[0],
        device=place[1],
        regime=every.regime,
        also=summaries(state.database, state.store.shipped, sorted(others - {place})),
        statuses=problem.statuses,
        families=problem.families,
        fastest=problem.peer(problem.fastest),
        default=problem.peer(problem.default),
        kernel=kernel.id if kernel else None,
        family=space.family,
        knobs=list(space.knobs),
        heat_map=_heat_map(space, importance, knobs),
        parallel=space.parallel(),
        importance=importance,
        candidates=[_row(space, entry, place) for entry in rows],
        first=first + 1,
        next=rows[-1].candidate.config.digest if first + len(rows) < len(space.entries) else None,
    )


def _heat_map(space: FamilySpace, importance: ImportanceOfKnobs, knobs: tuple[str, ...]) -> HeatMap | None:
    """The map over the knobs that were asked for, else over the two most important ones, the one with fewer values
    across; None where no two knobs differ."""
    order = [share.knob for share in importance.shares if share.share]
    order += [each.knob for each in space.varying if each.knob not in order]
    chosen = [*knobs, *(knob for knob in order if knob not in knobs)][:2]
    if len(chosen) < 2:
        return None
    if not knobs:
        chosen.sort(key=lambda knob: len(space.knob(knob).values))
    return space.heat_map(*chosen)


def _candidate_page(space: FamilySpace, after: str) -> tuple[int, Sequence[ListedCandidate]]:
    """The place of the first candidate behind the config ``after``, and a page from there."""
    hashes = [entry.candidate.config.digest for entry in space.entries]
    if after and after not in hashes:
        raise PageNotFound(f"after is {after!r}; no candidate of {space.family} has that config here")
    first = hashes.index(after) + 1 if after else 0
    return first, space.entries[first : first + _PER_PAGE]


def _row(space: FamilySpace, entry: ListedCandidate, place: tuple[str, str, Regime]) -> CandidateRowBody:
    candidate = entry.candidate
    us = space.times.get(candidate.config)
    return CandidateRowBody(
        config_hash=candidate.config.digest,
        status=candidate.status,
        shipped=entry.shipped,
        us=us,
        slower=us / space.best_us if us and space.best_us else None,
        predicted_us=candidate.predicted_us,
        reason=entry.note,
        knobs=dict(candidate.config.knobs),
        url=candidate_url(*place, candidate.config.digest),
    )


def _candidate(state: ServiceState, config_hash: str, gemm: Gemm, device: str, regime: Regime) -> CandidateDocument:
    every = _recorded(state, gemm, device, regime)
    problem = ProblemSpace.of(state.store, every)
    detail = candidate_detail(state.database, problem, config_hash)
    if detail is None:
        raise Problem(404, f"no candidate of {gemm} on {every.device_key}, {regime}, is {config_hash[:64]!r}")
    candidate = detail.entry.candidate
    same = ("rule", "message", "attempt", "predicted_us", "source_sha256", "binary_sha256", "kernel_sha256")
    place = (str(gemm), every.device_key, every.regime)
    return CandidateDocument(
        **{name: getattr(candidate, name) for name in same},
        gemm=place[0],
        device=place[1],
        regime=every.regime,
        config_hash=candidate.config.digest,
        family=candidate.config.family,
        status=candidate.status,
        shipped=detail.entry.shipped,
        error_over_bound=candidate.error,
        us=detail.us,
        rank=detail.rank,
        measured=len(problem.times),
        fastest=problem.peer(problem.fastest),
        default=problem.peer(problem.default),
        knobs=list(detail.knobs),
        meanings=problem.meanings(candidate.config.family),
        sample_sets=detail.sample_sets,
        drawn=list(detail.drawn),
        kernels=list(detail.kernels),
        links={
            "self": candidate_url(*place, candidate.config.digest),
            "space": space_url(*place, family=candidate.config.family),
        },
    )
