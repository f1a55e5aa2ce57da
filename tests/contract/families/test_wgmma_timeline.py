"""Timelines of wgmma kernels on the model of sm_90a: every warpgroup's spans, complete, nested and in an order that the
barriers force, with results as they are without time stamps."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.contract.families.emulated_timeline import emulated_timelines
from tests.contract.families.emulation import rounded
from tests.helpers.wgmma_paths import TMA_KNOBS
from tirgemm.analysis.timeline.recording import RecordedSpan, Recording, Track
from tirgemm.config import Config, Value
from tirgemm.expr import evaluate
from tirgemm.families.common.ring_buffer import TILE
from tirgemm.families.wgmma.planning.plan import Plan, plan
from tirgemm.gemm import Gemm
from verification.emulator.operands import KernelCall

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the model compiles with g++")

_SMS = 2
_SMALL = TMA_KNOBS | {"tile_m": 64, "tile_n": 16, "stages": 3, "group": 1}
# Every role and every kind of span, m as a range, an operand that threads copy.
_CASES: dict[str, dict[str, Value]] = {
    "200x40x456:f16:nt": {"tile_m": 128},
    "1..264x104x520:f16:nt:alpha": {"cluster_m": 2, "schedule": "pingpong", "tile_n": 32},
    "77x45x127:f16:nt": {"load": "copy", "epilogue": "staged"},
    "70x44x1096:f16:nt:bias": {"split": 5, "reduction": "kernel", "epilogue": "direct"},
    "100x40x1100:bf16:nn:ldb=40:lda=1104": {"split": 4, "epilogue": "direct", "tile_m": 128},
    "200x40x4104:f16:nt:invariant": {"split": 4, "reduction": "block", "schedule": "pingpong"},
}
_SEEDS = (0, 5)


def _plan(text: str, changes: dict[str, Value]) -> Plan:
    return plan(Gemm.parse(text), Config("wgmma", tuple((_SMALL | changes).items())), _SMS)


def _steps_of(cut: Plan, block: int, tile: int) -> int:
    """Steps of k of a tile, of the part that the block or the tile is about."""
    if cut.cluster.parts == 1:
        return cut.grid.steps
    tiles = evaluate(cut.grid.tiles_m, cut.gemm.m_max) * evaluate(cut.grid.tiles_n, cut.gemm.m_max)
    part = block % cut.split if cut.cluster.adds_parts else tile // tiles // cut.gemm.batch
    return min(cut.grid.split_steps, cut.grid.steps - part * cut.grid.split_steps)


def _expected(cut: Plan, track: Track, tile: int) -> list[tuple[str, int]]:
    """The spans of a tile by kind and number, as the kernel's loops make them; the tile behind what is inside."""
    steps = range(_steps_of(cut, track.block, tile))
    if track.role == "producer":
        inside = [(kind, step) for step in steps for kind in ("wait", "load")]
    else:
        inside = [(kind, step) for step in steps for kind in ("wait", "multiply")] + [("drain", 0)]
        if cut.cluster.adds_in_turn:
            ends = [step for step in steps if (step + 1) % cut.grid.split_steps == 0 and step + 1 < cut.grid.steps]
            for step in reversed(ends):
                inside.insert(2 * (step + 1), ("add", 0))
            inside.append(("add", 0))
        if cut.warpgroups.pingpong:
            inside.insert(0, ("turn", 0))
        stores = True
        if cut.cluster.adds_parts:
            stores = track.block % cut.cluster.size < cut.cluster.reducers
            inside += [("exchange", 0), *([("add", 0)] if stores else [])]
        inside += [("store", 0)] if stores else []
    return [*inside, (TILE, tile)]


def _tiles(cut: Plan, track: Track) -> range:
    """The tiles of a warpgroup: every so many, in ping-pong by turns of two consumers."""
    clusters, work = (evaluate(dim, cut.gemm.m_max) for dim in (cut.grid.clusters, cut.grid.work))
    turns = cut.warpgroups.pingpong and track.role != "producer"
    first = track.block // cut.cluster.size + (int(track.role == "consumer 1") * clusters if turns else 0)
    return range(first, work, clusters * (2 if turns else 1))


def _step_spans(track: Track, kind: str) -> list[tuple[int, int, RecordedSpan]]:
    """The spans of a kind with the tile and the step that each is of."""
    spans, steps = [], list[RecordedSpan]()
    for span in track.spans:
        if span.kind == TILE:
            spans += [(span.number, step.number, step) for step in steps if step.kind == kind]
            steps = []
        else:
            steps.append(span)
    return spans


def _check_order(cut: Plan, recording: Recording) -> None:
    """Of one block: no wait for a stage ends before its load began, no stage is loaded before it was read."""
    for block in recording.blocks:
        producer, *consumers = recording.of_block(block)
        loads = _step_spans(producer, "load")
        loaded = {(tile, step): recording.place(producer, span.start) for tile, step, span in loads}
        frees = [recording.place(producer, span.end) for _, _, span in _step_spans(producer, "wait")]
        order = {(tile, step): number for number, (tile, step, _) in enumerate(loads)}
        assert len(order) == len(frees)
        for track in consumers:
            for tile, step, span in _step_spans(track, "wait"):
                assert recording.place(track, span.end) > loaded[tile, step]
            for tile, step, span in _step_spans(track, "multiply"):
                later = order[tile, step] + cut.stages
                assert later >= len(frees) or frees[later] > recording.place(track, span.end)


@pytest.mark.parametrize("text", _CASES)
def test_every_role_records_all_that_it_does_in_order(text: str) -> None:
    cut = _plan(text, _CASES[text])
    call = KernelCall.integers(cut.gemm, cut.gemm.m_max, seed=3)
    roles = {"producer", *(f"consumer {number}" for number in range(cut.warpgroups.consumers))}
    for d, recording in emulated_timelines(cut, 1024, call, _SEEDS):
        assert np.array_equal(d, rounded(call))
        assert (recording.source, recording.measured, recording.unit) == ("emulator", False, "steps of the emulator")
        assert len(recording.blocks) == recording.launched == evaluate(cut.grid.blocks, call.m)
        assert len(recording.tracks) == recording.launched * len(roles)
        for track in recording.tracks:
            assert track.role in roles
            assert track.lost == 0
            assert [(span.kind, span.number) for span in track.spans] == [
                named for tile in _tiles(cut, track) for named in _expected(cut, track, tile)
            ]
            assert all(span.length > 0 for span in track.spans)
        assert list(recording.faults()) == []
        _check_order(cut, recording)


def test_of_more_spans_than_slots_the_last_are_kept() -> None:
    cut = _plan("200x40x456:f16:nt", {})
    call = KernelCall.integers(cut.gemm, cut.gemm.m_max, seed=3)
    ((_, whole),) = emulated_timelines(cut, 1024, call, (2,))
    ((d, wrapped),) = emulated_timelines(cut, 16, call, (2,))
    assert np.array_equal(d, rounded(call))
    for full, last in zip(whole.tracks, wrapped.tracks, strict=True):
        assert (last.recorded, last.lost) == (len(full.spans), len(full.spans) - 16)
        assert last.lost > 2 * 16
        assert [(span.kind, span.number, span.length) for span in last.spans] == [
            (span.kind, span.number, span.length) for span in full.spans[-16:]
        ]
    assert list(wrapped.faults()) == []
