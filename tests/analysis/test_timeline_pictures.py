"""Timelines drawn, told in text, and traced for Perfetto."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.analysis.timeline_recordings import _emulated, _recording, _track
from tirgemm.analysis.figures.timeline_chart import timeline_svg
from tirgemm.analysis.timeline.perfetto import perfetto
from tirgemm.analysis.timeline.recording import TimeStamp
from tirgemm.errors import InvalidRequest
from tirgemm.service.explain.page import timeline_page
from tirgemm.service.explain.timeline_text import timeline_section
from tirgemm.service.pages.assets import ASSETS

_SVG = "{http://www.w3.org/2000/svg}"


# -- the trace -------------------------------------------------------------------------------------


def _nests(events: list[dict[str, Any]]) -> bool:
    """Whether each event of a thread, in the file's order, lies within all that are open, as Perfetto wants it."""
    open_until: list[float] = []
    for event in events:
        while open_until and open_until[-1] <= event["ts"]:
            open_until.pop()
        end = event["ts"] + event["dur"]
        if open_until and end > open_until[-1]:
            return False
        open_until.append(end)
    return True


def test_the_trace_has_the_members_that_the_format_asks_for() -> None:
    recording = _recording()
    trace = json.loads(json.dumps(perfetto(recording), allow_nan=False))
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(value, str | int) for value in trace["otherData"].values())
    for event in trace["traceEvents"]:
        assert (type(event["pid"]), type(event["tid"]), type(event["args"])) == (int, int, dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
        else:
            assert event["ph"] == "X"
            assert (type(event["name"]), type(event["cat"])) == (str, str)
            assert min(event["ts"], event["dur"]) >= 0
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == sum(len(track.spans) for track in recording.tracks)
    for track in recording.tracks:
        assert _nests([event for event in spans if (event["pid"], event["tid"]) == (track.block, track.warpgroup)])
    last = max(spans, key=lambda event: event["ts"])
    assert (last["ts"], last["dur"], last["cat"], last["args"]) == (1.65, 0.3, "load", {"number": 0, "cycles": 600})


def test_the_trace_of_an_emulator_says_so_wherever_it_is_looked_at() -> None:
    trace = perfetto(_emulated())
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert names == ["block 0 (emulated, not measured)", "block 1 (emulated, not measured)"]
    assert trace["otherData"]["source"] == "emulator"
    assert "steps of the emulator" in trace["otherData"]["unit"]


# -- the drawing -----------------------------------------------------------------------------------


def _texts(picture: str) -> str:
    return " ".join(element.text or "" for element in ElementTree.fromstring(picture).iter(f"{_SVG}text"))


def test_the_drawing_has_a_line_for_each_warpgroup_and_takes_its_colours_from_the_page() -> None:
    picture = timeline_svg(_recording())
    assert "style" not in picture
    sheet = (ASSETS / "style.css").read_text()
    used = {name for each in re.findall(r'class="([^"]+)"', picture) for name in each.split()} - {"tg"}
    assert used <= set(re.findall(r"\.tg \.(\w+)", sheet))
    assert not re.search(r"(fill|stroke)=|url\(|<script|href", picture)
    words = _texts(picture)
    assert "Timeline of 256x128x64:f16:nt, wgmma on NVIDIA H200" in words
    assert "5 blocks, of which 2 are shown; 1.95 us in all" in words
    assert "block 1, SM 11" in words
    assert words.count("consumer 0") >= 3
    assert "emulat" not in picture
    # Kinds that do not occur are not in the legend.
    assert "multiply" in words
    assert "store" not in words


def test_the_overview_colours_as_much_as_was_done() -> None:
    picture = ElementTree.fromstring(timeline_svg(_recording()))
    wide: dict[str, float] = {}
    for path in picture.iter(f"{_SVG}path"):
        if (kind := path.get("class", "")).startswith("h"):
            wide[kind] = wide.get(kind, 0.0) + sum(map(float, re.findall(r"h(\d+)v", path.get("d", ""))))
    axis = next(each for each in picture.iter(f"{_SVG}path") if each.get("class") == "l").get("d", "")
    left, right = (float(x) for x in re.findall(r"[ML]([\d.]+) ", axis))
    # In 3,900 cycles four lines wait for 600 each; two load and two multiply for 1,200 each.
    assert wide == {f"h{hue}": pytest.approx(2400 / 3900 * (right - left), abs=6) for hue in (0, 3, 5)}


def test_a_tile_closer_by_tells_each_span() -> None:
    picture = ElementTree.fromstring(timeline_svg(_recording()))
    tips = [title.text for title in picture.iter(f"{_SVG}title")]
    assert "multiply, step 0: 600 cycles" in tips
    assert "tile 2" in tips


def test_an_emulated_timeline_is_never_shown_as_measured() -> None:
    picture = timeline_svg(_emulated())
    label = ElementTree.fromstring(picture).get("aria-label", "")
    assert label.startswith("Emulated timeline (nothing was measured)")
    words = _texts(picture)
    assert "say nothing of the speed of any GPU" in words
    assert " us" not in words
    assert "steps" in words


def test_a_drawing_of_very_many_spans_stays_small() -> None:
    spans: list[tuple[str, int, int, int]] = []
    for step in range(20000):
        spans += [("wait", step, 5 * step, 5 * step + 2), ("multiply", step, 5 * step + 2, 5 * step + 5)]
    spans.append(("tile", 0, 0, 100000))
    tracks = tuple(_track(block, warpgroup, spans, TimeStamp(0, 0)) for block in range(6) for warpgroup in (0, 1))
    picture = timeline_svg(replace(_recording(), tracks=tracks))
    assert len(picture) < 400_000
    assert "of which 4 are shown" in picture


def test_more_kinds_than_colours_are_refused() -> None:
    kinds = tuple(f"kind{number}" for number in range(9))
    spans = [*((kind, 0, at, at + 1) for at, kind in enumerate(kinds)), ("tile", 0, 0, 9)]
    track = _track(0, 0, spans, TimeStamp(0, 0))
    with pytest.raises(InvalidRequest, match="spans of 9 kinds"):
        timeline_svg(replace(_recording(), kinds=dict.fromkeys(("tile", *kinds), ""), tracks=(track,)))


# -- the page --------------------------------------------------------------------------------------


def test_the_page_has_the_picture_with_its_key_and_loads_nothing() -> None:
    page = timeline_page(_recording())
    assert timeline_svg(_recording()) in page
    assert "multiply: what multiply &amp; others are" in page
    assert "tile: what tile &amp; others are" in page
    assert not re.search(r"<script|https?://(?!www\.w3\.org/2000/svg)|style=", page)
    assert "NVIDIA H200, driver 580.1, 2026-11-23" in page
    assert "nothing was measured" not in page
    assert "nothing was measured" in timeline_page(_emulated())


def test_the_text_shares_out_the_time_of_each_role() -> None:
    section = timeline_section(_recording())
    assert section.heads == ("share of tiles' time", ">wait", ">load", ">multiply")
    assert [tuple(cell.text for cell in cells) for cells in section.rows] == [
        ("producer", "33 %", "67 %", ""),
        ("consumer 0", "33 %", "", "67 %"),
    ]
    assert "clocks: 2,000 cycles a us; the SMs' are laid side by side to 1,000 ns" in section.lines
    assert "took: 1.95 us, on warm caches" in section.lines
    assert section.notes == (
        "In 100 % of the time that consumers wait for data, the producer waits for a free stage or has issued its last "
        "load: the data are on their way from memory. In the other 0 % it issues loads. A wait takes at least 300 "
        "cycles, where its stage is ready.",
    )
    assert timeline_section(_emulated()).notes == ()


def test_spans_that_were_lost_and_registers_that_spilled_are_told() -> None:
    recording = _recording()
    tracks = tuple(replace(track, recorded=track.recorded + 3) for track in recording.tracks)
    section = timeline_section(replace(recording, tracks=tracks, resources={"spill_bytes": 16}))
    assert section.notes[0].startswith("The first 12 spans were overwritten: a warpgroup keeps its last 64")
    assert "registers: with time stamps 16 bytes a thread are spilled" in section.lines
    assert "its first 6 spans were overwritten" in timeline_svg(replace(recording, tracks=tracks))
