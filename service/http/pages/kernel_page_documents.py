"""JSON documents of the page of one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from tirgemm.errors import InvalidRequest
from tirgemm.families import family_named
from tirgemm.progress import role_name, role_words
from tirgemm.service.http.documents import DeviceBody, ExplanationDocument, KernelDocument
from tirgemm.service.http.pages.kernel_table_page import RatioBody
from tirgemm.service.views.kernels.code_lines import CodeText
from tirgemm.service.views.kernels.get_snippets import Snippet
from tirgemm.service.views.kernels.kernel_history import environment_of
from tirgemm.service.views.kernels.kernel_timings import RegimeTimes, TimedEntry
from tirgemm.tuning.records import KernelRecord


class QuartilesBody(BaseModel):
    """Samples in microseconds a call: the least, the middle half from ``low`` to ``high``, the median, the most."""

    least: float
    low: float
    median: float
    high: float
    most: float
    count: int


class TimedEntryBody(BaseModel):
    """What ran in a run: ``name`` is empty for the kernel itself. ``quartiles`` and ``samples_us`` of the stored
    samples, null and empty where there are none; ``speed``: the time of this baseline over the kernel's."""

    name: str
    median_us: float
    tflops: float
    quartiles: QuartilesBody | None
    samples_us: list[float]
    speed: RatioBody | None

    @classmethod
    def of(cls, entry: TimedEntry, flops: int) -> TimedEntryBody:
        known = entry.quartiles
        return cls(
            name=entry.name,
            median_us=entry.median_us,
            tflops=flops / entry.median_us / 1e6,
            quartiles=QuartilesBody.model_validate(known, from_attributes=True) if known else None,
            samples_us=list(entry.samples_us),
            speed=RatioBody.of(entry.speed),
        )


class RegimeTimesBody(BaseModel):
    """One run in a regime, the kernel first; without entries ``missing`` says why."""

    regime: str
    entries: list[TimedEntryBody]
    conditions: dict[str, Any]
    missing: str | None

    @classmethod
    def of(cls, times: RegimeTimes, flops: int) -> RegimeTimesBody:
        entries = [TimedEntryBody.of(entry, flops) for entry in times.entries]
        return cls(
            regime=times.regime, entries=entries, conditions=dict(times.conditions), missing=times.missing or None
        )


class KnobBody(BaseModel):
    """A knob with its value; ``meaning`` is the family's, null where it says nothing."""

    name: str
    value: int | str | bool
    meaning: str | None


class SnippetBody(BaseModel):
    """A text to copy that gets the kernel."""

    name: str
    text: str

    @classmethod
    def of(cls, snippet: Snippet) -> SnippetBody:
        return cls(name=snippet.name, text=snippet.text)


class OtherKernelBody(BaseModel):
    """Another kernel of the same problem. ``same``: it has the same machine code and launch; ``changed``: what of the
    environment is other there, and how."""

    id: str
    device: DeviceBody
    regime: str
    role: str
    shown_role: str
    verified: bool
    pinned: bool
    family: str
    config_hash: str
    same: bool
    us: float | None
    default_ratio: float | None
    environment: dict[str, str]
    changed: dict[str, str]
    created_at: str

    @classmethod
    def of(cls, other: KernelRecord, record: KernelRecord) -> OtherKernelBody:
        timing, environment = other.timings.of(other.regime), environment_of(other)
        return cls(
            id=other.id,
            device=DeviceBody.of(other.device),
            regime=other.regime,
            role=other.role,
            shown_role=role_name(other.role, portable=other.portable),
            verified=other.certificate is not None and other.certificate.passed,
            pinned=other.pinned,
            family=other.config.family,
            config_hash=other.config.digest,
            same=other.kernel_sha256 == record.kernel_sha256,
            us=timing.median_us if timing else None,
            default_ratio=timing.ratio_to("default") if timing else None,
            environment=environment,
            changed=_changed(environment_of(record), environment),
            created_at=other.created_at,
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
    times: list[RegimeTimesBody]
    knobs: list[KnobBody]
    environment: dict[str, str]
    snippets: list[SnippetBody]
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
    def of(cls, record: KernelRecord, texts: Sequence[CodeText], most: int) -> KernelCodeBody:
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


def role_phrase(record: KernelRecord) -> str:
    """What a kernel is there for, in words."""
    return role_words(record.role, portable=record.portable)


def _changed(here: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    return {name: there[name] for name in sorted(there) if name in here and here[name] != there[name]}
