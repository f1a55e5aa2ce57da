"""Pictures are well-formed, stand alone, keep inside their frame, and show what the data say."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest

from tirgemm.analysis.banks.access_patterns import copy_store, ldmatrix
from tirgemm.analysis.banks.wavefronts import analyze
from tirgemm.analysis.figures.charts import roofline_picture, waves_picture
from tirgemm.analysis.figures.shared_memory import bank_picture, copy_picture, tile_picture
from tirgemm.analysis.figures.svg import ranges
from tirgemm.analysis.tma_box import Box, box_picture, boxes_of
from tirgemm.errors import InvalidRequest
from tirgemm.launch import KernelLaunch, TensorMap
from tirgemm.layouts import Layout, TiledCopy
from tirgemm.service.pages.assets import ASSETS

LANES = np.arange(32)
SVG = "{http://www.w3.org/2000/svg}"
LAYOUTS = {
    "plain": Layout.plain(128, 32, 2),
    "padded": Layout.padded(128, 32, 2, 8),
    "permuted": Layout.tma(128, 32, 2, 64),
}
STORE = copy_store(TiledCopy.row_major(256, 32, 8), 128, 32, "store.128", 8)
ROOFS = ([("f16", 989.5)], [("DRAM", 4917.0), ("L2", 12000.0)], [("measured", 1365.3, 640.0)])
PICTURES = {
    "free": bank_picture(analyze(LANES * 4, "load.32")),
    "conflict": bank_picture(analyze(LANES * 128, "load.128")),
    "empty": bank_picture(analyze(LANES * 4, "load.32", False)),
    "matrix": bank_picture(analyze(LANES * 64, "ldmatrix.x2")),
    "copy": copy_picture(TiledCopy.parse("(16,8):(8,1) x (1,4)")),
    "copy of single values": copy_picture(TiledCopy.row_major(128, 32, 1)),
    "copy down": copy_picture(TiledCopy.parse("(8,16):(1,8) x (4,1)")),
    "box": box_picture(Box("a", 128, 64, 2, 3)),
    "narrow box": box_picture(Box("d", 8, 16, 2, 1)),
    "box without swizzle": box_picture(Box("c", 4, 12, 4, 0)),
    "copy, cut": copy_picture(TiledCopy.row_major(1024, 256, 8)),
    "tiles": tile_picture(LAYOUTS, STORE),
    "odd tile": tile_picture({"odd & <small>": Layout.padded(3, 13, 2, 1)}),
    "wide tiles": tile_picture({"a": Layout.plain(32, 256, 2), "b": Layout.padded(32, 256, 2, 8)}, ldmatrix(32, 256)),
    "waves": waves_picture(1024, 132, units=132),
    "many waves": waves_picture(16385, 264, units=132),
    "one block": waves_picture(1, 1),
    "roofline": roofline_picture(*ROOFS),
    "low point": roofline_picture(ROOFS[0], ROOFS[1], [("cold", 0.02, 0.0003), ("far", 9e5, 900)], "a < b & c"),
}


def styled_classes() -> set[str]:
    """The classes of pictures that the pages' style sheet has a rule for."""
    sheet = (ASSETS / "style.css").read_text()
    return {"tg", *re.findall(r"\.tg \.(\w+)", sheet)}


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def shapes(svg: str, tag: str, kind: str) -> list[ElementTree.Element]:
    return [each for each in parsed(svg).iter(f"{SVG}{tag}") if kind in each.get("class", "").split()]


def words(svg: str) -> list[str]:
    return [each.text or "" for each in parsed(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_shapes_alone_whose_classes_the_style_sheet_colours(name: str) -> None:
    svg = PICTURES[name]
    root = parsed(svg)
    assert root.get("aria-label") == words(svg)[0] != ""
    assert "style" not in svg
    assert {kind for each in root.iter() for kind in each.get("class", "").split()} <= styled_classes()
    tags = {each.tag.removeprefix(SVG) for each in root.iter()}
    assert tags <= {"svg", "text", "rect", "path", "circle", "g", "title"}
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|href|javascript|nan|inf\b", svg)
    assert len(svg) < 100_000


def test_the_names_of_threads_fit_their_cells() -> None:
    for name in ("copy", "copy of single values", "copy, cut"):
        root = parsed(PICTURES[name])
        cells = {float(each.get("x", 0)) + float(each.get("width", 0)) / 2: each for each in root.iter(f"{SVG}rect")}
        names = [each for each in root.iter(f"{SVG}text") if (each.text or "").startswith("T")]
        assert names, name
        last = {"copy": "T127", "copy of single values": "T127", "copy, cut": "T263"}[name]
        assert any((each.text or "").split()[0] == last for each in names), f"{name}: {names[-1].text}"
        for each in names:
            width = float(cells[float(each.get("x", 0))].get("width", 0))
            assert 5.2 * len(each.text or "") < width, f"{name}: {each.text} in {width}"


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_leaves_the_frame(name: str) -> None:
    root = parsed(PICTURES[name])
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    for each in root.iter(f"{SVG}rect"):
        x, y, w, h = (float(each.get(key, 0)) for key in ("x", "y", "width", "height"))
        assert w > 0
        assert 0 <= x <= x + w <= width + 0.2
        assert 0 <= y <= y + h <= height + 0.2
    for each in root.iter(f"{SVG}text"):
        x, length = float(each.get("x", 0)), 5.0 * len(each.text or "")
        kinds = each.get("class", "").split()
        left = x - length if "e" in kinds else x - length / 2 if "m" in kinds else x
        assert left > -4
        assert left + length < width + 4, each.text
        assert 0 < float(each.get("y", 0)) <= height
    for each in root.iter(f"{SVG}path"):
        for x, y in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", each.get("d", "")):
            assert -0.2 <= float(x) <= width + 0.2
            assert -0.2 <= float(y) <= height + 0.2


def test_every_word_of_a_request_is_in_a_cell_with_its_lanes() -> None:
    tips = [each.text or "" for each in parsed(PICTURES["matrix"]).iter(f"{SVG}title")]
    cells = [tip for tip in tips if tip.startswith("bank")]
    # Sixteen rows of 16 bytes; rows of 64 bytes meet in fours.
    assert len(cells) == 16 * 4
    assert "bank 16, word 16: lanes 1" in cells
    assert "bank 0, word 32: lanes 2" in cells
    assert "phase 1: lanes 8-15" in words(PICTURES["matrix"])


def test_wavefronts_beyond_the_fewest_are_marked_and_no_others() -> None:
    assert shapes(PICTURES["free"], "rect", "x") == []
    assert len(shapes(PICTURES["matrix"], "rect", "x")) == 6
    assert words(PICTURES["matrix"])[0] == "ldmatrix.x2: 8 wavefronts, 6 of them conflicts"
    assert words(PICTURES["empty"])[0] == "load.32: 0 wavefronts, 0 of them conflicts"


def test_what_is_not_drawn_is_said() -> None:
    assert "the first 32x64 of 32x256" in words(PICTURES["copy, cut"])
    assert "16 of 128 rows" in words(PICTURES["tiles"])
    assert any("more full waves" in each for each in words(PICTURES["many waves"]))


def test_a_copy_s_runs_are_drawn_once_each_with_their_thread() -> None:
    for name in ("copy", "copy down"):
        tips = [each.text or "" for each in parsed(PICTURES[name]).iter(f"{SVG}title")]
        assert len(tips) == 128
        assert {int(re.findall(r"thread (\d+), values 0-3", tip)[0]) for tip in tips} == set(range(128))
    assert "thread 9, values 0-3: from (1, 4) on" in PICTURES["copy"]


def test_the_tile_shows_the_banks_of_every_layout_and_which_cells_collide() -> None:
    svg = PICTURES["tiles"]
    assert len(shapes(svg, "rect", "d")) == 16, "pads of one layout"
    # The first phase stores two rows of four units: in the padded layout the first and the last collide.
    assert len(shapes(svg, "rect", "x")) == 2
    assert len(shapes(svg, "rect", "o")) == 3 * 8 - 2
    read = tile_picture(LAYOUTS, ldmatrix(128, 32))
    assert len(shapes(read, "rect", "x")) == 8, "the unpadded layout alone"
    cells = [int(each) for each in words(tile_picture({"x": Layout.padded(2, 32, 2, 8)})) if each.isdigit()]
    assert cells == [0, 0, 4, 8, 12, 1, 20, 24, 28, 0], "a row's number and its units' banks"


def test_the_last_wave_shows_what_is_idle() -> None:
    assert words(PICTURES["waves"])[0] == "1024 blocks in 8 waves of 132: 3.0% of the slots idle"
    assert "100 of 132" in words(PICTURES["waves"])
    filled = [float(each.get("width", 0)) for each in shapes(PICTURES["waves"], "rect", "h4")]
    assert len(filled) == 8
    assert filled[-1] / filled[0] == pytest.approx(100 / 132, rel=1e-3)
    assert len(shapes(PICTURES["waves"], "rect", "d")) == 1
    assert shapes(waves_picture(264, 132), "rect", "d") == []


def test_the_roofline_s_slopes_end_at_the_peak_and_the_point_is_under_it() -> None:
    svg = PICTURES["roofline"]
    (flat,) = shapes(svg, "path", "o")
    ceiling = float(re.findall(r"[ML][\d.]+ ([\d.]+)", flat.get("d", ""))[0])
    slopes = [re.findall(r"[ML]([\d.]+) ([\d.]+)", each.get("d", "")) for each in shapes(svg, "path", "g")]
    assert [float(ends[1][1]) for ends in slopes] == [ceiling] * 2
    steep = [(float(a[1]) - float(b[1])) / (float(b[0]) - float(a[0])) for a, b in slopes]
    assert steep[0] == pytest.approx(steep[1], rel=0.01), "one slope in log-log"
    assert float(slopes[1][1][0]) < float(slopes[0][1][0]), "the faster level's ridge is at less intensity"
    (dot,) = shapes(svg, "circle", "r")
    assert float(dot.get("cy", 0)) > ceiling
    assert "measured: 1,365 FLOP a byte, 640 TFLOP/s" in svg


def test_ranges_of_lanes() -> None:
    assert ranges([0, 1, 2, 3, 8, 16, 17]) == "0-3 8 16-17"
    assert ranges([]) == ""


@pytest.mark.parametrize(
    ("draw", "reason"),
    [
        (lambda: tile_picture({}), "no layouts"),
        (lambda: waves_picture(0, 132), "0 blocks in waves of 132"),
        (lambda: roofline_picture([], ROOFS[1], []), "needs a peak and a bandwidth"),
        (lambda: roofline_picture(ROOFS[0], ROOFS[1], [("x", 0.0, 1.0)]), "positive numbers"),
    ],
)
def test_pictures_of_nothing_are_refused(draw: Callable[[], object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        draw()


def test_a_box_shows_where_the_swizzle_puts_each_part_of_a_row() -> None:
    tips = [each.text or "" for each in parsed(box_picture(Box("a", 16, 64, 2, 3))).iter(f"{SVG}title")]
    at = {
        (int(actual[1]), int(actual[2]) // 8): int(actual[3]) % 128 // 16
        for tip in tips
        if (actual := re.match(r"row (\d+), elements (\d+)-\d+: byte (\d+) of the box", tip))
    }
    # The 128-byte swizzle exchanges the 16-byte parts of a row by the row's number in eight.
    assert at == {(row, part): part ^ row % 8 for row in range(16) for part in range(8)}


def test_a_box_says_its_rows_bytes_and_swizzle() -> None:
    tensor = TensorMap("a_map", "f16", (64, 128), (128,), (64, 32, 2), (1, 1, 1), swizzle=2)
    kernel = KernelLaunch("k", (tensor,), (1, 1, 1), (128, 1, 1), (1, 1, 1), 0)
    (box,) = boxes_of(kernel, 64)
    assert str(box) == "64 rows of 64 elements, 128 bytes each, 64-byte swizzle"
    assert box.layout is None, "rows of 128 bytes are not what a 64-byte swizzle is for"
    assert box.to_json()["row_bytes"] == 128
