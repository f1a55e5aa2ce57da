"""``/kernels``: the table of kernels, with filters in its address, in any order of its columns."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from tirgemm.families import families
from tirgemm.gemm import DTYPE_BYTES, REGIMES, Regime
from tirgemm.progress import role_name
from tirgemm.service.http.documents import DeviceBody
from tirgemm.service.http.pages.site import HTML, OwnSite
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.routes.parameters import ONLY_KNOWN
from tirgemm.service.http.state import ServiceState, State
from tirgemm.service.validation_messages import FAMILY, IDS, TextForm
from tirgemm.service.views.kernels.distributions import RatioSpread
from tirgemm.service.views.kernels.kernel_table import (
    SORTS,
    ListedKernel,
    Order,
    TableFilter,
    count_kernels,
    kernel_table,
)
from tirgemm.service.views.kernels.shape_filter import PATTERN, ShapeFilter
from tirgemm.service.views.queries import device_keys, known_devices
from tirgemm.status import ROLES, Role
from tirgemm.tuning.records import KernelRecord

router = APIRouter(tags=["pages"])

ROWS = 50
# An order's index is walked through until a page is full: the longer, the fewer rows pass. So few are sorted instead.
FEW = 1000


class ListedKernelBody(BaseModel):
    """What every list says of a kernel; ``us``: its time in its regime, null where nobody took it."""

    id: str
    device: DeviceBody
    regime: Regime
    role: Role
    shown_role: str
    verified: bool
    pinned: bool
    family: str
    us: float | None
    created_at: str


def listed_members(record: KernelRecord) -> dict[str, Any]:
    """The members of a ListedKernelBody without ``us``."""
    return {
        "id": record.id,
        "device": DeviceBody.of(record.device),
        "regime": record.regime,
        "role": record.role,
        "shown_role": role_name(record.role, portable=record.portable),
        "verified": record.certificate is not None and record.certificate.passed,
        "pinned": record.pinned,
        "family": record.config.family,
        "created_at": record.created_at,
    }


class KernelRowBody(ListedKernelBody):
    """A kernel in a row: its speed in its regime, and its ratios to the default and to the fastest of the other
    baselines that ran beside it; null where nobody took them. ``members``: how many kernels a set has."""

    gemm: str
    members: int
    tflops: float | None
    default: RatioSpread | None
    baseline: RatioSpread | None

    @classmethod
    def of(cls, listed: ListedKernel) -> KernelRowBody:
        record = listed.record
        return cls(
            **listed_members(record),
            gemm=str(record.gemm),
            members=len(record.timings.members or ()),
            us=listed.us,
            tflops=listed.tflops,
            default=listed.default,
            baseline=listed.baseline,
        )


class KernelFilterBody(BaseModel):
    """What a table is filtered by; empty texts filter nothing."""

    shape: Annotated[
        str,
        Field(
            max_length=512,
            description="A problem in its text form, the beginning of one, or sizes such as `n=4096 k=11008`.",
            json_schema_extra={"pattern": PATTERN},
        ),
    ] = ""
    dtype: Literal["", "f16", "bf16", "f32"] = ""
    family: Annotated[str, FAMILY] = ""
    device: Annotated[str, Field(max_length=200, description="A device's key, or a name such as sm_90a.")] = ""
    regime: Literal["", "sustained", "isolated"] = ""
    role: Literal["", "tuned", "fallback", "unverified"] = ""


class ChoiceBody(BaseModel):
    """A value that a filter may have, and what a person reads for it."""

    value: str
    name: str


class KernelTableBody(BaseModel):
    """A page of the table: ``total`` kernels pass the filter. ``next``: the address of the rows behind these; ``sorts``
    the address of each order, the other way round for the present one; ``choices``: what filters may be."""

    filter: KernelFilterBody
    sort: str
    total: int
    kernels: list[KernelRowBody]
    first: str | None
    next: str | None
    sorts: dict[str, str]
    choices: dict[str, list[ChoiceBody]]


class _TableQuery(KernelFilterBody):
    sort: Annotated[str, Field(max_length=32, json_schema_extra={"enum": list(SORTS)})] = "-stored"
    after: Annotated[
        str,
        Field(description="The last id of the page before."),
        TextForm(r"^[0-9a-f]{0,32}$", f"the last id of a page, {IDS}"),
    ] = ""


@router.get("/kernels", response_model=KernelTableBody, responses=HTML, dependencies=[ONLY_KNOWN])
def kernels_page(site: OwnSite, state: State, query: Annotated[_TableQuery, Query()]) -> Response:
    """The table of kernels: 50 at a time, filtered, sorted."""
    if query.sort not in SORTS:
        raise Problem(422, f"sort is {query.sort!r}; it is one of {', '.join(SORTS)}", "invalid_request")
    return site.answer("kernels.html", "Kernels", _table(state, query))


def _table(state: ServiceState, query: _TableQuery) -> KernelTableBody:
    devices = known_devices(state.database)
    wanted = TableFilter(
        ShapeFilter.parse(query.shape),
        query.dtype or None,
        query.family or None,
        device_keys(state.database, query.device) if query.device else None,
        query.regime or None,
        query.role or None,
    )
    total = count_kernels(state.database, wanted)
    limit, few = min(ROWS + 1, total), total <= FEW
    listed = kernel_table(state.database, wanted, sort=query.sort, after=query.after, limit=limit, few=few)
    shown = listed[:ROWS]
    filters = {name: value for name, value in query.model_dump(exclude={"sort", "after"}).items() if value}
    own = filters | {"sort": query.sort}
    choices = {
        "dtype": [ChoiceBody(value=name, name=name) for name in DTYPE_BYTES],
        "family": [ChoiceBody(value=name, name=name) for name in families()],
        "device": [ChoiceBody(value=each.key, name=f"{each.model} ({each.arch})") for each in devices],
        "regime": [ChoiceBody(value=name, name=name) for name in REGIMES],
        "role": [ChoiceBody(value=name, name=role_name(name)) for name in ROLES],
    }
    for name, value in filters.items():
        if name in choices and value not in {each.value for each in choices[name]}:
            choices[name].append(ChoiceBody(value=value, name=value))
    return KernelTableBody(
        filter=KernelFilterBody.model_validate(filters),
        sort=query.sort,
        total=total,
        kernels=[KernelRowBody.of(each) for each in shown],
        first=_address(own) if query.after else None,
        next=_address(own | {"after": shown[-1].record.id}) if len(listed) > ROWS else None,
        sorts={order: _address(filters | {"sort": _turned(order, query.sort)}) for order in get_args(Order)},
        choices=choices,
    )


def _address(query: dict[str, Any]) -> str:
    return f"/kernels?{urlencode(query)}"


def _turned(order: Order, sort: str) -> str:
    """The sort that pressing a column's head asks for: at first the best, largest or newest ahead."""
    first = order if order == "us" else f"-{order}"
    return first if sort != first else order if first.startswith("-") else f"-{order}"
