"""What mma offers, refuses and chooses: its space, rules and default, and the page that describes them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tirgemm.config import Config
from tirgemm.families.base import rejected
from tirgemm.families.common.alignment import access_width
from tirgemm.families.mma import Mma
from tirgemm.families.mma.space import tiling
from tirgemm.families.tensorcore.tiling import loads, repacked, repacked_bytes
from tirgemm.families.wmma import Wmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import ARCHITECTURES, named_device

_FAMILY = Mma()
_H200 = named_device("sm_90a")
_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "mma.md").read_text()


def _default(text: str, arch: str = "sm_90a") -> Config:
    return _FAMILY.default(Gemm.parse(text), named_device(arch), "sustained")


def test_page_names_every_knob_with_its_choices_and_every_rule() -> None:
    knobs = _PAGE[_PAGE.index("## Knobs") : _PAGE.index("## Rules")]
    rows = {row[0]: row[1] for row in re.findall(r"^\| (.+?) \| (.+?) \|", knobs, re.MULTILINE)}
    named = {name: text for names, text in rows.items() for name in re.findall(r"`(\w+)`", names)}
    for text in ("4096x4096x4096:f16:nt", "1003x768x77:f16:nn:lda=78:ldb=768:align=4"):
        for knob in _FAMILY.space(Gemm.parse(text), _H200).knobs:
            said = named[knob.name]
            numbers = [int(number) for number in re.findall(r"\d+", said)]
            for choice in knob.choices:
                if isinstance(choice, str):
                    assert f"`{choice}`" in said
                else:
                    assert choice in numbers or ("to" in said and numbers[0] <= choice <= numbers[-1]), knob.name
    for rule in _FAMILY.rules:
        assert f"\n| `{rule.name}` |" in _PAGE


@pytest.mark.parametrize(
    ("text", "widths", "ways"),
    [
        ("64x64x64:f16:nt", (8, 8), ("copy",)),
        ("64x64x60:f16:nt", (4, 4), ("copy", "repack")),
        ("64x62x64:f16:nn", (8, 2), ("copy", "repack")),
        ("64x64x64:f16:nt:align=4", (2, 2), ("copy", "repack")),
        ("64x64x77:f16:nt:lda=80:ldb=80", (1, 1), ("repack",)),
        ("1..64x64x64:bf16:tn:lda=64", (1, 8), ("repack",)),
        ("1..64x64x64:bf16:nn", (8, 8), ("copy",)),
        ("64x64x64:f16:nt:batch=2:stride_a=4100", (4, 8), ("copy", "repack")),
    ],
)
def test_copies_are_as_wide_as_bases_rows_and_matrices_allow(
    text: str, widths: tuple[int, int], ways: tuple[str, ...]
) -> None:
    gemm = Gemm.parse(text)
    assert (access_width(gemm, "a"), access_width(gemm, "b")) == widths
    assert loads(gemm) == ways
    assert [repacked(gemm, operand) is None for operand in ("a", "b")] == [width == 8 for width in widths]


def test_estimates_count_copies_of_rows_that_end_within_a_run() -> None:
    """Rows of 999 at distances of 1000: accesses of 16 bytes would read one element too many."""
    gemm, whole = Gemm.parse("1000x1000x999:f16:nt:lda=1000:ldb=1000"), Gemm.parse("1000x1000x1000:f16:nt")
    assert repacked_bytes(gemm, "copy") == 0
    assert repacked_bytes(gemm, "repack") == 2 * 1000 * 1024 * 2
    for family in (_FAMILY, Wmma()):
        config = family.default(whole, _H200, "sustained")
        copied = family.predict_us(gemm, config.with_(load="repack"), _H200, "sustained")
        assert copied > family.predict_us(whole, config, _H200, "sustained") + 2  # microseconds of one more kernel


def test_too_much_shared_memory_is_blamed_on_what_takes_it() -> None:
    gemm, device = Gemm.parse("4096x4096x4096:f16:nt"), named_device("sm_86")
    small = {"tile_m": 256, "tile_n": 256, "tile_k": 16, "warps_m": 8, "warps_n": 2, "stages": 2, "registers": 1}
    config = _FAMILY.default(gemm, device, "sustained").with_(**small)
    rule = next(rule for rule in _FAMILY.rules if rule.name == "shared")
    assert rule.check(gemm, config.with_(epilogue="direct"), device) is None
    said = rule.check(gemm, config.with_(epilogue="staged"), device)
    assert said == (
        "2 stages of 32768 bytes, then the sums on their way to D, take 139264 bytes of shared memory; "
        "a block of sm_86 has 101376"
    )
    said = rule.check(gemm, config.with_(epilogue="direct", tile_k=64, stages=4), device)
    assert said == "4 stages take 262144 bytes of shared memory; a block of sm_86 has 101376"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_large_squares_get_the_largest_tile_of_eight_warps_that_fits(arch: str) -> None:
    for text in ("8192x8192x8192:f16:nt", "8192x8192x8192:bf16:nn"):
        config = _default(text, arch)
        assert sorted((config["tile_m"], config["tile_n"])) == [128, 256]
        assert config["warps_m"] * config["warps_n"] == 8
        assert config["shared"] == "permuted"
        assert config["registers"] == 2


def test_a_wave_of_the_defaults_blocks_is_about_as_wide_as_high() -> None:
    for units in (_H200.units, _H200.units // 8):
        config = _FAMILY.default(Gemm.parse("8192x8192x8192:f16:nt"), _H200.with_(units=units), "sustained")
        wide = config["raster"] * config["tile_n"]
        high = units * config["tile_m"] * config["tile_n"] / wide
        assert 0.4 < wide / high < 2.5, config


def test_few_outputs_of_a_long_sum_are_split() -> None:
    assert _default("64x128x32768:f16:nt")["split"] > 4
    assert _default("8192x8192x32768:f16:nt")["split"] == 1


def test_whole_lines_are_copied_by_eight_neighbours_and_halves_by_four() -> None:
    gemm = Gemm.parse("1024x1024x1024:f16:nn")
    config = _default(str(gemm)).with_(tile_m=128, tile_n=128, tile_k=64, warps_m=2, warps_n=2)
    for way, neighbours in (("line", 8), ("half", 4)):
        cut = tiling(gemm, config.with_(copy=way))
        for side in cut.sides:
            at = side.copy.elements()[:, 0]
            # A's rows run along k, B's along n: neighbours stay in one of them.
            row = at[:, 0 if side.k_major else 1]
            assert np.flatnonzero(np.diff(row))[0] + 1 == neighbours
            assert side.copy.value_count == 8


@pytest.mark.parametrize(
    ("changes", "rule", "word"),
    [
        ({"warps_m": 8, "tile_m": 64}, "warps", "multiple of 16"),
        ({"tile_k": 16}, "fragments", "tile_k=16"),
        ({"tile_m": 256, "tile_n": 256, "warps_m": 4, "warps_n": 2}, "registers", "registers"),
        ({"tile_k": 64, "stages": 5}, "shared", "shared memory"),
        ({"split": 24}, "split", "split=24"),
        ({"raster": 16}, "raster", "raster=16"),
        ({"tile_k": 32, "copy": "half"}, "copy", "half"),
        ({"resident": 4}, "resident", "resident=4"),
        ({"tile_m": 16, "tile_n": 256, "warps_m": 1, "warps_n": 1, "epilogue": "staged"}, "epilogue", "128"),
    ],
)
def test_rules_refuse_what_cannot_work(changes: dict[str, int | str], rule: str, word: str) -> None:
    gemm = Gemm.parse("6144x6144x2048:f16:nt")
    config = _default(str(gemm)).with_(tile_m=128, tile_n=256, tile_k=32, warps_m=2, warps_n=4, stages=4, registers=2)
    assert rejected(_FAMILY, gemm, config, _H200) is None
    refusal = rejected(_FAMILY, gemm, config.with_(**changes), _H200)
    assert refusal is not None
    assert refusal[0] == rule
    assert word in refusal[1]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("64x64x64:f32:nt", "f32"),
        ("131073x64x65537:f16:nt:align=2", "16 GiB"),
        ("1..64x16777216x64:f16:nt", "range"),
    ],
)
def test_what_mma_cannot_do_is_not_supported_and_says_why(text: str, word: str) -> None:
    reason = _FAMILY.supports(Gemm.parse(text), _H200)
    assert reason is not None
    assert word in reason
