"""Normal form of stored values, the same for every store: JSON's own types, text that any database takes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from tirgemm.errors import StoreError
from tirgemm.tuning.records import Candidate, SampleSet


def plain_text(text: str) -> str:
    """``text`` without NUL and lone surrogates, which PostgreSQL and UTF-8 refuse and compilers print."""
    if type(text) is str and text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "�").encode("utf-8", "replace").decode("utf-8")


def plain_json(value: Any) -> Any:
    """``value`` as JSON gives it back: tuples become lists, NaN and infinities None. StoreError if it is not JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return plain_text(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {plain_text(key): plain_json(item) for key, item in value.items()}
    raise StoreError(f"{value!r:.200} of type {type(value).__name__} cannot be stored; a store takes JSON values only")


def dump_json(value: Any, *, canonical: bool = False) -> str:
    """``value`` as compact JSON. Keys keep their order (knobs have one); ``canonical`` sorts them, for digests."""
    return json.dumps(
        plain_json(value), sort_keys=canonical, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def plain_samples(samples: SampleSet) -> SampleSet:
    """The sample set as a store gives it back. StoreError where there is no sample, or one that is not finite."""
    every = [samples.samples_us, *samples.baselines.values()]
    if not samples.samples_us or not all(math.isfinite(value) for taken in every for value in taken):
        raise StoreError(f"a sample set needs at least one sample and finite numbers, not {samples.samples_us!r:.200}")
    return SampleSet.from_json(plain_json(samples.to_json()))


def plain_candidate(candidate: Candidate) -> Candidate:
    """The candidate as a store gives it back. An error that is not a number is infinite: the result was NaN."""
    error = candidate.error
    return replace(
        candidate,
        message=plain_text(candidate.message),
        rule=plain_text(candidate.rule),
        error=math.inf if error is not None and math.isnan(error) else error,
        trace=plain_json(candidate.trace),
        sample_sets=tuple(plain_samples(samples) for samples in candidate.sample_sets),
    )


def merged(known: tuple[SampleSet, ...], new: tuple[SampleSet, ...]) -> tuple[SampleSet, ...]:
    """``known``, then those of ``new`` that are not in it: sample sets are only ever added."""
    return known + tuple(samples for samples in new if samples not in known)
