"""The roofline: the articles' peak, bytes counted one by one, and which ceiling binds."""

from __future__ import annotations

import pytest

from tirgemm.analysis.roofline import MeasuredRate, compulsory_bytes, peak_formula, peak_of, roofline
from tirgemm.analysis.sass.program import parse
from tirgemm.errors import AnalysisFailed
from tirgemm.gemm import Gemm
from tirgemm.hardware import l2_gbps, named_device, shared_gbps

H200 = named_device("sm_90a")


def test_peak_is_the_articles() -> None:
    """82 SMs x 128 lanes x 2 x 1.695 GHz, which the SGEMM article multiplies out to 35,581 GFLOPS."""
    device = named_device("sm_86")
    assert peak_formula(device, "f32") == "82 SMs x 128 lanes x 2 x 1.695 GHz = 35.6 TFLOP/s"
    gemm = Gemm.parse("4096x4096x4096:f32:nn")
    assert roofline(gemm, device, "f32").ceiling("compute").rate == pytest.approx(35.581, rel=1e-3)
    with pytest.raises(AnalysisFailed, match="no known rate 'f8'"):
        peak_formula(device, "f8")


def test_square_product_is_bound_by_arithmetic() -> None:
    gemm = Gemm.parse("4096x4096x4096:f16:nt")
    bound = roofline(gemm, H200, "f16")
    assert bound.flops == 2 * 4096**3
    assert bound.intensity["dram"] == pytest.approx(2 * 4096**3 / (3 * 4096**2 * 2))
    assert bound.ridge["dram"] == pytest.approx(1070.5e12 / 4917e9, rel=1e-2)
    assert bound.bound.name == "compute"
    assert bound.bound.us == pytest.approx(2 * 4096**3 / 1070.5e6, rel=1e-2)
    assert bound.share is None
    assert bound.shares == {}


def test_thin_product_is_bound_by_memory_and_share_is_of_that() -> None:
    gemm = Gemm.parse("1x8192x8192:f16:nt")
    bound = roofline(gemm, H200, "f16", time_us=50.0, measured={"dram": MeasuredRate(4000.0, "by hand")})
    assert bound.bound.name == "dram"
    assert bound.bound.measured
    assert not bound.ceiling("compute").measured
    moved = (8192 * 8192 + 2 * 8192) * 2
    assert bound.bound.us == pytest.approx(moved / 4000e3)
    assert bound.share == pytest.approx(moved / 4000e3 / 50)
    assert bound.tflops == pytest.approx(2 * 8192 * 8192 / 50e6)


def test_levels_with_counted_bytes_are_ceilings_too() -> None:
    gemm = Gemm.parse("4096x4096x4096:f32:nn")
    moved = 17e9
    bound = roofline(gemm, H200, "f32", moved={"l2": moved, "shared": 268_441_315 * 128})
    assert bound.ceiling("l2").us == pytest.approx(moved / (l2_gbps(H200) * 1e3))
    assert bound.ceiling("shared").us == pytest.approx(268_441_315 / (132 * 1980))
    assert {c.name for c in roofline(gemm, H200, "f32").ceilings} == {"compute", "dram"}


def test_clock_scales_what_runs_by_it() -> None:
    gemm = Gemm.parse("4096x4096x4096:f16:nt")
    slow, fast = (roofline(gemm, H200, "f16", clock_mhz=clock, moved={"l2": 1e9}) for clock in (990, 1980))
    for name, factor in (("compute", 2), ("l2", 2), ("dram", 1)):
        assert fast.ceiling(name).rate == pytest.approx(slow.ceiling(name).rate * factor)


@pytest.mark.parametrize(
    ("text", "m", "elements"),
    [
        ("5x6x7:f32:nn", 5, 35 + 42 + 30),
        ("5x6x7:f32:nn:beta", 5, 35 + 42 + 60),
        ("5x6x7:f32:nn:bias:batch=2:lda=9", 5, 2 * (35 + 42 + 30) + 6),
        ("1..8x6x7:f32:nn", 3, 21 + 42 + 18),
    ],
)
def test_compulsory_bytes_are_every_element_once(text: str, m: int, elements: int) -> None:
    assert compulsory_bytes(Gemm.parse(text), m) == elements * 4


def test_nominal_bandwidths() -> None:
    assert shared_gbps(H200) == pytest.approx(132 * 128 * 1.98, rel=1e-3)
    assert l2_gbps(named_device("sm_80")) == pytest.approx(5120 * 1.41, rel=1e-3)
    assert l2_gbps(H200) == pytest.approx(132 * 64 * 1.98, rel=1e-3)


def code(*words: str) -> str:
    lines = "".join(f"        /*{16 * i:04x}*/   {w} ;\n" for i, w in enumerate((*words, "EXIT")))
    return f'\t.target\tsm_90a\n\t.section\t.text.k,"ax",@progbits\n{lines}'


@pytest.mark.parametrize(
    ("text", "words", "peak"),
    [
        ("8x8x8:f16:nt", ("HGMMA.64x128x16.F32 R24, gdesc[UR8], R24", "FFMA R0, R1, R2, R3"), "f16"),
        ("8x8x8:bf16:nt", ("HMMA.16816.F32.BF16 R0, R4, R8, R0",), "bf16"),
        ("8x8x8:f16:nt:acc=f16", ("HMMA.16816.F16 R0, R4, R8, R0",), "f16_acc16"),
        ("8x8x8:f16:nt", ("FFMA R0, R1, R2, R3", "HFMA2.MMA R28, -RZ, RZ, 0, 0"), "f32"),
        ("8x8x8:f16:nt:acc=f16", ("HFMA2 R0, R1, R2, R3",), "f16_simt"),
    ],
)
def test_rate_is_that_of_the_opcodes(text: str, words: tuple[str, ...], peak: str) -> None:
    (function,) = parse(code(*words))
    assert peak_of(Gemm.parse(text), function) == peak


def test_wrong_input_is_refused_by_name() -> None:
    gemm = Gemm.parse("8x8x8:f16:nt")
    with pytest.raises(AnalysisFailed, match="no multiply-adds"):
        peak_of(gemm, parse(code("MOV R0, RZ"))[0])
    with pytest.raises(AnalysisFailed, match="no known rate 'f8'; known are"):
        roofline(gemm, H200, "f8")
    with pytest.raises(AnalysisFailed, match=r"the rate of dram of sm_90a is 0\.0"):
        roofline(gemm, H200.with_(peak_gbps=0.0), "f16")
    with pytest.raises(AnalysisFailed, match="measured time is 0 us"):
        roofline(gemm, H200, "f16", time_us=0)
    with pytest.raises(AnalysisFailed, match="no ceiling 'hbm'; there are compute, dram"):
        roofline(gemm, H200, "f16").ceiling("hbm")
