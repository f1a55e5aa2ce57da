"""Families' spaces as MetaSchedule traces, and what a trace's annotations name as points of a space.

A design space is a schedule that samples the index of every knob's choice and annotates the root block with the
sampled variable. Nothing branches on a sampled value, so a trace with a mutated decision stays true, and its
annotations follow it. The module being scheduled is an empty root block named for the problem: what the kernel
computes is ``tirgemm.workload``, and what a config makes of it is the family's ``instantiate``; the search only needs
something small to hold the knobs (a trace applies in 0.1 ms).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from tirgemm.config import Config, Space
from tirgemm.gemm import Gemm

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.s_tir import Schedule, Trace

ROOT = "root"
PREFIX = "tirgemm."
FAMILY = f"{PREFIX}family"
SPACE = f"{PREFIX}space"
GEMM = f"{PREFIX}gemm"
_KNOB = f"{PREFIX}knob."
# The instruction of a trace that says the space's digest: get the block, say the family, say the digest.
DIGEST_AT = 2


@dataclass(frozen=True, slots=True)
class Point:
    """A point of one family's space by the index of each knob's choice: what the search compares and remembers."""

    family: str
    indices: tuple[int, ...]


def point_of(space: Space, config: Config) -> Point:
    """The point of ``config``. Raises InvalidConfig for a config that is not in the space."""
    return Point(space.family, tuple(space.indices(config).values()))


def config_at(space: Space, point: Point) -> Config:
    """The config of ``point``."""
    return space.config({k.name: i for k, i in zip(space.knobs, point.indices, strict=True)})


@lru_cache(maxsize=64)
def space_digest(space: Space) -> str:
    """16 hexadecimal digits over the knobs and their choices: an index means the same where this is the same."""
    text = json.dumps([space.family, [[k.name, list(k.choices)] for k in space.knobs]], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def search_module(gemm: Gemm) -> IRModule:
    """The module whose root block the traces annotate; it differs for different problems."""
    from tvm import IRModule, tirx
    from tvm.s_tir import SBlock, SBlockRealize

    block = SBlock([], [], [], ROOT, tirx.Evaluate(0))
    body = SBlockRealize([], tirx.const(True, "bool"), block)
    function = tirx.PrimFunc([], body).with_attr({"global_symbol": "main", "tirx.noalias": True, GEMM: str(gemm)})
    return IRModule({"main": function})


def sample_knobs(schedule: Schedule, space: Space, point: Point | None = None) -> None:
    """Sample every knob's choice, uniformly, or as ``point`` has it, into annotations of the root block."""
    block = schedule.get_sblock(ROOT)
    schedule.annotate(block, FAMILY, space.family)
    schedule.annotate(block, SPACE, space_digest(space))
    decisions = [None] * len(space.knobs) if point is None else point.indices
    for knob, chosen in zip(space.knobs, decisions, strict=True):
        count = len(knob.choices)
        index = schedule.sample_categorical(list(range(count)), [1.0 / count] * count, decision=chosen)
        schedule.annotate(block, _KNOB + knob.name, index)


# By the digest of each space its family and the names of its knobs' annotations.
AnnotationNames: TypeAlias = "Mapping[str, tuple[str, tuple[str, ...]]]"


def annotation_names(spaces: Iterable[Space]) -> AnnotationNames:
    """Where points of ``spaces`` stand in the annotations of a root block."""
    return {space_digest(s): (s.family, tuple(_KNOB + knob.name for knob in s.knobs)) for s in spaces}


def annotated_point(schedule: Schedule, names: AnnotationNames) -> Point | None:
    """The point that the root block's annotations name, or None where they belong to a space that is no more."""
    # Straight from the module: Schedule.get takes ten times as long to check types.
    annotations: Mapping[str, Any] = schedule.mod["main"].body.block.annotations
    known = names.get(str(annotations.get(SPACE, "")))
    if known is None:
        return None
    family, knobs = known
    return Point(family, tuple(int(annotations[knob]) for knob in knobs))


def point_trace(space: Space, point: Point) -> Trace:
    """The trace that samples the choices of ``point``, without dead instructions."""
    trace = _first_trace(space)
    sampling = [each for each in trace.insts if each.kind.name == "SampleCategorical"]
    for instruction, chosen in zip(sampling, point.indices, strict=True):
        trace = trace.with_decision(instruction, chosen, remove_postproc=True)
    return trace


# A trace names neither the problem nor the module, and TVM takes as long to make one as to copy a hundred.
_ANY_GEMM = Gemm(1, 1, 1)


@lru_cache(maxsize=16)
def _first_trace(space: Space) -> Trace:
    """The trace of the space's first point."""
    from tvm.s_tir import Schedule

    schedule = Schedule(search_module(_ANY_GEMM), seed=1)
    sample_knobs(schedule, space, Point(space.family, (0,) * len(space.knobs)))
    return schedule.trace.simplified(True)
