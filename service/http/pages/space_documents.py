"""Documents of the pages of recorded candidates: the list of spaces, a space, a candidate."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from markupsafe import Markup
from pydantic import BaseModel

from tirgemm.config import Value
from tirgemm.gemm import Regime
from tirgemm.service.views.spaces.candidate_detail import KnobBeside, MadeKernel, MeasuredSamples
from tirgemm.service.views.spaces.drawings import heat_map_drawing, parallel_drawing, share_bar
from tirgemm.service.views.spaces.family_space import HeatMap, KnobValues, ParallelLines
from tirgemm.service.views.spaces.importance import ImportanceOfKnobs
from tirgemm.service.views.spaces.listing import SpaceSummary, candidate_url, space_url
from tirgemm.service.views.spaces.problem_space import PeerConfig
from tirgemm.status import Status


@dataclass(frozen=True, slots=True)
class SpaceChoices:
    """What the filters of the list offer."""

    devices: tuple[str, ...]
    families: tuple[str, ...]


class SpaceList(BaseModel):
    """Spaces, the database's own first, newest problem first; ``next`` is the ``after`` of the next page, null at the
    end; ``newer``: whether this is not the first. ``filters``: what was asked for."""

    spaces: list[SpaceSummary]
    next: str | None
    newer: bool
    filters: dict[str, str]
    choices: SpaceChoices

    def page_url(self, after: str = "") -> str:
        """The address of the page behind ``after`` with the same filters, without it of the first."""
        asked = {name: value for name, value in (self.filters | {"after": after}).items() if value}
        return f"/spaces?{urlencode(asked)}"


class CandidateRowBody(BaseModel):
    """A candidate in the list of a space. ``us``: the median of the search's samples, made comparable; ``slower``: that
    over the fastest's of its family."""

    config_hash: str
    status: Status
    shipped: bool
    us: float | None
    slower: float | None
    predicted_us: float | None
    reason: str
    knobs: dict[str, Value]
    url: str


class SpaceDocument(BaseModel):
    """The recorded candidates of a problem on a device in a regime: those of one family in pictures and as a list;
    ``next`` is the ``after`` of its next page."""

    gemm: str
    device: str
    regime: Regime
    also: list[SpaceSummary]
    statuses: dict[str, int]
    families: dict[str, int]
    fastest: PeerConfig | None
    default: PeerConfig | None
    kernel: str | None
    family: str
    knobs: list[KnobValues]
    heat_map: HeatMap | None
    parallel: ParallelLines
    importance: ImportanceOfKnobs
    candidates: list[CandidateRowBody]
    first: int
    next: str | None

    @property
    def path(self) -> str:
        """The address without its query."""
        return space_url(self.gemm, self.device, self.regime).partition("?")[0]

    def page_url(self, after: str = "") -> str:
        """The address of the page of candidates behind ``after``, without it of the first, with the same pictures."""
        knobs = [self.heat_map.x.knob, self.heat_map.y.knob] if self.heat_map else []
        return space_url(self.gemm, self.device, self.regime, family=self.family, knob=knobs, after=after)

    def values_of(self, knob: str) -> tuple[Value, ...]:
        """The values of a knob among the candidates."""
        return next((each.values for each in self.knobs if each.knob == knob), ())

    @property
    def heat_map_svg(self) -> Markup:
        assert self.heat_map is not None
        return heat_map_drawing(self.heat_map, self.candidate_url)

    @property
    def parallel_svg(self) -> Markup:
        return parallel_drawing(self.parallel, self.candidate_url)

    def share_svg(self, share: float) -> Markup:
        return share_bar(share)

    def candidate_url(self, config_hash: str) -> str:
        return candidate_url(self.gemm, self.device, self.regime, config_hash)


class CandidateDocument(BaseModel):
    """One candidate. ``us`` is comparable with the times of ``fastest`` and ``default``, the problem's; ``rank`` counts
    the ``measured`` ones of all families from the fastest."""

    gemm: str
    device: str
    regime: Regime
    config_hash: str
    family: str
    status: Status
    rule: str
    message: str
    shipped: bool
    attempt: int
    error_over_bound: float | None
    predicted_us: float | None
    us: float | None
    rank: int | None
    measured: int
    fastest: PeerConfig | None
    default: PeerConfig | None
    knobs: list[KnobBeside]
    meanings: dict[str, str]
    sample_sets: list[MeasuredSamples]
    drawn: list[tuple[str, tuple[float, ...]]]
    kernels: list[MadeKernel]
    source_sha256: str
    binary_sha256: str
    kernel_sha256: str
    links: dict[str, str]

    def candidate_url(self, config_hash: str) -> str:
        return candidate_url(self.gemm, self.device, self.regime, config_hash)
