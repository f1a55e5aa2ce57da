"""JSON documents of the page of one kernel."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from tirgemm.errors import InvalidRequest
from tirgemm.families import family_named
from tirgemm.service.http.documents import ExplanationDocument, KernelDocument
from tirgemm.service.http.pages.kernel_table_page import ListedKernelBody, listed_members
from tirgemm.service.views.kernels.code_lines import CodeText
from tirgemm.service.views.kernels.get_snippets import Snippet
from tirgemm.service.views.kernels.kernel_history import environment_of
from tirgemm.service.views.kernels.kernel_timings import RegimeTimes
from tirgemm.tuning.records import KernelRecord


class KnobBody(BaseModel):
    """A knob with its value; ``meaning`` is the family's, null where it says nothing."""

    name: str
    value: int | str | bool
    meaning: str | None


class OtherKernelBody(ListedKernelBody):
    """Another kernel of the same problem. ``same``: it has the same machine code and launch; ``changed``: what of the
    environment is other there, and how."""

    config_hash: str
    same: bool
    default_ratio: float | None
    environment: dict[str, str]
    changed: dict[str, str]

    @classmethod
    def of(cls, other: KernelRecord, record: KernelRecord) -> OtherKernelBody:
        timing, environment = other.timings.of(other.regime), environment_of(other)
        return cls(
            **listed_members(other),
            config_hash=other.config.digest,
            same=other.kernel_sha256 == record.kernel_sha256,
            us=timing.median_us if timing else None,
            default_ratio=timing.ratio_to("default") if timing else None,
            environment=environment,
            changed=_changed(environment_of(record), environment),
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
    def of(cls, record: KernelRecord, texts: tuple[CodeText, ...], most: int) -> KernelCodeBody:
        """Of each text the first ``most`` lines."""
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
                left_out=max(0, len(text.lines) - most),
                url=f"/kernels/{record.id}/code/{text.kind}",
            )
            for text in texts
        ]
        return cls(id=record.id, gemm=str(record.gemm), texts=bodies)


def knobs_of(record: KernelRecord) -> list[KnobBody]:
    """Every knob of a kernel's config, with what its family says of it."""
    try:
        space = family_named(record.config.family).space(record.gemm, record.device)
        meanings = {knob.name: knob.meaning for knob in space.knobs}
    except InvalidRequest:
        meanings = {}
    return [KnobBody(name=name, value=value, meaning=meanings.get(name) or None) for name, value in record.config.knobs]


def _changed(here: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    return {name: there[name] for name in sorted(there) if name in here and here[name] != there[name]}
