"""Waits of recorded timelines, and the recordings that come with the package: their pictures, traces and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tirgemm.analysis.figures.timeline_chart import timeline_svg
from tirgemm.analysis.timeline.perfetto import perfetto
from tirgemm.analysis.timeline.recording import RecordedSpan, Recording, TimeStamp, Track
from tirgemm.analysis.timeline.waits import share_under_way, shares_of_roles, shortest_wait
from tirgemm.service.explain.kernel_timeline import shipped_files

SHIPPED = {path.name.partition(".")[0]: path for path in shipped_files()}
KINDS = {"tile": "", "wait": "", "load": "", "multiply": ""}


def track(warpgroup: int, role: str, begun: int, *spans: tuple[str, int, int]) -> Track:
    """A track of one tile with these spans: kind, start, end."""
    inside = [RecordedSpan(kind, 0, start, end) for kind, start, end in spans]
    last = max(end for _, _, end in spans)
    tile = RecordedSpan("tile", 0, 0, last)
    stamps = TimeStamp(begun, 0), TimeStamp(begun + last, 500)
    return Track(0, warpgroup, role, 0, len(spans) + 1, *stamps, (*inside, tile))


def recording(*tracks: Track) -> Recording:
    texts = {"gemm": "1x1x1:f16:nt", "family": "wgmma", "kernel": "k", "source_sha256": "5" * 64}
    return Recording(
        source="device",
        environment={},
        m=1,
        config={},
        resources={},
        kinds=KINDS,
        slots=8,
        launched=1,
        cycles_per_us=1000.0,
        timer_step_ns=32,
        tracks=tracks,
        **texts,
    )


def test_what_is_awaited_is_under_way_while_the_producer_waits_or_has_ended() -> None:
    producer = track(0, "producer", 1000, ("wait", 0, 100), ("load", 100, 200), ("wait", 200, 240), ("load", 240, 300))
    # By its own clock 50 later: it waits from 1050 to 1250, from 1270 to 1290 and from 1310 to 1400.
    waits = ("wait", 0, 200), ("multiply", 200, 220), ("wait", 220, 240), ("multiply", 240, 260), ("wait", 260, 350)
    whole = recording(producer, track(1, "consumer 0", 1050, *waits))
    # Of the first wait 1050 to 1100 and 1200 to 1240; nothing of the second; all of the third.
    assert share_under_way(whole) == pytest.approx((50 + 40 + 90) / (200 + 20 + 90))
    assert shortest_wait(whole) == 20
    assert shares_of_roles(whole) == {
        "producer": {"wait": pytest.approx(140 / 300), "load": pytest.approx(160 / 300)},
        "consumer 0": {"wait": pytest.approx(310 / 350), "multiply": pytest.approx(40 / 350)},
    }


def test_without_waits_or_a_producer_nothing_is_said() -> None:
    producer, busy = track(0, "producer", 0, ("load", 0, 9)), track(1, "consumer 0", 0, ("multiply", 0, 9))
    assert share_under_way(recording(producer, busy)) is None
    assert shortest_wait(recording(producer, busy)) is None
    assert share_under_way(recording(track(1, "consumer 0", 0, ("wait", 0, 9)))) is None


def test_of_a_producer_that_recorded_nothing_everything_is_under_way() -> None:
    stamp = TimeStamp(0, 0)
    producer = Track(0, 0, "producer", 0, 0, stamp, stamp, ())
    assert share_under_way(recording(producer, track(1, "consumer 0", 0, ("wait", 0, 9)))) == 1


def test_three_recordings_of_an_h200_come_with_the_package() -> None:
    assert set(SHIPPED) >= {"square", "few_rows", "split"}


@pytest.mark.parametrize("path", SHIPPED.values(), ids=SHIPPED.keys())
def test_a_recording_that_comes_with_the_package_draws_small_and_traces_whole(path: Path) -> None:
    read = Recording.read(path)
    picture = timeline_svg(read)
    assert len(picture) < 100_000
    assert "NVIDIA H200" in picture
    spans = [event for event in perfetto(read)["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == sum(len(one.spans) for one in read.tracks)
    assert json.dumps(spans, allow_nan=False)
    for one in read.tracks:
        open_until: list[int] = []
        for event in (event for event in spans if (event["pid"], event["tid"]) == (one.block, one.warpgroup)):
            start, length = round(1000 * event["ts"]), round(1000 * event["dur"])
            assert min(start, length) >= 0
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or start + length <= open_until[-1], "events of a thread nest"
            open_until.append(start + length)
    under_way = share_under_way(read)
    assert under_way is not None
    assert 0 < under_way < 1
    for shares in shares_of_roles(read).values():
        assert 0.9 < sum(shares.values()) <= 1
