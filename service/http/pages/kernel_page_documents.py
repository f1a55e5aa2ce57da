"""JSON documents of the page of one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from markupsafe import Markup, escape
from pydantic import BaseModel

from tirgemm.errors import InvalidRequest
from tirgemm.families import family_named
from tirgemm.service.http.documents import ExplanationDocument, KernelDocument
from tirgemm.service.http.pages.kernel_table_page import ListedKernelBody, listed_members
from tirgemm.service.views.kernels.code_budget import lines_that_fit
from tirgemm.service.views.kernels.code_lines import CodeText
from tirgemm.service.views.kernels.get_snippets import Snippet
from tirgemm.service.views.kernels.history_drawing import HistoryPoint, history_drawing
from tirgemm.service.views.kernels.kernel_history import changed
from tirgemm.service.views.kernels.kernel_timings import RegimeTimes
from tirgemm.tuning.records import KernelRecord


class KnobBody(BaseModel):
    """A knob with its value; ``meaning`` is the family's, null where it says nothing."""

    name: str
    value: int | str | bool
    meaning: str | None


class OtherKernelBody(ListedKernelBody):
    """Another kernel of the same problem. ``same``: it has the same machine code and launch; ``changed``: what of the
    environment is other there, and how, null where that is not known of it."""

    config_hash: str
    same: bool
    default_ratio: float | None
    environment: dict[str, str]
    changed: dict[str, str | None]

    @classmethod
    def of(
        cls, other: KernelRecord, environment: dict[str, str], record: KernelRecord, own: Mapping[str, str]
    ) -> OtherKernelBody:
        """``environment`` is the other's, ``own`` that of ``record``, whose page it is."""
        timing = other.timings.of(other.regime)
        return cls(
            **listed_members(other),
            config_hash=other.config.digest,
            same=other.kernel_sha256 == record.kernel_sha256,
            us=timing.median_us if timing else None,
            default_ratio=timing.ratio_to("default") if timing else None,
            environment=environment,
            changed=changed(own, environment),
        )


class KernelPageBody(BaseModel):
    """A kernel with all that its page shows. ``answers``: its problem is answered with it now; ``role_words`` say what
    it is there for. ``history``: the problem's kernels on this model of device, ``elsewhere``: on others, both newest
    first; ``default_id``: the kernel of the family's default to compare with. ``may_change``: the caller's key may pin
    and delete it."""

    kernel: KernelDocument
    role_words: str
    shown_role: str
    answers: bool
    flops: int
    times: list[RegimeTimes]
    knobs: list[KnobBody]
    environment: dict[str, str]
    snippets: list[Snippet]
    signer: str
    search: str
    history: list[OtherKernelBody]
    elsewhere: list[OtherKernelBody]
    default_id: str | None
    may_change: bool

    @property
    def history_svg(self) -> Markup:
        """The times of this kernel and its history in its regime, empty where there are not two."""
        timing = self.kernel.timings.get(self.kernel.regime) or {}
        own = HistoryPoint(self.kernel.created_at, timing.get("median_us"), self.environment, own=True)
        others = [
            HistoryPoint(other.created_at, other.us, other.environment, own=False)
            for other in reversed(self.history)
            if other.regime == self.kernel.regime
        ]
        return history_drawing([own, *others])


class ExplanationPageBody(BaseModel):
    """Why a kernel is as fast as it is; ``html`` is what the page shows of it."""

    id: str
    explanation: ExplanationDocument
    html: str


class CodeLineBody(BaseModel):
    """A line of code, the line of the CUDA source that it is of, and a number from 0 to 7 by which lines of one line
    of the source are coloured alike; null where that is not known or nothing else is of that line."""

    text: str
    source: int | None
    colour: int | None


class CodeTextBody(BaseModel):
    """One text of a kernel. ``left_out``: lines at the end that are not here but at ``url``."""

    kind: str
    name: str
    made: str | None
    missing: str | None
    unlinked: str | None
    lines: list[CodeLineBody]
    left_out: int
    url: str


class KernelCodeBody(BaseModel):
    """The texts of a kernel's artifact side by side."""

    id: str
    gemm: str
    texts: list[CodeTextBody]

    @classmethod
    def of(cls, record: KernelRecord, texts: Sequence[CodeText], most_bytes: int) -> KernelCodeBody:
        """The texts from their first lines on, within ``most_bytes`` bytes in all."""
        linked = {line.source for text in texts if text.kind != "cuda" for line in text.lines} - {None}
        colours = {source: at % 8 for at, source in enumerate(sorted(source for source in linked if source))}
        bodies = [
            CodeTextBody(
                kind=text.kind,
                name=text.name,
                made=text.made or None,
                missing=text.missing or None,
                unlinked=text.unlinked or None,
                lines=[
                    CodeLineBody(text=line.text, source=line.source, colour=colours.get(line.source or 0))
                    for line in text.lines[:most]
                ],
                left_out=len(text.lines) - most,
                url=f"/kernels/{record.id}/code/{text.kind}",
            )
            for text, most in zip(texts, lines_that_fit(texts, most_bytes), strict=True)
        ]
        return cls(id=record.id, gemm=str(record.gemm), texts=bodies)

    @cached_property
    def _shown(self) -> dict[str, set[int]]:
        """By kind the lines of the source that are shown there, or lines of them."""
        return {
            text.kind: {line.source for line in text.lines if line.source is not None and line.colour is not None}
            for text in self.texts
        }

    def markup(self, text: CodeTextBody) -> Markup:
        """The lines of one of the texts as HTML, of which a template makes thousands in several times as long. Each has
        a number: of a linked one a link to the ``target`` of it, of others of the source their own. The first of each
        line of the source has the id of kind and number."""
        parts: list[str] = []
        seen: set[int] = set()
        for number, line in enumerate(text.lines, 1):
            source, escaped = line.source, escape(line.text)
            if line.colour is None or source is None:
                parts.append(f'<span class="g">{number if text.kind == "cuda" else ""}</span>{escaped}\n')
                continue
            place = "" if source in seen else f' id="{text.kind}-{source}"'
            seen.add(source)
            link = f'<a class="g" href="#{self.target(text.kind, source)}">{source}</a>'
            parts.append(f'<span class="k{line.colour}" data-line="{source}"{place}>{link}{escaped}</span>\n')
        return Markup("".join(parts))

    def target(self, kind: str, source: int) -> str:
        """Where the number of a line leads: from the source to its machine code, else to its PTX; from these to the
        source; to the first line of its own text where the others show none."""
        places = ("sass", "ptx", kind) if kind == "cuda" else ("cuda", kind)
        return f"{next(place for place in places if source in self._shown.get(place, ()))}-{source}"


def knobs_of(record: KernelRecord) -> list[KnobBody]:
    """Every knob of a kernel's config, with what its family says of it."""
    try:
        space = family_named(record.config.family).space(record.gemm, record.device)
        meanings = {knob.name: knob.meaning for knob in space.knobs}
    except InvalidRequest:
        meanings = {}
    return [KnobBody(name=name, value=value, meaning=meanings.get(name) or None) for name, value in record.config.knobs]
