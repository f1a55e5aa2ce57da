"""Invariant problems: one family and one order of additions over k for every m, and configs of another one refused."""

from __future__ import annotations

import pytest

from tests.helpers.toy_family import Toy
from tirgemm.bench.suites import suite_named
from tirgemm.detect import device as detect
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.families import FAMILIES, refusal, rejected, supporting
from tirgemm.families.wgmma.planning.parts import part_count
from tirgemm.gemm import REGIMES, Gemm
from tirgemm.hardware import named_device

H200, A100, CPU = named_device("sm_90a"), named_device("sm_80"), detect("cpu")
SIZES = ("1", "7", "64", "129", "8192", "1..8192", "65..300")


@pytest.mark.parametrize(
    ("device", "dtype", "family"),
    [
        (H200, "f16", "wgmma"),
        (H200, "bf16", "wgmma"),
        (H200, "f32", "simt"),
        (A100, "f16", "mma"),
        (A100, "f32", "simt"),
        (CPU, "f16", "x86"),
        (CPU, "f32", "x86"),
    ],
)
def test_one_family_writes_a_kind_of_problem_whatever_m_is(device: Device, dtype: str, family: str) -> None:
    for m in SIZES:
        gemm = Gemm.parse(f"{m}x1000x1030:{dtype}:nt:invariant")
        assert [able.name for able in supporting(gemm, device)] == [family]
        others = {other.name for other in supporting(gemm.with_(invariant=False), device)} - {family}
        for other in others:
            assert f"is {family}; {other} adds in another order" in str(refusal(FAMILIES[other], gemm, device))


def test_a_family_of_another_package_writes_no_invariant_problem() -> None:
    toy = Toy()
    assert refusal(toy, Gemm.parse("64x64x64:f16:nt"), H200) is None
    assert "the order in which toy adds" in str(refusal(toy, Gemm.parse("64x64x64:f16:nt:invariant"), H200))


def test_a_problem_that_its_family_cannot_write_is_not_left_to_another() -> None:
    """At some m another family would write it, with other bits."""
    gemm = Gemm.parse("1..9000000x1x4099:f16:nt:align=2:invariant")
    assert [able.name for able in supporting(gemm.with_(invariant=False), H200)] == ["simt"]
    with pytest.raises(Unsupported, match="simt: invariant rows have the bits of one family"):
        supporting(gemm, H200)


@pytest.mark.parametrize(
    ("problem", "device"),
    [
        ("576x7168:f16:nt", H200),
        ("2112x7168:bf16:nn:beta:bias", H200),
        ("1000x7232:f16:tt:out=f32", H200),
        ("4096x192:f16:nt:batch=3", H200),
        ("33x16:f16:tn:acc=f16", H200),
        ("700x4100:f16:nt", A100),
        ("48x2100:f32:nn", CPU),
        ("48x300:bf16:tt:act=gelu", CPU),
    ],
)
def test_defaults_of_all_sizes_pass_the_rules(problem: str, device: Device) -> None:
    for m in SIZES:
        gemm = Gemm.parse(f"{m}x{problem}:invariant")
        (family,) = supporting(gemm, device)
        for regime in REGIMES:
            config = family.default(gemm, device, regime)
            family.space(gemm, device).check(config)
            assert rejected(family, gemm, config, device) is None


@pytest.mark.parametrize(
    ("problem", "device", "knob", "choice"),
    [
        ("576x7168:f16:nt", H200, "split", 4),
        ("4096x192:f16:nt", H200, "tile_k", 64),
        ("700x4100:f16:nt", A100, "split", 1),
        ("48x2049:f32:nn", CPU, "block_k", 1024),
        ("48x2048:f32:nn", CPU, "block_k", 0),
    ],
)
def test_the_space_offers_one_order(problem: str, device: Device, knob: str, choice: int) -> None:
    for m in SIZES:
        gemm = Gemm.parse(f"{m}x{problem}:invariant")
        (family,) = supporting(gemm, device)
        choices = {each.name: each.choices for each in family.space(gemm, device).knobs}
        assert choices[knob] == (choice,)


@pytest.mark.parametrize(
    ("problem", "device", "changes"),
    [
        ("64x576x7168:f16:nt", H200, {"split": 2}),
        ("64x576x7168:f16:nt", H200, {"split": 1, "reduction": "cluster"}),
        ("64x4096x4096:f16:nt", H200, {"split": 2}),
        ("64x4096x192:f16:nt", H200, {"tile_k": 128}),
        ("64x700x4100:f16:nt", A100, {"split": 2}),
        ("64x48x4096:f32:nn", CPU, {"block_k": 0}),
        ("64x48x4096:f32:nn", CPU, {"block_k": 512}),
        ("64x48x600:f32:nn", CPU, {"block_k": 256}),
    ],
)
def test_a_config_that_adds_in_another_order_is_refused(
    problem: str, device: Device, changes: dict[str, int | str]
) -> None:
    gemm = Gemm.parse(f"{problem}:invariant")
    (family,) = supporting(gemm, device)
    config = family.default(gemm, device, "sustained").with_(**changes)
    rule, reason = rejected(family, gemm, config, device) or ("", "")
    assert rule == "invariant"
    assert "parts of" in reason
    assert (rejected(family, gemm.with_(invariant=False), config, device) or ("",))[0] != "invariant"


def test_k_is_cut_where_few_columns_leave_processors_idle_and_nowhere_else() -> None:
    assert [part_count(n, 7168) for n in (64, 576, 1056, 2112, 4096)] == [4, 4, 4, 2, 1]
    assert [part_count(576, k) for k in (512, 2048, 4096, 30000)] == [1, 2, 4, 4]
    assert part_count(64, 30000) == 8


def test_suite_invariant_has_the_shapes_of_llama_and_deepgemm() -> None:
    plain = [gemm for name in ("llama", "deepgemm") for gemm in suite_named(name).gemms]
    suite = suite_named("invariant")
    assert [gemm.with_(invariant=False) for gemm in suite.gemms] == plain
    assert all(gemm.invariant for gemm in suite.gemms)
