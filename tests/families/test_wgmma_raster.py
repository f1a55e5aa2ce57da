"""Where m is known only at the call and fits one tile, a block finds its tile without a division by what is known only
then: that stands before its first load, and took a thirtieth of a kernel of 14 us."""

from __future__ import annotations

import re

import pytest

from tests.helpers.named_config import named_config
from tirgemm.families.wgmma import Wgmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build import cuda

FAMILY = Wgmma()
H200 = named_device("sm_90a")
# What the device computes for every tile: of the one where m fits a tile, and of the one where it does not.
BOTH = re.compile(r"if \((?P<count>\w+) == 1\) \{\n(?P<one>[^}]*)\} else \{\n(?P<more>[^}]*)\}")
DIVIDED = re.compile(r"[/%] (?P<by>\(?\w+)")


@pytest.mark.parametrize(
    "knobs",
    [
        "tile_m=64 tile_n=16 swap=1 order=m group=16",
        "tile_m=64 tile_n=16 swap=1 order=n group=4",
        "tile_m=64 tile_n=64 swap=0 order=m group=8",
        "tile_m=64 tile_n=64 swap=0 order=n group=8",
        "tile_m=64 tile_n=64 swap=0 order=m group=4 split=2 reduction=kernel epilogue=direct",
    ],
)
def test_one_tile_along_m_divides_by_constants_alone(knobs: str) -> None:
    gemm = Gemm.parse("1..100x1280x4096:f16:nt" if "split" in knobs else "1..300x1280x4096:f16:nt")
    _, source = cuda.lower(FAMILY.instantiate(gemm, named_config(FAMILY, gemm, H200, knobs), H200), H200.arch)
    places = list(BOTH.finditer(source))
    assert len(places) == 4, "the producer's and a consumer's first tile, and the next ones"
    for place in places:
        assert all(by["by"].isdigit() for by in DIVIDED.finditer(place["one"])), place["one"]
        assert not all(by["by"].isdigit() for by in DIVIDED.finditer(place["more"])), "not even where m is larger"


@pytest.mark.parametrize(
    ("text", "knobs"),
    [
        ("16x1024x4096:f16:nt", "tile_m=64 tile_n=16 swap=1 order=m group=16"),
        # Groups of one tile along m are as high as they are, whatever m.
        ("1..300x1280x4096:f16:nt", "tile_m=64 tile_n=16 swap=1 order=n group=1"),
        ("1..300x1280x4096:f16:nt", "tile_m=64 tile_n=64 swap=0 order=m group=1"),
    ],
)
def test_nothing_is_asked_where_the_constants_say_it(text: str, knobs: str) -> None:
    gemm = Gemm.parse(text)
    _, source = cuda.lower(FAMILY.instantiate(gemm, named_config(FAMILY, gemm, H200, knobs), H200), H200.arch)
    kernel = source[source.index("wgmma_gemm_kernel") :]
    assert not BOTH.search(kernel)
    assert all(by["by"].isdigit() for by in DIVIDED.finditer(kernel) if by["by"] != "threadIdx")
