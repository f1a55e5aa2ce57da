"""Export of a recording as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

A block is a process, a warpgroup a thread of it, a span a complete event; those of a thread nest. Source: "Trace Event
Format", Google.
"""

from __future__ import annotations

from typing import Any

from tirgemm.analysis.timeline.recording import Recording, Track
from tirgemm.families.common.ring_buffer import TILE


def perfetto(recording: Recording) -> dict[str, Any]:
    """The trace as the JSON object of the format. Times are microseconds; of an emulator a step is shown as one, and
    every name of a process says so."""
    events: list[dict[str, Any]] = []
    for block in recording.blocks:
        tracks = recording.of_block(block)
        who = f"block {block}, SM {tracks[0].sm}" if recording.measured else f"block {block} (emulated, not measured)"
        events.append(_name("process_name", block, 0, who))
        for track in tracks:
            events.append(_name("thread_name", block, track.warpgroup, track.role))
            events += _spans(recording, track)
    environment = recording.environment
    about = {
        "source": recording.source,
        "unit": "us" if recording.measured else f"1 us is one of the {recording.unit}",
        "gemm": recording.gemm,
        "m": recording.m,
        "family": recording.family,
        "config": ", ".join(f"{name}={value}" for name, value in recording.config.items()),
        "kernel": recording.kernel,
        "device": str(environment.get("device")),
        "driver": str(environment.get("driver")),
        "commit": str(environment.get("commit")),
        "timer_step_ns": recording.timer_step_ns,
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def _name(what: str, block: int, warpgroup: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": block, "tid": warpgroup, "args": {"name": name}}


def _spans(recording: Recording, track: Track) -> list[dict[str, Any]]:
    """A span as a complete event; a tile before what is inside, as nesting wants equal starts."""

    def ns(cycles: int) -> int:
        return round(1e3 * recording.place(track, cycles))

    ordered = sorted(track.spans, key=lambda span: (span.start, -span.end, span.kind != TILE))
    return [
        {
            "ph": "X",
            "name": f"tile {span.number}" if span.kind == TILE else span.kind,
            "cat": span.kind,
            "ts": ns(span.start) / 1e3,
            "dur": (ns(span.end) - ns(span.start)) / 1e3,
            "pid": track.block,
            "tid": track.warpgroup,
            "args": {"number": span.number, "cycles": span.length},
        }
        for span in ordered
    ]
