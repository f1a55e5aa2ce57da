"""Timelines: tracks out of ring buffers, their file, the trace for Perfetto and the drawing."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.helpers.scripts import script
from tirgemm.analysis.figures.timeline_chart import timeline_svg
from tirgemm.analysis.timeline.decoding import UNWRITTEN, cycles_per_us, spread, timer_step_ns, tracks_of
from tirgemm.analysis.timeline.perfetto import perfetto
from tirgemm.analysis.timeline.recording import RecordedSpan, Recording, TimeStamp, Track
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families.common.ring_buffer import BEGUN, ENDED, HEADER_WORDS, RECORDED, SM, RingBuffer
from tirgemm.hardware import named_device
from tirgemm.service import cli
from tirgemm.service.explain.page import timeline_page
from tirgemm.service.explain.timeline_text import timeline_section
from tirgemm.service.pages.assets import ASSETS
from tirgemm.tuning.timed_kernel import TimedKernel

check: Any = script("benchmarks/check.py")
_KINDS = {kind: f"what {kind} & others are" for kind in ("tile", "wait", "load", "multiply", "store")}
_RING = RingBuffer(3, ("producer", "consumer 0"), _KINDS, 4)
# In the middle of a period of the clock's low word, so that it begins anew within the track.
_BEGUN = 2**33 + 2**32 - 50
_H200 = named_device("sm_90a")
_SVG = "{http://www.w3.org/2000/svg}"


def _row(spans: list[tuple[int, int, int, int]], recorded: int, length: int = 200) -> np.ndarray:
    """A track that began at _BEGUN; ``spans`` by slot: start and end since then, kind, number."""
    row = np.full(_RING.track_words, UNWRITTEN, np.uint32)
    row[RECORDED], row[SM] = recorded, 7
    for at, cycles in ((BEGUN, _BEGUN), (ENDED, _BEGUN + length)):
        row[at : at + 4] = cycles % 2**32, cycles >> 32, 5, 1
    for slot, (start, end, kind, number) in enumerate(spans):
        at = HEADER_WORDS + 4 * slot
        row[at : at + 4] = (_BEGUN + start) % 2**32, (_BEGUN + end) % 2**32, kind, number
    return row


def _track(block: int, warpgroup: int, spans: list[tuple[str, int, int, int]], begun: TimeStamp) -> Track:
    made = tuple(RecordedSpan(*span) for span in spans)
    length = max(span.end for span in made)
    ended = TimeStamp(begun.cycles + length, begun.ns + length // 2)
    return Track(block, warpgroup, _RING.roles[warpgroup], block + 10, len(made), begun, ended, made)


def _recording() -> Recording:
    """Two blocks on SMs whose clocks are far apart, by a timer that says they began 1 us apart; 2 cycles a ns."""
    tracks = []
    for block, begun in enumerate((TimeStamp(10**9, 5000), TimeStamp(77, 6000))):
        for warpgroup, kind in enumerate(("load", "multiply")):
            spans = []
            for tile in (0, 1):
                at = 1000 * tile
                inside = [("wait", 0, at, at + 300), (kind, 0, at + 300, at + 900)]
                spans += [*inside, ("tile", 2 * tile + block, at, at + 900)]
            tracks.append(_track(block, warpgroup, spans, begun))
    return Recording(
        source="device",
        environment={"device": "NVIDIA H200", "driver": "580.1", "commit": "c" * 40, "date": "2026-11-23"},
        gemm="256x128x64:f16:nt",
        m=256,
        family="wgmma",
        config={"tile_m": 128, "schedule": "cooperative"},
        kernel="wgmma_gemm",
        resources={"registers": 168, "spill_bytes": 0},
        source_sha256="5" * 64,
        kinds=_KINDS,
        slots=64,
        launched=5,
        cycles_per_us=2000.0,
        timer_step_ns=1000,
        tracks=tuple(tracks),
    )


def _emulated() -> Recording:
    return replace(_recording(), source="emulator", cycles_per_us=0.0, timer_step_ns=0)


# -- ring buffers ----------------------------------------------------------------------------------


def test_tracks_are_read_in_order_around_the_ring_and_the_clocks_low_word() -> None:
    # Of six spans the first two were overwritten by the last two.
    wrapped = _row([(120, 130, 3, 2), (20, 130, 0, 9), (20, 70, 1, 1), (70, 120, 3, 1)], recorded=6)
    short = _row([(0, 10, 1, 0)], recorded=1)
    first, second = tracks_of(np.concatenate([wrapped, short, *[short] * 4]), _RING, 1)
    assert (first.block, first.warpgroup, first.role, first.sm, first.lost) == (0, 0, "producer", 7, 2)
    assert [(s.kind, s.number, s.start, s.end) for s in first.spans] == [
        ("wait", 1, 20, 70),
        ("multiply", 1, 70, 120),
        ("multiply", 2, 120, 130),
        ("tile", 9, 20, 130),
    ]
    assert first.begun == TimeStamp(_BEGUN, 2**32 + 5)
    assert list(first.faults()) == []
    assert (second.role, second.lost, [s.kind for s in second.spans]) == ("consumer 0", 0, ["wait"])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (np.full(_RING.track_words, UNWRITTEN, np.uint32), "producer of block 0 did not end its timeline"),
        (_row([], 0, length=2**32), "ran 4294967296 cycles; time stamps tell apart 4294967296"),
        (_row([(0, 1, 5, 0)], 1), "of kind 5; the kernel has 5 kinds"),
    ],
)
def test_tracks_that_cannot_be_are_refused(row: np.ndarray, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        tracks_of(np.concatenate([row] * 6), _RING, 1)


def test_the_clocks_rate_is_from_one_call_to_another_on_the_same_sm() -> None:
    spans = [("wait", 0, 0, 100)]
    earlier = [_track(block, 0, spans, TimeStamp(100 * block, 1000)) for block in (0, 1)]
    later = [_track(block, 0, spans, TimeStamp(100 * block + 36000, 21000)) for block in (1, 2)]
    assert cycles_per_us(earlier, later) == 1800.0
    assert cycles_per_us(earlier[:1], later) == 0.0
    assert timer_step_ns([*earlier, *later]) == 50


def test_blocks_are_spread_over_all() -> None:
    assert [spread(132, 4), spread(3, 8), spread(1, 1)] == [(0, 33, 66, 99), (0, 1, 2), (0,)]


# -- the recording and its file --------------------------------------------------------------------


def test_sms_are_laid_beside_one_another_by_the_timer() -> None:
    recording = _recording()
    first, other = recording.of_block(0)[1], recording.of_block(1)[1]
    assert [recording.place(track, 600) for track in (first, other)] == [0.3, 1.3]
    assert (recording.length, recording.unit) == (1.95, "us")


@pytest.mark.parametrize("name", ["kernel.json", "kernel.json.gz"])
def test_a_file_has_the_whole_recording(tmp_path: Path, name: str) -> None:
    recording = _recording()
    recording.write(tmp_path / name)
    assert Recording.read(tmp_path / name) == recording
    again = tmp_path / f"again-{name}"
    recording.write(again)
    assert again.read_bytes() == (tmp_path / name).read_bytes()


def _changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(_recording().to_json()))
    change(document)
    return document


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(format=2), "it is format 2 of 'timeline'; read is format 1"),
        (lambda d: d.update(suite="square"), "of 'square'"),
        (lambda d: d.update(source="guess"), "its source is 'guess'; sources are device, emulator"),
        (lambda d: d.pop("tracks"), "it is not a recording of a timeline"),
        (lambda d: d["tracks"][0]["spans"]["kind"].__setitem__(0, 99), "it is not a recording of a timeline"),
        (
            lambda d: d["tracks"][0]["spans"]["kind"].__setitem__(0, -1),
            "a span is of kind -1; kinds are counted from 0",
        ),
        (lambda d: d.update(kinds=["tile"]), "it is not a recording of a timeline"),
        (lambda d: d.update(environment="H200"), "it is not a recording of a timeline"),
        (lambda d: d.update(m="many"), "it is not a recording of a timeline"),
        (lambda d: d.update(m=float("inf")), "it is not a recording of a timeline"),
        (lambda d: d.update(cycles_per_us=float("nan")), "a device's clock makes nan cycles a us"),
        (lambda d: d["tracks"][0]["spans"]["length"].pop(), "it is not a recording of a timeline"),
        (lambda d: d.update(tracks=[]), "no warpgroup recorded anything"),
        (lambda d: d.update(cycles_per_us=0.0), "a device's clock makes 0.0 cycles a us"),
        (lambda d: d["tracks"][0]["spans"]["length"].__setitem__(0, 301), "begins before"),
        (lambda d: d["tracks"][0]["spans"]["length"].__setitem__(5, 10**6), "is not within its track"),
        (lambda d: d["tracks"][0]["spans"]["length"].__setitem__(2, 899), "is in no tile"),
        (lambda d: d["tracks"][0]["spans"]["length"].__setitem__(2, 1001), "begins before"),
    ],
)
def test_a_document_that_is_no_recording_is_refused(
    change: Callable[[dict[str, Any]], object], words: str, tmp_path: Path
) -> None:
    file = tmp_path / "kernel.json"
    file.write_text(json.dumps(_changed(change)))
    with pytest.raises(InvalidRequest, match=words) as error:
        Recording.read(file)
    assert str(file) in str(error.value)


_DAMAGED = gzip.compress(b"{}")[:10] + b"\xff" * 12


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b"{"),
        ("deep.json", b"[" * 100_000),
        ("b.json.gz", b"no gzip"),
        ("damaged.json.gz", _DAMAGED),
        ("absent.json", None),
    ],
    ids=["a", "deep", "b", "damaged", "absent"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, data: bytes | None) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidRequest, match=f"{name} cannot be read as a recording"):
        Recording.read(tmp_path / name)


def test_the_check_of_results_takes_recordings_of_devices_alone() -> None:
    document = _recording().to_json()
    assert list(check.timelines.faults(document)) == []
    assert list(check.timelines.faults(_emulated().to_json())) == ["its source is emulator: results are of devices"]
    assert list(check.timelines.faults(document | {"format": 9})) == [
        "it is format 9 of 'timeline'; read is format 1 of timeline"
    ]
    assert check.timelines.origin(document)["source_sha256"] == "5" * 64


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


# -- the command -----------------------------------------------------------------------------------


def _run(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    code = cli.main(["explain", *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_draws_and_exports_what_was_recorded_elsewhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "kernel.json.gz"
    _emulated().write(file)
    code, out, err = _run(capsys, "--timeline", str(file))
    assert (code, err) == (0, "")
    assert "emulated, nothing was measured" in out
    assert (tmp_path / "kernel.html").read_text() == timeline_page(_emulated())
    assert json.loads((tmp_path / "kernel.trace.json").read_text()) == json.loads(json.dumps(perfetto(_emulated())))
    code, out, _ = _run(capsys, "--timeline", str(file), "--json")
    document = json.loads(out)["timeline"]
    assert (code, document["source"], document["unit"]) == (0, "emulator", "steps of the emulator")
    assert document["page"] == str(tmp_path / "kernel.html")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("256x128x64:f16:nt", "--device", "sm_90a", "--timeline", "a.json"), "device sm_90a is none"),
        (("256x128x64:f16:nt", "--device", "cpu", "--timeline", "a.json"), "device cpu is none"),
        (("256x128x64:f16:nt", "--device", "cuda:99", "--timeline", "a.json"), "device cuda:99 is not on this machine"),
        (("256x128x64:f16:nt", "--timeline", "a.svg"), "named NAME.json.gz or NAME.json, not 'a.svg'"),
        (("--timeline", "absent.json"), "absent.json cannot be read as a recording"),
        (("--timeline", "absent.json"), "recording: No such file or directory"),
        (("256x128x64:f16:nt", "--timeline", "absent/a.json"), "there is no folder absent; make it first"),
    ],
)
def test_the_command_says_why_it_records_nothing(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    code, _, err = _run(capsys, *options)
    assert code != 0
    assert words in " ".join(err.split())


_EXPLAINED = ("1024x1024x512:f16:nt", "--device", "sm_90a", "--family", "wgmma", "--as-written")


def test_the_command_records_the_kernel_that_it_explains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[TimedKernel] = []

    def record(kernel: TimedKernel, device: Device, environment: dict[str, Any], *, m: int) -> Recording:
        given.append(kernel)
        assert (device, m) == (_H200, 1024)
        assert {"device", "tirgemm", "commit", "date"} <= set(environment)
        return _recording()

    monkeypatch.setattr("tirgemm.service.commands.explain._recording_gpu", lambda _: _H200)
    monkeypatch.setattr("tirgemm.tuning.timed_kernel.record", record)
    file, page = tmp_path / "kernel.json.gz", tmp_path / "page.html"
    code, out, err = _run(capsys, *_EXPLAINED, "--timeline", str(file), "--html", str(page), "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["timeline"] == {
        "recording": str(file),
        "page": str(tmp_path / "kernel.html"),
        "trace": str(tmp_path / "kernel.trace.json"),
        "source": "device",
        "length": 1.95,
        "unit": "us",
    }
    assert dict(given[0].config.knobs) == document["config"]
    assert Recording.read(file) == _recording()
    assert timeline_svg(_recording()) in page.read_text()
    assert (tmp_path / "kernel.trace.json").exists()


def test_the_command_records_on_no_gpu_of_another_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tirgemm.service.commands.explain._recording_gpu", lambda _: named_device("sm_80"))
    code, _, err = _run(capsys, *_EXPLAINED, "--timeline", str(tmp_path / "kernel.json"))
    assert code != 0
    assert "the kernel is for cuda:sm_90a" in " ".join(err.split())
    assert list(tmp_path.iterdir()) == []
