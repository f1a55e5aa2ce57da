"""Timelines: tracks out of ring buffers, and their file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.timeline_recordings import _BEGUN, _RING, _emulated, _recording, _row, _track
from tests.helpers.scripts import script
from tirgemm.analysis.timeline.decoding import UNWRITTEN, cycles_per_us, spread, timer_step_ns, tracks_of
from tirgemm.analysis.timeline.recording import Recording, TimeStamp
from tirgemm.errors import InvalidRequest

check: Any = script("benchmarks/check.py")


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
