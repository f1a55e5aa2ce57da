"""The x86 family beyond its contract: what it refuses, what its machine code looks like, how exact its maths is."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.contract.families.cpu_runner import run
from tirgemm.detect import device as detect
from tirgemm.device import Device
from tirgemm.families import FAMILIES
from tirgemm.families.base import rejected
from tirgemm.families.x86 import maths
from tirgemm.families.x86.space import has_avx512
from tirgemm.gemm import Gemm
from tirgemm.reference.numbers import activate
from tirgemm.tuning.build.compile import build
from verification.emulator.operands import KernelCall

X86 = FAMILIES["x86"]
V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt")
V4 = ("avx", "avx2", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", *V3[2:])


def cpu(arch: str = "x86-64-v4", features: tuple[str, ...] = V4, units: int = 2) -> Device:
    return Device("cpu", arch, "Some CPU", units=units, memory_bytes=2**33, features=features)


@pytest.mark.parametrize("missing", ["avx2", "fma", "f16c"])
def test_a_cpu_without_a_needed_feature_is_refused_by_that_feature(missing: str) -> None:
    device = cpu("x86-64-v3", tuple(f for f in V3 if f != missing))
    assert f"lacks {missing}" in str(X86.supports(Gemm.parse("7x9x11"), device))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("7x9x11:f16:nt:acc=f16", "acc=f16"),
        ("65536x32768x33:f16:nt", "32 bits"),
        ("65536x32768x33:f16:nt", "an operand of 65536x32768x33:f16:nt reaches beyond 2147483647 elements"),
        # k is padded to 16, the column of B to a vector of 16, the rows of A to a multiple of 28.
        ("1x1x1:f32:nt:batch=8388608", "32 bits; 2147483648 elements of an operand, padded to whole tiles, exceed"),
        ("134217728x1x1:f32:nt", "32 bits; 2147483968 elements of an operand, padded to whole tiles, exceed"),
    ],
)
def test_problems_that_it_cannot_write_are_refused_with_the_reason(text: str, reason: str) -> None:
    assert reason in str(X86.supports(Gemm.parse(text), cpu()))


@pytest.mark.parametrize("text", ["1x1x1:f32:nt:batch=8388607", "100000000x1x1:f32:nt", "1x130000000x1:f16:nn"])
def test_problems_whose_padded_operands_32_bits_reach_are_written(text: str) -> None:
    gemm = Gemm.parse(text)
    assert X86.supports(gemm, cpu()) is None
    assert rejected(X86, gemm, X86.default(gemm, cpu(), "sustained"), cpu()) is None


@pytest.mark.parametrize("m", ["4096", "1..4096"])
@pytest.mark.parametrize("k", [1025, 2048, 2049])
def test_large_invariant_problems_have_a_default_on_few_threads(m: str, k: int) -> None:
    gemm = Gemm.parse(f"{m}x128256x{k}:bf16:nt:invariant")
    assert rejected(X86, gemm, X86.default(gemm, cpu(), "sustained"), cpu()) is None


def test_the_space_of_a_large_problem_is_searchable() -> None:
    gemm = Gemm.parse("1023x1021x1027:f16:nt")
    space = X86.space(gemm, cpu())
    sample = [space.at(i) for i in range(0, space.size, 97)]
    valid = sum(rejected(X86, gemm, config, cpu()) is None for config in sample)
    assert 4_000 < space.size * valid / len(sample) < 60_000


def test_operands_are_read_in_place_only_where_that_is_possible() -> None:
    def choices(text: str) -> dict[str, tuple[object, ...]]:
        return {knob.name: knob.choices for knob in X86.space(Gemm.parse(text), cpu()).knobs}

    assert choices("64x64x64:f16:nn")["pack_b"] == (True, False)
    assert choices("64x63x64:f16:nn")["pack_b"] == (True,)
    assert choices("64x63x64:f16:nt")["pack_b"] == (True, False)
    assert choices("64x64x63:f16:nt")["pack_b"] == (True,)
    assert choices("64x64x63:f16:nn")["pack_b"] == (True,)
    assert choices("64x64x63:f16:nn")["pack_a"] == (True,)
    assert X86.default(Gemm.parse("1x1024x2048:f16:nn"), cpu(), "sustained")["pack_b"] is False


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(("m", "lanes", "block_k"), [("5", 16, 0), ("13", 8, 0), ("1..19", 16, 256), ("16", 8, 256)])
def test_a_transposed_b_is_turned_chunk_by_chunk_and_added_in_the_order_of_k(
    dtype: str, m: str, lanes: int, block_k: int
) -> None:
    """Columns beyond n, rows of several panels, sums of several blocks of k: as with copied panels, bit for bit."""
    device = detect("cpu")
    gemm = Gemm.parse(f"{m}x109x784:{dtype}:nt:batch=2:bias:act=relu")
    config = X86.default(gemm.with_(m=4), device, "sustained").with_(block_k=block_k, tile_m=6, vectors=2)
    config = config.with_(lanes=lanes if has_avx512(device) else 8)
    assert rejected(X86, gemm, config, device) is None
    case = KernelCall.random(gemm, gemm.m_max, seed=3)
    results = [run(X86.instantiate(gemm, config.with_(pack_b=packs), device), case, device) for packs in (True, False)]
    assert (results[0] == results[1]).all()


@pytest.mark.parametrize(("rows", "in_place"), [(1, True), (16, True), (28, True), (29, False), (64, False)])
def test_few_rows_read_a_transposed_b_in_place_by_default(rows: int, in_place: bool) -> None:
    default = X86.default(Gemm.parse(f"{rows}x1024x2048:f16:nt"), cpu(), "sustained")
    assert default["pack_b"] is not in_place
    assert default["tile_m"] >= rows or not in_place
    default = X86.default(Gemm.parse("8x1024x2048:f16:nt"), cpu(), "sustained")
    assert "for each of 8 panels" in str(rejected(X86, Gemm.parse("64x1024x2048:f16:nt"), default, cpu()))


@pytest.mark.parametrize(("device", "register"), [(cpu(), "zmm"), (cpu("x86-64-v3", V3), "ymm")])
def test_the_register_tile_stays_in_registers(device: Device, register: str, tmp_path: Path) -> None:
    if shutil.which("objdump") is None:
        pytest.skip("objdump (binutils) is not installed")
    gemm = Gemm.parse("511x509x513:f16:nt")
    config = X86.default(gemm, device, "sustained")
    (tmp_path / "kernel.so").write_bytes(build(gemm, config, device).data)
    command = ["objdump", "-d", "--no-show-raw-insn", str(tmp_path / "kernel.so")]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    fused = [n for n, line in enumerate(lines) if re.search(rf"vfmadd.*%{register}", line)]
    assert len(fused) == config["tile_m"] * config["vectors"] * config["unroll"]
    inside = lines[fused[0] : fused[-1]]
    assert not [line for line in inside if "%rsp" in line or "%rbp" in line], "the inner loop spills"


@pytest.mark.parametrize(
    "text", ["8x9x8:bf16:nt", "8x25x8:f32:nt:out=bf16", "9x1x8:bf16:nn", "13x57x17:f16:tn:out=bf16"]
)
@pytest.mark.parametrize("lanes", [8, 16])
def test_one_element_of_bf16_behind_whole_vectors_is_stored_as_two_bytes(text: str, lanes: int) -> None:
    """LLVM stored four, which for the last row were beyond the end of D: the guard bands tell."""
    device = detect("cpu")
    gemm = Gemm.parse(f"{text}:bias:act=gelu")
    config = X86.default(gemm, device, "sustained").with_(tile_m=min(gemm.m_max, 9), vectors=1)
    config = config.with_(lanes=lanes if has_avx512(device) else 8)
    case = KernelCall.random(gemm, gemm.m_max, seed=4)
    case.check(run(X86.instantiate(gemm, config, device), case, device))


@pytest.mark.parametrize("act", ["gelu", "gelu_tanh", "silu", "relu"])
@pytest.mark.parametrize("vectors", [True, False])
def test_activations_are_exact_over_the_whole_range(act: str, vectors: bool) -> None:
    """n = 64 stores whole vectors, n = 7 element by element; both must give fp32's own accuracy."""
    device = detect("cpu")
    edges = [0.0, -0.0, 1e-30, -1e-30, 87.9, -87.9, 1e4, -1e4, 3e38, -3e38]
    points = np.concatenate([np.linspace(-20, 20, 54), edges]) if vectors else np.array([*edges[2:8], 0.3])
    gemm = Gemm(1, len(points), 1, dtype="f32", layout="nn", act=act)
    b = points.astype(np.float32).astype(np.float64)
    case = KernelCall(gemm, 1, {"a": np.ones((1, 1, 1)), "b": b.reshape(1, 1, -1)}, {})
    program = X86.instantiate(gemm, X86.default(gemm, device, "sustained"), device)
    d = run(program, case, device)[0, 0]
    with np.errstate(over="ignore"):
        expected = {
            "relu": np.maximum(b, 0),
            "silu": b / (1 + np.exp(np.minimum(-b, 700))),
            "gelu": np.array([0.5 * x * math.erfc(-x / math.sqrt(2)) for x in b]),
            "gelu_tanh": np.array([0.5 * x * (1 + math.tanh(0.7978845608028654 * (x + 0.044715 * x**3))) for x in b]),
        }[act]
    assert np.abs(d - expected).max(where=np.abs(b) < 1e5, initial=0) < 3e-6
    assert np.isfinite(d).all()
    np.testing.assert_allclose(d[np.abs(b) > 1e30], np.maximum(b, 0)[np.abs(b) > 1e30], rtol=1e-6, atol=1e-30)


class NumpyMaths:
    """As much of TVM's builder as activations of one float32 use, on NumPy's arrays."""

    Select, floor, shift_left = staticmethod(np.where), staticmethod(np.floor), staticmethod(np.left_shift)
    float32 = np.float32

    @staticmethod
    def cast(x: np.ndarray, dtype: str) -> np.ndarray:
        return x.astype(dtype)

    @staticmethod
    def reinterpret(dtype: str, x: np.ndarray) -> np.ndarray:
        return x.view(dtype)


@pytest.mark.parametrize("act", ["gelu", "gelu_tanh", "silu"])
def test_no_activation_passes_through_subnormal_numbers(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused gelu took three times as long where many sums were beyond 13."""
    monkeypatch.setattr(maths, "_lanes", lambda _: 1)
    x = np.linspace(-1000, 1000, 100_001, dtype=np.float32)
    with np.errstate(under="raise", over="ignore"):
        y = maths.activation(NumpyMaths, lambda value: value, act, x)
    np.testing.assert_allclose(y, activate(x.astype(np.float64), act), rtol=1e-6, atol=3e-6)


@pytest.mark.parametrize("act", ["none", "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("n", [64, 7])
def test_infinities_and_nan_go_through_an_activation_as_in_the_reference(act: str, n: int) -> None:
    """The sums of each column: infinite by A, by B or by the bias, NaN, overflowing, and finite ones beside them."""
    device = detect("cpu")
    gemm = Gemm(3, n, 2, dtype="f32", layout="nn", act=act, bias=True)
    specials = np.array([-np.inf, np.inf, np.nan, -3e38, 3e38, -89.0, 0.5])
    b = np.stack([np.resize(specials, n), np.full(n, 2.0)])
    bias = np.where(np.arange(n) % 9 == 8, -np.inf, 0.0)
    a = np.array([[1.0, 0.0], [-1.0, 0.0], [2.0, 1.0]])
    case = KernelCall(gemm, 3, {"a": a[None], "b": b[None], "bias": bias}, {})
    program = X86.instantiate(gemm, X86.default(gemm, device, "sustained"), device)
    d = run(program, case, device)[0]
    with np.errstate(invalid="ignore", over="ignore"):
        sums = (a @ b).astype(np.float32) + bias.astype(np.float32)
        expected = activate(sums.astype(np.float64), act)
    np.testing.assert_allclose(d, expected, rtol=1e-6, atol=3e-6)


def test_a_nan_stays_a_nan_through_every_activation() -> None:
    device = detect("cpu")
    for act in ("relu", "gelu", "gelu_tanh", "silu"):
        gemm = Gemm(1, 17, 1, dtype="f32", layout="nn", act=act)
        b = np.full((1, 1, 17), np.nan)
        program = X86.instantiate(gemm, X86.default(gemm, device, "sustained"), device)
        case = KernelCall(gemm, 1, {"a": np.ones((1, 1, 1)), "b": b}, {})
        assert np.isnan(run(program, case, device)).all(), act


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("n", [64, 7])
def test_no_nan_rounds_to_a_number_of_bf16(dtype: str, n: int) -> None:
    """Those whose bits are nearly all ones became zeros."""
    device = detect("cpu")
    bits = np.array([2**64 - 1, 2**63 - 1, 0x7FF8 << 48, 0xFFF8 << 48], np.uint64)
    gemm = Gemm(1, n, 1, dtype=dtype, layout="nn", out="bf16")
    b = np.where(np.arange(n) % 5 == 4, 0.5, np.resize(bits.view(np.float64), n))
    case = KernelCall(gemm, 1, {"a": np.ones((1, 1, 1)), "b": b.reshape(1, 1, -1)}, {})
    program = X86.instantiate(gemm, X86.default(gemm, device, "sustained"), device)
    np.testing.assert_array_equal(run(program, case, device)[0, 0], b)


@pytest.mark.parametrize("factor", ["alpha", "beta"])
def test_no_factor_that_is_a_nan_rounds_to_a_number_of_bf16(factor: str) -> None:
    device = detect("cpu")
    gemm = Gemm(1, 64, 1, dtype="bf16", layout="nn", alpha=factor == "alpha", beta=factor == "beta")
    operands = {name: np.ones((1, 1, size)) for name, size in (("a", 1), ("b", 64), *((("c", 64),) * gemm.beta))}
    nan = float(np.uint64(2**64 - 1).view(np.float64))
    case = KernelCall(gemm, 1, operands, {factor: nan})
    program = X86.instantiate(gemm, X86.default(gemm, device, "sustained"), device)
    assert np.isnan(run(program, case, device)).all()
